"""The LLVM code by which Python calls a kernel, without Numba.

It takes the arguments out of Python's objects, lets go of the GIL if the kernel needs none, calls,
and returns an object. It knows only arguments of the kernel's own types. If others come, or
arguments by name, it hands them to `self`, an object of Python. It stands on CPython's stable
functions, and on how NumPy lays out an array, which it promises to extensions (`numpylayout.py`).
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.np.arrayobj import make_array, populate_array

from timerstore.jit import numpylayout as layout
from timerstore.jit.recordtype import RecordType

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_POINTER = _I8.as_pointer()
_VOID = ir.VoidType()
_NULL: Final = ir.Constant(_POINTER, None)


class Entry:
    """The function (self, arguments, their number, names) that Python calls for one kernel."""

    def __init__(self, module: ir.Module, symbol: str) -> None:
        self.module = module
        kind = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _I64, _POINTER])
        self.function = ir.Function(module, kind, symbol)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.others = self.function.append_basic_block("others")

    def emit(self, described: Any, *, keeps_gil: bool) -> None:
        """Emit the function; `described`: Numba's descriptor of the compiled kernel."""
        builder = self.builder
        _, arguments, count, names = self.function.args
        given = builder.icmp_signed("==", count, _I64(len(described.argtypes)))
        self.need(builder.and_(given, builder.icmp_signed("==", names, _NULL)))
        values = []
        for i, kind in enumerate(described.argtypes):
            value = builder.load(builder.gep(arguments, [_I64(i)]))
            values.append(self.take(kind, value))
        thread = None if keeps_gil else self.call("PyEval_SaveThread", _POINTER)
        status, result = called(builder, self.module, described, values)
        if thread is not None:
            self.call("PyEval_RestoreThread", _VOID, thread)
        with builder.if_then(status.is_error, likely=False):
            self.fail(described)
        builder.ret(self.boxed(described.restype, result))
        self.hand_over()

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call a function of Python's."""
        kind = ir.FunctionType(result, [each.type for each in arguments])
        function = cgutils.get_or_insert_function(self.module, kind, name)
        return self.builder.call(function, arguments)

    def need(self, condition: Any) -> None:
        """Go on if a condition holds; else hand the arguments over."""
        follows = self.function.append_basic_block("follows")
        branch = self.builder.cbranch(condition, follows, self.others)
        branch.set_weights([99, 1])
        self.builder.position_at_end(follows)

    def loaded(self, place: Any, offset: int, kind: Any) -> Any:
        """Load a field of an object."""
        at = self.builder.gep(place, [_I64(offset)])
        return self.builder.load(self.builder.bitcast(at, kind.as_pointer()))

    def take(self, kind: Any, value: Any) -> Any:
        """Take an argument of one type out of an object."""
        if isinstance(kind, types.Array):
            return self.take_array(kind, value)
        if isinstance(kind, RecordType):
            return self.take_record(value)
        if isinstance(kind, types.BaseTuple):
            return self.take_tuple(kind, value)
        if kind == types.boolean:
            found = self.call("PyObject_IsTrue", _I32, value)
            self.need(self.builder.icmp_signed(">=", found, _I32(0)))
            return self.builder.trunc(found, _I1)
        assert kind == types.int64, kind
        return self.take_integer(value)

    def take_integer(self, value: Any) -> Any:
        """Take an integer; −1 is one as well as what stands for an error."""
        builder = self.builder
        found = self.call("PyLong_AsLongLong", _I64, value)
        suspect = builder.icmp_signed("==", found, _I64(-1))
        before = builder.block
        with builder.if_then(suspect, likely=False):
            error = builder.icmp_unsigned("!=", self.call("PyErr_Occurred", _POINTER), _NULL)
            asked = builder.block
        failed = builder.phi(_I1)
        failed.add_incoming(_I1(0), before)
        failed.add_incoming(error, asked)
        self.need(builder.not_(failed))
        return found

    def take_record(self, value: Any) -> Any:
        """Take the address of a record."""
        text = self.text("block_address")
        found = self.call("PyObject_GetAttrString", _POINTER, value, text)
        # A table makes it in Python, where a signal's exception may fall: that is the caller's.
        lacks = self.builder.icmp_unsigned("==", found, _NULL)
        with self.builder.if_then(lacks, likely=False):
            self.builder.ret(_NULL)
        address = self.call("PyLong_AsLongLong", _I64, found)
        self.call("Py_DecRef", _VOID, found)
        self.need(self.builder.icmp_signed("!=", address, _I64(-1)))
        return address

    def take_tuple(self, kind: Any, value: Any) -> Any:
        """Take the values of a tuple."""
        count = self.call("PyTuple_Size", _I64, value)
        self.need(self.builder.icmp_signed("==", count, _I64(len(kind))))
        values = [
            self.take(each, self.call("PyTuple_GetItem", _POINTER, value, _I64(i)))
            for i, each in enumerate(kind)
        ]
        return cpu_target.target_context.make_tuple(self.builder, kind, values)

    def take_array(self, kind: Any, value: Any) -> Any:
        """Take where an array's items are, and how many."""
        builder, context = self.builder, cpu_target.target_context
        ndarray = self.module.globals.get(layout.NDARRAY_SYMBOL) or ir.GlobalVariable(
            self.module, _POINTER, layout.NDARRAY_SYMBOL
        )
        self.need(
            builder.icmp_unsigned(
                "==", self.loaded(value, layout.OBJECT_TYPE_AT, _POINTER), builder.load(ndarray)
            )
        )
        needed = (
            layout.IS_C_CONTIGUOUS
            | layout.IS_ALIGNED
            | (layout.IS_WRITEABLE if kind.mutable else 0)
        )
        flags = builder.and_(self.loaded(value, layout.ARRAY_FLAGS_AT, _I32), _I32(needed))
        axes = self.loaded(value, layout.ARRAY_NDIM_AT, _I32)
        described = self.loaded(value, layout.ARRAY_DESCR_AT, _POINTER)
        number = self.loaded(described, layout.DESCR_NUMBER_AT, _I32)
        order = self.loaded(described, layout.DESCR_BYTE_ORDER_AT, _I8)
        fits = builder.icmp_signed("==", flags, _I32(needed))
        fits = builder.and_(fits, builder.icmp_signed("==", axes, _I32(kind.ndim)))
        fits = builder.and_(fits, builder.icmp_signed("!=", order, _I8(layout.BIG_ENDIAN)))
        is_item = _I1(0)
        for each in layout.NUMBERS[str(kind.dtype)]:
            is_item = builder.or_(is_item, builder.icmp_signed("==", number, _I32(each)))
        self.need(builder.and_(fits, is_item))
        element = context.get_data_type(kind.dtype)
        itemsize = _I64(context.get_abi_sizeof(element))
        lengths = self.loaded(value, layout.ARRAY_SHAPE_AT, _I64.as_pointer())
        shape = [builder.load(builder.gep(lengths, [_I64(i)])) for i in range(kind.ndim)]
        strides = [itemsize]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        array = make_array(kind)(context, builder)
        populate_array(
            array,
            data=self.loaded(value, layout.ARRAY_DATA_AT, element.as_pointer()),
            shape=cgutils.pack_array(builder, shape),
            strides=cgutils.pack_array(builder, strides),
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    def boxed(self, kind: Any, result: Any) -> Any:
        """Return an object for what a kernel returned."""
        if kind == types.none:
            nothing = ir.GlobalVariable(self.module, _I8, "_Py_NoneStruct")
            self.call("Py_IncRef", _VOID, nothing)
            return nothing
        if kind == types.boolean:
            as_long = self.builder.zext(result, _I64)
            return self.call("PyBool_FromLong", _POINTER, as_long)
        assert isinstance(kind, types.Integer) and kind.signed, kind
        as_long = result if result.type == _I64 else self.builder.sext(result, _I64)
        return self.call("PyLong_FromLongLong", _POINTER, as_long)

    def fail(self, described: Any) -> None:
        """Raise: no kernel of ours does, but for an index that is checked."""
        builtins = self.call("PyEval_GetBuiltins", _POINTER)
        error = self.call("PyDict_GetItemString", _POINTER, builtins, self.text("IndexError"))
        message = self.text(f"{described.qualname}: an index is out of bounds")
        self.call("PyErr_SetString", _VOID, error, message)
        self.builder.ret(_NULL)

    def text(self, value: str) -> Any:
        """Return the address of a text."""
        content = cgutils.make_bytearray(value.encode() + b"\0")
        known = self.module.globals.get(value) or cgutils.global_constant(
            self.module, value, content
        )
        return self.builder.bitcast(known, _POINTER)

    def hand_over(self) -> None:
        """Emit the block that has `self` called with arguments that fit no type here."""
        self.builder.position_at_end(self.others)
        self.call("PyErr_Clear", _VOID)
        self.builder.ret(self.call("PyObject_Vectorcall", _POINTER, *self.function.args))


def called(builder: Any, module: ir.Module, described: Any, values: Any) -> tuple[Any, Any]:
    """Call a kernel as Numba's code does; return its status and its result."""
    context = cpu_target.target_context
    function = context.declare_function(module, described)
    convention = context.call_conv
    found: tuple[Any, Any] = convention.call_function(
        builder, function, described.restype, described.argtypes, values
    )
    return found
