"""Reading CPython's own objects in a kernel, without a call for each: bytes, ASCII texts.

Length and data of such an object stand at fixed places behind its address. That is an internal of
CPython, so it is checked before any kernel is called (`numpylayout.py`).

A wheel's kernels are compiled by one Python and called by others. So a kernel names only places
that all of them have, as plain numbers. Where they differ, its caller says the place.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import get_u8, get_word, prefetch, view_bytes, view_words
from timerstore.jit.kernel import INTERPRETED, inlined_view, kernel_ahead
from timerstore.jit.numpylayout import (
    BYTES_DATA_AT,
    OBJECT_LENGTH_AT,
    OBJECT_TYPE_AT,
    TEXT_DATA_AT,
    TEXT_IS_ASCII,
    TEXT_STATE_AT,
    TEXT_STATE_MASK,
    TUPLE_ITEMS_AT,
)
from timerstore.jit.record import Bytes, Words

_ANY_STATE: Final = -1  # of an object that has none
_OBJECTS_AHEAD: Final = 8


class Pieces(NamedTuple):
    """Byte strings, n of them, that lie anywhere. Who has this keeps what owns their memory."""

    address: Words  # int64[n]
    length: Words  # int64[n]


NO_PIECES: Final = Pieces(np.zeros(0, np.int64), np.zeros(0, np.int64))


@inlined_view
def piece(pieces: Pieces, i: int) -> Any:
    """Return one of them: uint8[length]."""
    return view_bytes(pieces.address[i], pieces.length[i])


@kernel_ahead
def _read_objects(
    items: int, kind: int, state: int, data_at: int, address: Words, length: Words
) -> int:
    """Fill address and length of each object of a kind; return the first of another, or n."""
    objects = view_words(items, len(address))
    for i in range(len(address)):
        if i + _OBJECTS_AHEAD < len(address):  # they may be anywhere in memory
            prefetch(view_bytes(objects[i + _OBJECTS_AHEAD], 64), 0)
        header = view_bytes(objects[i], TEXT_STATE_AT + 1)
        if get_word(header, OBJECT_TYPE_AT) != kind:
            return i
        if state != _ANY_STATE and get_u8(header, TEXT_STATE_AT) & TEXT_STATE_MASK != state:
            return i
        address[i] = objects[i] + data_at
        length[i] = get_word(header, OBJECT_LENGTH_AT)
    return len(address)


object_at: Final = id
"""Return the address of an object; the caller keeps the object."""


@inlined_view
def ascii_at(text: int, kind: int, data_at: int, count: int) -> Any:
    """Return the characters of the object at an address, if it is a text of `count`, all ASCII.

    Else a view of length 0. `kind`: the address of `str`; `data_at`: TEXT_DATA_AT.
    """
    header = view_bytes(text, TEXT_STATE_AT + 1)
    if get_word(header, OBJECT_TYPE_AT) != kind or get_word(header, OBJECT_LENGTH_AT) != count:
        return view_bytes(0, 0)
    if get_u8(header, TEXT_STATE_AT) & TEXT_STATE_MASK != TEXT_IS_ASCII:
        return view_bytes(0, 0)
    return view_bytes(text + data_at, count)


@inlined_view
def bytes_at(data: int, kind: int) -> Any:
    """Return the content of the object at an address, if it is `bytes`; else a view of length 0.

    `kind`: the address of `bytes`.
    """
    header = view_bytes(data, BYTES_DATA_AT)
    if get_word(header, OBJECT_TYPE_AT) != kind:
        return view_bytes(0, 0)
    return view_bytes(data + BYTES_DATA_AT, get_word(header, OBJECT_LENGTH_AT))


if INTERPRETED:

    def _object(address: int) -> Any:
        return ctypes.cast(int(address), ctypes.py_object).value

    def ascii_at(text: int, kind: int, data_at: int, count: int) -> Any:  # noqa: D103
        found = _object(text)
        is_such = type(found) is _object(kind) and len(found) == count and found.isascii()
        return np.frombuffer(found.encode() if is_such else b"", np.uint8)

    def bytes_at(data: int, kind: int) -> Any:  # noqa: D103
        found = _object(data)
        return np.frombuffer(found if type(found) is _object(kind) else b"", np.uint8)


@inlined_view
def new_ascii_at(text: int, data_at: int, count: int) -> Any:
    """Return the characters of a text at an address, to be written.

    It is ASCII, of `count` characters; only the caller has it, who keeps the GIL, and nobody has
    asked for its hash. `data_at`: TEXT_DATA_AT.
    """
    return view_bytes(text + data_at, count)


def address_of(data: bytes) -> int:
    """Return the address of an object's bytes; the caller keeps the object. 60 ns."""
    return id(data) + BYTES_DATA_AT


def read_objects(values: tuple[Any, ...], kind: type[bytes | str] = bytes) -> Pieces | None:
    """Return what each bytes object, or each text, holds; None if one is neither.

    `kind`: bytes, or str for texts that are ASCII. None as well if no store was opened: a client
    does without the kernel. The caller keeps the tuple. O(n), 5 ns each.
    """
    if INTERPRETED or not getattr(_read_objects, "is_at_hand", True):
        return None
    found = Pieces(np.empty(len(values), np.int64), np.empty(len(values), np.int64))
    state, data_at = (_ANY_STATE, BYTES_DATA_AT) if kind is bytes else (TEXT_IS_ASCII, TEXT_DATA_AT)
    items = id(values) + TUPLE_ITEMS_AT
    done = _read_objects(items, id(kind), state, data_at, *found)
    return found if done == len(values) else None


def rows_read(rows: Bytes) -> Pieces:
    """Return the rows of a C-contiguous uint8[n, k], which the caller keeps. O(n)."""
    count, length = rows.shape
    at = length * np.arange(count, dtype=np.int64)
    return Pieces(rows.ctypes.data + at, np.full(count, length, np.int64))


def arrow_read(values: Any, *, large: bool) -> Pieces:
    """Return what an Arrow array of binary or text holds, which the caller keeps. O(n).

    `large`: its offsets have 64 bits.
    """
    _, offsets, data = values.buffers()
    ends = np.zeros(1, np.int64)
    if len(values):
        ends = np.frombuffer(offsets, np.int64 if large else np.int32)
        ends = ends[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return Pieces(ends[:-1] + (data.address if data is not None else 0), np.diff(ends))
