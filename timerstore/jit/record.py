"""Records: named groups of fields that kernels receive as one pointer.

A NamedTuple of arrays would be passed to every compiled function by value, seven words for each
array; with the fifty arrays of a store that makes compiling ten times slower and calls dearer. A
record is passed as the address of a block of (address, length) pairs, and a field becomes an array
only if it is used. The arrays of a record are fixed when it is made.

    @record
    class EnqueuePut:
        thread: ServiceThread
        scratch: Bytes
        linked_index: int = 0
        asked: Annotated[int, LINE, SHARED] = 0

An `int` is a word of the record's own memory, which begins and ends with a cache line, so that
records with different writers never share one; with `LINE` it begins another. Kernels and Python
write `world.enqueue_put.linked_index += 1`. What another thread reads without a common lock is
written with `publish`, read with `observe`. `own` says who may write an instance's words: if
kernels are interpreted, a write by anyone else raises. A `SHARED` word is written by several, in
kernels only by `publish`, `exchange_word` and `add_to_word`.

Interpreted kernels see the Python object itself: its attributes are the arrays, and properties over
the words.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from timerstore.jit.guards import Lock
from timerstore.jit.kernel import INTERPRETED, inlined, instruction
from timerstore.jit.later import Instruction

# --- Who is acting: what an owned record asks before it lets itself be written, or a log be read.
#
# A service is not a thread: the thread that holds its token runs its step. So a step says at its
# begin whose it is (`act_as`), and so does Python when it answers a service's need, flushes, or has
# a store to itself (`acting_as`). Compiled kernels neither say nor ask; interpreted ones do, so
# that the tests prove the table of writers, and that nobody looks into a log whose maps may go
# meanwhile.

ALONE: Final = -1
"""Nothing else runs in the store: everything may be written."""
CALLER: Final = -2
"""A thread that called the store; this holds if nothing else is said."""


class _Actor(threading.local):
    who: int = CALLER
    is_stepping: bool = False

    def __init__(self) -> None:
        self.readings: list[object] = []


_actor = _Actor()


def _act_as_twin(who: int) -> int:
    before, _actor.who = _actor.who, who
    return before


def _step_as_twin(who: int) -> int:
    _actor.is_stepping = who >= 0
    return _act_as_twin(who)


@inlined
def _act_as_nobody(who: int) -> int:
    return who


act_as = _act_as_twin if INTERPRETED else _act_as_nobody
"""act_as(who): in a kernel, say who acts from here on; return who did before."""
step_as = _step_as_twin if INTERPRETED else _act_as_nobody
"""step_as(who): the same at the begin of a service's step, or with what it returned at its end."""


@contextmanager
def acting_as(who: int) -> Iterator[None]:
    """Say in Python who acts within the block."""
    before, _actor.who = _actor.who, who
    was_stepping, _actor.is_stepping = _actor.is_stepping, False
    try:
        yield
    finally:
        _actor.who, _actor.is_stepping = before, was_stepping


def may_write(owners: frozenset[int]) -> bool:
    """Tell whether who acts is one of `owners`, or alone."""
    who = _actor.who
    return who in owners or who == ALONE


def actor() -> int:
    """Return who acts."""
    return _actor.who


def begin_reading(table: object) -> None:
    """Say that this thread keeps what it finds in a log's table, until `end_reading`."""
    if INTERPRETED:
        _actor.readings.append(table)


def end_reading(table: object) -> None:
    """Take it back."""
    if INTERPRETED and table in _actor.readings:
        _actor.readings.remove(table)


def may_look(table: object) -> bool:
    """Tell whether who acts keeps what it finds in a table that others change: see blocks.py."""
    return _actor.is_stepping or _actor.who == ALONE or table in _actor.readings


# --- Records themselves.

READ_ONLY: Final = "an array that may not be written"
TWO_AXES: Final = "an array of rows"


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
_ITEMS: Final = (Words, Int32s, Bytes)


def read_only(array: Bytes) -> Bytes:
    """Return a view that may not be written: another type to Numba, the one that kernels take."""
    view = array.view()
    view.flags.writeable = False
    return view


LINE: Final = "begins a cache line"
SHARED: Final = "written by several, atomically"
_LINE_WORDS: Final = 8
_by_address: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All records, if kernels are interpreted and an address has to lead to the Python object."""
_RESERVED: Final = frozenset({"block", "block_address", "cells", "owners"})


class NotTheOwnerError(AssertionError):
    """A word was written by one who does not own it."""


class Word(NamedTuple):
    """An integer field: its place in the record's own memory."""

    place: int
    shared: bool


class Layout:
    """The fields of a record class with their place in the block."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any], ...]) -> None:
        """`fields`: (name, what an array holds, the layout of a record within, or Word)."""
        self.fields = fields
        self.places: dict[str, tuple[Any, int]] = {}
        self.words = {field: kind for field, kind in fields if isinstance(kind, Word)}
        place = 2 if self.words else 0  # the record's own memory comes first
        for field, kind in fields:
            if not isinstance(kind, Word):
                self.places[field] = kind, place
                place += kind.length if isinstance(kind, Layout) else 2
        self.length: int = place
        # A digest stands for the fields: the name is part of every symbol that takes a record.
        text = ", ".join(f"{n}: {getattr(k, 'name', k)}" for n, k in fields)
        self.name = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def __repr__(self) -> str:
        return self.name


@dataclass_transform()
def record(cls: type[T]) -> type[T]:
    """Make an annotated class a record; its constructor takes the fields in order or by name."""
    hints = get_type_hints(cls, include_extras=True)
    assert not _RESERVED & set(hints), cls
    fields = _fields(hints)
    kind = Layout(cls.__name__, fields)
    names = tuple(hints)
    word_count = _rounded(max((word.place + 1 for word in kind.words.values()), default=0))
    defaults = np.zeros(word_count, np.int64)
    for name, word in kind.words.items():
        defaults[word.place] = getattr(cls, name, 0)
    parts = [
        (name, None if isinstance(field, Layout) else field)
        for name, field in fields
        if not isinstance(field, Word)
    ]

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        values: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names) or not kind.places.keys() <= values.keys() <= set(names):
            raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
        block: list[int] = []
        self.owners = None
        if word_count:
            memory = aligned(word_count)
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
    cls.layout = kind  # type: ignore[attr-defined]
    for name, word in kind.words.items():
        setattr(cls, name, _word_property(f"{cls.__name__}.{name}", word))
    return cls


def own(record: T, *owners: int) -> T:
    """Let only these write a record's words, see `act_as`; return it."""
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
            fields.append((name, Word(words, SHARED in marks)))
            words += 1
        else:
            fields.append((name, _kind(hint)))
    return tuple(fields)


def _kind(hint: Any) -> Any:
    if hint in _ITEMS:
        return np.dtype(get_args(get_args(hint)[1])[0])
    return hint.layout


def _rounded(words: int) -> int:
    return -(-words // _LINE_WORDS) * _LINE_WORDS


def aligned(words: int) -> Words:
    """Return zeros that begin with a cache line."""
    room = np.zeros(words + _LINE_WORDS, np.int64)
    skipped = -room.ctypes.data % (8 * _LINE_WORDS) // 8
    return room[skipped : skipped + words]


def _word_property(name: str, word: Word) -> property:
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


_one_at_a_time = Lock()


@instruction("recordtype.observe")
def observe(record: Any, name: str) -> int:
    """Load a word with acquire order: `observe(record, "field")`. Python reads the attribute."""
    return int(getattr(record, name))


@instruction("recordtype.publish")
def publish(record: Any, name: str, value: int) -> None:
    """Store a word with release order. Python sets the attribute."""
    setattr(record, name, value)


@instruction("recordtype.changer", "xchg")
def exchange_word(record: Any, name: str, value: int) -> int:
    """Store a word, and return what stood there; a full fence."""
    with _one_at_a_time.guard():
        before = int(getattr(record, name))
        setattr(record, name, value)
        return before


@instruction("recordtype.changer", "add")
def add_to_word(record: Any, name: str, value: int) -> int:
    """Add to a word, and return what stood there; a full fence."""
    with _one_at_a_time.guard():
        before = int(getattr(record, name))
        if value:  # a caller that wants a fence adds nought
            setattr(record, name, before + value)
        return before


def record_at(kind: Any) -> Any:
    """Return what kernels turn an address, a record's `block_address`, into that record with."""

    def twin(address: int) -> Any:
        return _by_address[address]

    return twin if INTERPRETED else Instruction("recordtype.at_address", kind)


# --- Tables: records whose fields are columns of one length.
#
#     @record
#     class Units(Table):
#         offset: Words
#         message: Words
#
#     units = Units.room(1000)
#     count = read(units)            # the kernel writes units.offset[i], units.message[i]
#     late = units[:count]           # a table again: its columns are views
#     late[late.offset > 7].message  # and here copies
#
# A table that extends another has its columns first.

_APART_WORDS: Final = 72
"""Columns of a power of two would share the few places that a cache has for such addresses."""


class Table:
    """What tables of columns have in common."""

    @classmethod
    def room(cls, count: int) -> Self:
        """Return a table of zeros, to which kernels write; one piece of memory."""
        names: list[str] = cls.columns()
        memory = np.zeros((len(names), count + _APART_WORDS), np.int64)
        return cls(*(row[:count] for row in memory))

    @classmethod
    def columns(cls) -> list[str]:
        """Return the names of the columns, in order."""
        kind: Any = cls
        return list(kind.layout.places)

    def __len__(self) -> int:
        count: int = len(getattr(self, self.columns()[0]))
        return count

    def __getitem__(self, which: Any) -> Self:
        """Return some rows: of a slice as views, of bool[n] or indexes as copies. O(columns).

        Of an index one row, whose columns are numbers.
        """
        made = object.__new__(type(self))
        for name in self.columns():
            setattr(made, name, getattr(self, name)[which])
        return made

    def __setitem__(self, which: Any, rows: Self) -> None:
        """Replace some rows. O(columns + rows)."""
        for name in self.columns():
            getattr(self, name)[which] = getattr(rows, name)

    def __iter__(self) -> Iterator[Self]:
        """Yield each row, whose columns are numbers: for the few that are looked at one by one."""
        for i in range(len(self)):
            yield self[i]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Make what kernels receive when one does: most tables of some rows are Python's."""
            if name != "block_address":
                raise AttributeError(f"{type(self).__name__} has no {name}")
            if "whole" not in self.__dict__:
                columns = [getattr(self, each) for each in self.columns()]
                self.__dict__.setdefault("whole", type(self)(*columns))
            return self.whole.block_address
