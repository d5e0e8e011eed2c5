"""The Numba type of records: how kernels reach their fields.

What a record is stands in `record.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic, models, register_model
from numba.core.imputils import lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.np.numpy_support import from_dtype

from timerstore.jit import codegen as code
from timerstore.jit.record import READ_ONLY, TWO_AXES, Layout

_I64 = ir.IntType(64)
_made: dict[Layout, RecordType] = {}


class RecordType(types.Type):
    """The Numba type of a record class."""

    def __init__(self, layout: Layout) -> None:
        """Hold the places of its words and of its arrays, with Numba's types of these."""
        self.words = layout.words
        self.places = {name: (_kind(of), place) for name, (of, place) in layout.places.items()}
        super().__init__(name=layout.name)


def _kind(of: Any) -> Any:
    return record_type(of) if isinstance(of, Layout) else types.Array(from_dtype(of), 1, "C")


def record_type(layout: Layout) -> RecordType:
    """Return the type of a layout; it is made once."""
    found = _made.get(layout)
    return _made.setdefault(layout, RecordType(layout)) if found is None else found


@register_model(RecordType)
class _RecordModel(models.PrimitiveModel):
    """A record is the address of its block."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _I64)


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record: Any, name: str) -> Any:
        if name in record.words:
            return types.int64
        place = record.places.get(name)
        return None if place is None else place[0]


def _of_block(builder: Any, address: Any, offset: int) -> Any:
    """Load a word of a block; it never changes, so that one load serves for a whole function."""
    pointer = builder.inttoptr(builder.add(address, _I64(offset)), _I64.as_pointer())
    word = builder.load(pointer, align=8)
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


def _word_pointer(builder: Any, record: Any, value: Any, name: str) -> Any:
    """Return the address of an integer field."""
    memory = _of_block(builder, value, 0)
    at = builder.add(memory, _I64(8 * record.words[name].place))
    return builder.inttoptr(at, _I64.as_pointer())


@lower_getattr_generic(RecordType)
def _lower_field(context: Any, builder: Any, record: Any, value: Any, name: str) -> Any:
    if name in record.words:
        return builder.load(_word_pointer(builder, record, value, name), align=8)
    kind, place = record.places[name]
    address = builder.add(value, _I64(8 * place))
    if isinstance(kind, RecordType):
        return address
    loaded = [_of_block(builder, address, offset) for offset in (0, 8)]
    return code.array_at(context, builder, kind, *loaded)


@lower_setattr_generic(RecordType)
def _lower_set(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    record = sig.args[0]
    if name not in record.words or record.words[name].shared:
        raise TypeError(f"{record.name}.{name} is no word that a kernel may assign to")
    builder.store(args[1], _word_pointer(builder, record, args[0], name), align=8)


def _is_word(record: Any, name: Any) -> bool:
    known = isinstance(record, RecordType) and isinstance(name, types.StringLiteral)
    return known and name.literal_value in record.words


def _pointer(builder: Any, sig: Any, args: Any) -> Any:
    return _word_pointer(builder, sig.args[0], args[0], sig.args[1].literal_value)


@intrinsic(prefer_literal=True)
def observe(typingctx: Any, record: Any, name: Any) -> Any:
    """Load a word with acquire order."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, sig, args), "acquire", 8)

    return (types.int64(record, name), codegen) if _is_word(record, name) else None


@intrinsic(prefer_literal=True)
def publish(typingctx: Any, record: Any, name: Any, value: Any) -> Any:
    """Store a word with release order."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _pointer(builder, sig, args), "release", 8)
        return context.get_dummy_value()

    return (types.void(record, name, types.int64), codegen) if _is_word(record, name) else None


def changer(operation: str) -> Any:
    """Return the intrinsic that changes a word, and returns what stood there."""

    @intrinsic(prefer_literal=True)
    def change(typingctx: Any, record: Any, name: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _pointer(builder, sig, args)
            return code.change_word(builder, operation, pointer, args[2])

        return (types.int64(record, name, types.int64), codegen) if _is_word(record, name) else None

    return change


def at_address(cls: Any) -> Any:
    """Return the intrinsic that turns an address into a record of a class."""
    kind = record_type(cls.layout)

    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        return kind(types.int64), lambda context, builder, sig, args: args[0]

    return at


# --- A kernel's types, read off its annotations.
#
# So it can be compiled before it is called. `int` and `bool` are Numba's; an array is C-contiguous,
# of one axis unless it is `Rows`; a record class has its own type, a NamedTuple that of its fields.

_SCALARS: Final = {int: types.int64, bool: types.boolean}


@cache
def signature_of(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the types of a kernel's arguments; raises TypeError if an annotation says none."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    return tuple(_type_of(hint, f"{function.__qualname__}({name})") for name, hint in hints.items())


def _type_of(hint: Any, place: str) -> Any:
    marks: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        marks = tuple(rest)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hasattr(hint, "layout"):
        return record_type(hint.layout)
    if get_origin(hint) is np.ndarray:
        (item,) = get_args(get_args(hint)[1])
        axes = 2 if TWO_AXES in marks else 1
        return types.Array(from_dtype(np.dtype(item)), axes, "C", readonly=READ_ONLY in marks)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return types.BaseTuple.from_types(signature_of(hint), hint)
    raise TypeError(f"{place}: {hint} names no type of Numba's")
