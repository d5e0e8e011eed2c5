"""Records: named groups of fields that kernels receive as one pointer.

A NamedTuple of arrays would be passed to every compiled function by value, seven words for each
array; with the fifty arrays of a store that makes compiling ten times slower and calls dearer. A
record is passed as the address of a block of (address, length) pairs, and a field becomes an array
only where it is used. The arrays of a record are fixed when it is made.

    @record
    class EnqueuePut:
        thread: ServiceThread
        scratch: Bytes
        linked_index: int = 0
        asked: Annotated[int, LINE, SHARED] = 0

An `int` is a word of the record's own memory, which begins and ends with a cache line, so that
records with different writers never share one; with `LINE` it begins another. Kernels and Python
write `world.enqueue_put.linked_index += 1`. What another thread reads without a common lock is
written with `publish`, read with `observe`. `own` says who may write an instance's words: where
kernels are interpreted, a write by anyone else raises. A `SHARED` word is written by several, in
kernels by `publish`, `exchange_word` and `add_to_word` alone.

Interpreted kernels see the Python object itself: its attributes are the arrays, and properties over
the words.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import (
    NativeValue,
    intrinsic,
    models,
    register_model,
    typeof_impl,
    unbox,
)
from numba.core.imputils import lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.np.arrayobj import make_array, populate_array

from timerstore.timelog.jit.acting import actor, may_write
from timerstore.timelog.jit.kernel import INTERPRETED
from timerstore.timelog.jit.signatures import READ_ONLY, TWO_AXES

T = TypeVar("T")

Words = np.ndarray[Any, np.dtype[np.int64]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Int8s = np.ndarray[Any, np.dtype[np.int8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

Rows = Annotated[Words, TWO_AXES]
Int32Rows = Annotated[Int32s, TWO_AXES]
ReadBytes = Annotated[Bytes, READ_ONLY]
ReadByteRows = Annotated[Bytes, READ_ONLY, TWO_AXES]
_ITEMS: tuple[tuple[Any, Any], ...] = (
    (Words, types.int64),
    (Int32s, types.int32),
    (Bytes, types.uint8),
)
_I64 = ir.IntType(64)

LINE: Final = "begins a cache line"
SHARED: Final = "written by several, atomically"
_LINE_WORDS: Final = 8
_by_address: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All records, where kernels are interpreted and an address has to lead to the Python object."""
_RESERVED: Final = frozenset({"block", "block_address", "cells", "owners"})


class NotTheOwnerError(AssertionError):
    """A word was written by one who does not own it."""


class _Word(NamedTuple):
    """An integer field: its place in the record's own memory."""

    place: int
    shared: bool


class RecordType(types.Type):
    """The Numba type of a record class: its fields with their place in the block."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any], ...]) -> None:
        """`fields`: (name, array type, RecordType or _Word)."""
        self.fields = fields
        self.places: dict[str, tuple[Any, int]] = {}
        self.words = {field: kind for field, kind in fields if isinstance(kind, _Word)}
        place = 2 if self.words else 0  # the record's own memory comes first
        for field, kind in fields:
            if not isinstance(kind, _Word):
                self.places[field] = kind, place
                place += kind.length if isinstance(kind, RecordType) else 2
        self.length: int = place
        # A digest stands for the fields: the name is part of every symbol that takes a record.
        text = ", ".join(f"{n}: {getattr(k, 'name', k)}" for n, k in fields)
        super().__init__(name=f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}")


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
    """Return where an integer field stands."""
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
    array = make_array(kind)(context, builder)
    element = context.get_data_type(kind.dtype)
    itemsize = _I64(context.get_abi_sizeof(element))
    populate_array(
        array,
        data=builder.inttoptr(loaded[0], element.as_pointer()),
        shape=cgutils.pack_array(builder, [loaded[1]]),
        strides=cgutils.pack_array(builder, [itemsize]),
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()


@lower_setattr_generic(RecordType)
def _lower_set(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    record = sig.args[0]
    if name not in record.words or record.words[name].shared:
        raise TypeError(f"{record.name}.{name} is no word that a kernel may assign to")
    builder.store(args[1], _word_pointer(builder, record, args[0], name), align=8)


@unbox(RecordType)
def _unbox_record(kind: Any, value: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(value, "block_address")
    native = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    return NativeValue(native)


@dataclass_transform()
def record(cls: type[T]) -> type[T]:
    """Make an annotated class a record; its constructor takes the fields in order or by name."""
    hints = get_type_hints(cls, include_extras=True)
    assert not _RESERVED & set(hints), cls
    fields = _fields(hints)
    kind = RecordType(cls.__name__, fields)
    names = tuple(hints)
    word_count = _rounded(max((word.place + 1 for word in kind.words.values()), default=0))
    defaults = np.zeros(word_count, np.int64)
    for name, word in kind.words.items():
        defaults[word.place] = getattr(cls, name, 0)
    parts = [
        (name, None if isinstance(field, RecordType) else np.dtype(field.dtype.name))
        for name, field in fields
        if not isinstance(field, _Word)
    ]

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        values: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names) or not kind.places.keys() <= values.keys() <= set(names):
            raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
        block: list[int] = []
        self.owners = None
        if word_count:
            memory = _aligned(word_count)
            memory[:] = defaults
            self.cells = memory.data
            block += [memory.ctypes.data, word_count]
            for name in kind.words.keys() & values.keys():
                self.cells[kind.words[name].place] = values[name]
        for name, item in parts:
            value = values[name]
            if item is None:
                block.extend(value.block.tolist())
            else:
                assert value.dtype == item and value.flags.c_contiguous, name
                block += [value.ctypes.data, len(value)]
            setattr(self, name, value)
        self.block = np.array(block, np.int64)
        self.block_address = self.block.ctypes.data
        if INTERPRETED:
            _by_address[self.block_address] = self

    cls.__init__ = initialise  # type: ignore[method-assign]
    cls.numba_type = cls._numba_type_ = kind  # type: ignore[attr-defined]
    for name, word in kind.words.items():
        setattr(cls, name, _word_property(f"{cls.__name__}.{name}", word))
    typeof_impl.register(cls)(lambda value, context: kind)
    return cls


def own(record: T, *owners: int) -> T:
    """Let only these write a record's words, see `acting.py`; return it."""
    record.owners = frozenset(owners)  # type: ignore[attr-defined]
    return record


def _fields(hints: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    fields: list[tuple[str, Any]] = []
    words = 0
    for name, hint in hints.items():
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if hint is int or marks:
            if LINE in marks:
                words = _rounded(words)
            fields.append((name, _Word(words, SHARED in marks)))
            words += 1
        else:
            fields.append((name, _kind(hint)))
    return tuple(fields)


def _kind(hint: Any) -> Any:
    for alias, item in _ITEMS:
        if hint == alias:
            return types.Array(item, 1, "C")
    return hint.numba_type


def _rounded(words: int) -> int:
    return -(-words // _LINE_WORDS) * _LINE_WORDS


def _aligned(words: int) -> Words:
    """Return zeros that begin with a cache line."""
    room = np.zeros(words + _LINE_WORDS, np.int64)
    skipped = -room.ctypes.data % (8 * _LINE_WORDS) // 8
    return room[skipped : skipped + words]


def _word_property(name: str, word: _Word) -> property:
    index = word.place

    def get(self: Any) -> int:
        return int(self.cells[index])

    def put(self: Any, value: int) -> None:
        self.cells[index] = value

    def put_by_owner(self: Any, value: int) -> None:
        if self.owners is not None and not may_write(self.owners):
            raise NotTheOwnerError(f"{name} is written by {actor()}, not by {set(self.owners)}")
        self.cells[index] = value

    return property(get, put_by_owner if INTERPRETED and not word.shared else put)


# --- atomics on fields, by their name as a literal: what threads share without the GIL


def _is_word(record: Any, name: Any) -> bool:
    known = isinstance(record, RecordType) and isinstance(name, types.StringLiteral)
    return known and name.literal_value in record.words


def _pointer(builder: Any, sig: Any, args: Any) -> Any:
    return _word_pointer(builder, sig.args[0], args[0], sig.args[1].literal_value)


@intrinsic(prefer_literal=True)
def _observe(typingctx: Any, record: Any, name: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, sig, args), "acquire", 8)

    return (types.int64(record, name), codegen) if _is_word(record, name) else None


@intrinsic(prefer_literal=True)
def _publish(typingctx: Any, record: Any, name: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _pointer(builder, sig, args), "release", 8)
        return context.get_dummy_value()

    return (types.void(record, name, types.int64), codegen) if _is_word(record, name) else None


def _changer(operation: str) -> Any:
    @intrinsic(prefer_literal=True)
    def change(typingctx: Any, record: Any, name: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _pointer(builder, sig, args)
            return builder.atomic_rmw(operation, pointer, args[2], "seq_cst")

        return (types.int64(record, name, types.int64), codegen) if _is_word(record, name) else None

    return change


_one_at_a_time = threading.Lock()


def _observe_twin(record: Any, name: str) -> int:
    return int(getattr(record, name))


def _publish_twin(record: Any, name: str, value: int) -> None:
    setattr(record, name, value)


def _exchange_twin(record: Any, name: str, value: int) -> int:
    with _one_at_a_time:
        before = int(getattr(record, name))
        setattr(record, name, value)
        return before


def _add_twin(record: Any, name: str, value: int) -> int:
    with _one_at_a_time:
        before = int(getattr(record, name))
        if value:  # nought is added for the fence's sake, by whoever wants one
            setattr(record, name, before + value)
        return before


observe = _observe_twin if INTERPRETED else _observe
"""observe(record, "field"): load with acquire order. Python reads the attribute."""
publish = _publish_twin if INTERPRETED else _publish
"""publish(record, "field", value): store with release order. Python sets the attribute."""
exchange_word = _exchange_twin if INTERPRETED else _changer("xchg")
"""exchange_word(record, "field", value): store, and return what stood there; a full fence."""
add_to_word = _add_twin if INTERPRETED else _changer("add")
"""add_to_word(record, "field", value): add, and return what stood there; a full fence."""


def record_at(kind: Any) -> Any:
    """Return what kernels turn an address, a record's `block_address`, into that record with."""

    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        return kind.numba_type(types.int64), lambda context, builder, sig, args: args[0]

    def twin(address: int) -> Any:
        return _by_address[address]

    return twin if INTERPRETED else at
