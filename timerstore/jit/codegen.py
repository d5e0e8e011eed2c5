"""The LLVM code of what only kernels can say.

The names that kernels call stand in `intrinsics.py`, with their twins in plain Python.
"""

from __future__ import annotations

import platform
from typing import Any, Final

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

IS_X86: Final = platform.machine() in ("x86_64", "AMD64")
_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))


def pointer_to(
    context: Any, builder: Any, sig: Any, args: Any, which: int, at: Any, width: int
) -> Any:
    """Return an i8 pointer to element `at` of array argument `which`, checked if asked for."""
    array = make_array(sig.args[which])(context, builder, args[which])
    if config.BOUNDSCHECK:
        length = builder.extract_value(array.shape, 0)
        cgutils.do_boundscheck(context, builder, at, length)
        if width > 1:
            last = builder.add(at, _I64(width - 1))
            cgutils.do_boundscheck(context, builder, last, length)
    return builder.gep(builder.bitcast(array.data, _I8.as_pointer()), [at])


def loader(width: int, big: bool, signed: bool) -> Any:
    """Return the intrinsic that loads an integer of `width` bytes as an int64."""

    @intrinsic
    def load(typingctx: Any, buf: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = pointer_to(context, builder, sig, args, 0, args[1], width)
            kind = ir.IntType(8 * width)
            value = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
            if big and width > 1:
                value = builder.call(
                    builder.module.declare_intrinsic("llvm.bswap", [kind]), [value]
                )
            if width == 8:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return types.int64(buf, types.int64), codegen

    return load


def storer(width: int, big: bool) -> Any:
    """Return the intrinsic that stores the low `width` bytes of an int64."""

    @intrinsic
    def store(typingctx: Any, buf: Any, at: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = pointer_to(context, builder, sig, args, 0, args[1], width)
            kind = ir.IntType(8 * width)
            value = args[2] if width == 8 else builder.trunc(args[2], kind)
            if big and width > 1:
                value = builder.call(
                    builder.module.declare_intrinsic("llvm.bswap", [kind]), [value]
                )
            builder.store(value, builder.bitcast(pointer, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(buf, types.int64, types.int64), codegen

    return store


def viewer(item: str) -> Any:
    """Return the intrinsic that makes an array over memory."""
    kind = types.Array(getattr(types, item), 1, "C")

    @intrinsic
    def view(typingctx: Any, address: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return array_at(context, builder, kind, *args)

        return kind(types.int64, types.int64), codegen

    return view


def lent_viewer(item: str) -> Any:
    """Return the intrinsic that makes an array over memory whose address stands in a word."""
    kind = types.Array(getattr(types, item), 1, "C")

    @intrinsic
    def view(typingctx: Any, lent: Any, place: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            address = builder.load(_word_pointer(context, builder, sig, args), align=8)
            return array_at(context, builder, kind, address, args[2])

        return kind(lent, types.int64, types.int64), codegen

    return view


def array_at(context: Any, builder: Any, kind: Any, address: Any, count: Any) -> Any:
    """Return an array of `count` items at an address."""
    array = make_array(kind)(context, builder)
    element, itemsize = context.get_data_type(kind.dtype), _I64(kind.dtype.bitwidth // 8)
    populate_array(
        array,
        data=builder.inttoptr(address, element.as_pointer()),
        shape=cgutils.pack_array(builder, [count]),
        strides=cgutils.pack_array(builder, [itemsize]),
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()


@intrinsic
def copy(typingctx: Any, dst: Any, at: Any, src: Any, start: Any, count: Any) -> Any:
    """Copy bytes that do not overlap."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = pointer_to(context, builder, sig, args, 0, args[1], 1)
        source = pointer_to(context, builder, sig, args, 2, args[3], 1)
        if config.BOUNDSCHECK:
            last = builder.sub(args[4], _I64(1))
            pointer_to(context, builder, sig, args, 0, builder.add(args[1], last), 1)
            pointer_to(context, builder, sig, args, 2, builder.add(args[3], last), 1)
        cgutils.raw_memcpy(builder, to, source, args[4], _I64(1))
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64, types.int64), codegen


@intrinsic
def zero(typingctx: Any, buf: Any, at: Any, count: Any) -> Any:
    """Zero bytes."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, sig, args, 0, args[1], 1)
        if config.BOUNDSCHECK:
            last = builder.add(args[1], builder.sub(args[2], _I64(1)))
            pointer_to(context, builder, sig, args, 0, last, 1)
        cgutils.memset(builder, pointer, args[2], 0)
        return context.get_dummy_value()

    return types.void(buf, types.int64, types.int64), codegen


@intrinsic
def copy_64(typingctx: Any, dst: Any, at: Any, src: Any, start: Any) -> Any:
    """Copy 64 bytes without a call."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = pointer_to(context, builder, sig, args, 0, args[1], 64)
        source = pointer_to(context, builder, sig, args, 2, args[3], 64)
        kind = ir.VectorType(_I8, 64).as_pointer()
        loaded = builder.load(builder.bitcast(source, kind), align=1)
        builder.store(loaded, builder.bitcast(to, kind), align=1)
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64), codegen


def _word_pointer(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array = make_array(sig.args[0])(context, builder, args[0])
    if config.BOUNDSCHECK:
        length = builder.extract_value(array.shape, 0)
        cgutils.do_boundscheck(context, builder, args[1], length)
    return builder.gep(array.data, [args[1]])


@intrinsic
def load_acquire(typingctx: Any, words: Any, index: Any) -> Any:
    """Load a word with acquire order."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_word_pointer(context, builder, sig, args), "acquire", 8)

    return types.int64(words, types.int64), codegen


@intrinsic
def store_release(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Store a word with release order."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word_pointer(context, builder, sig, args), "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


def change_word(builder: Any, operation: str, pointer: Any, value: Any) -> Any:
    """Change a word, and return what stood there; a full fence.

    On x86 the instruction is one. On ARM without LSE it is a loop that keeps what comes before from
    passing it, but lets an earlier plain store pass a later load.
    """
    before = builder.atomic_rmw(operation, pointer, value, "seq_cst")
    if not IS_X86:
        builder.fence("seq_cst")
    return before


@intrinsic
def fetch_add(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Add to a word, and return what stood there."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, sig, args)
        return change_word(builder, "add", pointer, args[2])

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def exchange(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Store a word, and return what stood there."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, sig, args)
        return change_word(builder, "xchg", pointer, args[2])

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def compare_exchange(typingctx: Any, words: Any, index: Any, expected: Any, value: Any) -> Any:
    """Store a word if it was as expected, and tell whether it was."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, sig, args)
        pair = builder.cmpxchg(pointer, args[2], args[3], "seq_cst", "seq_cst")
        if not IS_X86:
            builder.fence("seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(words, types.int64, types.int64, types.int64), codegen


@intrinsic
def touch(typingctx: Any, buf: Any, at: Any) -> Any:
    """Fault in a page for writing."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, sig, args, 0, args[1], 1)
        # Not `or` with 0: LLVM leaves that out, as nobody uses what it gives.
        builder.cmpxchg(pointer, _I8(0), _I8(0), "monotonic", "monotonic")
        return context.get_dummy_value()

    return types.void(buf, types.int64), codegen


@intrinsic
def touch_to_read(typingctx: Any, buf: Any, at: Any) -> Any:
    """Fault in a page for reading."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, sig, args, 0, args[1], 1)
        builder.load_atomic(pointer, "monotonic", 1)  # LLVM would leave out a plain one
        return context.get_dummy_value()

    return types.void(buf, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, buf: Any, at: Any) -> Any:
    """Ask for a cache line: a hint, which is never checked and never faults."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.gep(builder.bitcast(array.data, _I8.as_pointer()), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        name = "llvm.prefetch.p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(buf, types.int64), codegen


@intrinsic
def match_64(typingctx: Any, buf: Any, at: Any, byte: Any) -> Any:
    """Return which of 64 bytes equal one."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, sig, args, 0, args[1], 64)
        kind = ir.VectorType(_I8, 64)
        loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
        undefined = ir.Constant(kind, ir.Undefined)
        one = builder.insert_element(undefined, builder.trunc(args[2], _I8), _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, 64), [_I32(0)] * 64)
        wanted = builder.shuffle_vector(one, undefined, zeros)
        return builder.bitcast(builder.icmp_signed("==", loaded, wanted), _I64)

    return types.int64(buf, types.int64, types.int64), codegen


@intrinsic
def lowest_bit(typingctx: Any, value: Any) -> Any:
    """Return the index of the lowest bit."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], _I1(0))

    return types.int64(types.int64), codegen


@intrinsic
def bit_length(typingctx: Any, value: Any) -> Any:
    """Return how many bits a value has."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sub(_I64(64), builder.ctlz(args[0], _I1(0)))

    return types.int64(types.int64), codegen


@intrinsic
def wrapping_multiply(typingctx: Any, a: Any, b: Any) -> Any:
    """Multiply without saying that it never overflows."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.mul(*args)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def swap_64(typingctx: Any, value: Any) -> Any:
    """Return eight bytes in the opposite order."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.bswap", [_I64]), [args[0]])

    return types.int64(types.int64), codegen
