"""Reading CPython's own objects in a kernel, without a call for each: bytes, ASCII texts.

Length and data of such an object stand at fixed places behind its address. That is an internal of
CPython, so it is checked here at import; if it does not hold, Python or Arrow converts instead.

A wheel's kernels are compiled by one Python and called by others. So a kernel names only places
that all of them have, as plain numbers. Where they differ, its caller says the place.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import get_u8, get_word, prefetch, view_bytes, view_words
from timerstore.jit.kernel import INTERPRETED, inlined_view, kernel_ahead
from timerstore.jit.record import Bytes, Words

_KIND_AT: Final = 8
_LENGTH_AT: Final = 16
_BYTES_DATA_AT: Final = 32
_STATE_AT: Final = 32  # of a text
_STATE_MASK: Final = 0x7C  # size of a character, whether its data stand behind it, whether ASCII
_ASCII: Final = 0x64
_ANY_STATE: Final = -1  # of an object that has none
TEXT_DATA_AT: Final = sys.getsizeof("") - 1
"""Where the characters of an ASCII text begin: another place in 3.11 than later."""
_TUPLE_ITEMS_AT: Final = tuple.__basicsize__
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


def layout_holds() -> bool:
    """Look at a bytes object, a tuple and some texts as `read_objects` would."""
    if sys.implementation.name != "cpython" or INTERPRETED or not hasattr(sys, "getrefcount"):
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    data = b"timerstore" * 3
    text, items = data.decode(), (data,)  # kept while they are read
    if not (_has(data, bytes, _BYTES_DATA_AT, data) and _has(text, str, TEXT_DATA_AT, data)):
        return False
    if ctypes.c_int64.from_address(id(items) + _TUPLE_ITEMS_AT).value != id(data):
        return False
    return _state_of(text) == _ASCII and all(_state_of(each) != _ASCII for each in ("é", "€" * 30))


def _has(value: bytes | str, kind: type, data_at: int, data: bytes) -> bool:
    """Tell whether an object of a kind has its data at a place, one byte behind, and no more."""
    if sys.getsizeof(value) != data_at + len(data) + 1:
        return False
    kind_at, length_at = id(value) + _KIND_AT, id(value) + _LENGTH_AT
    said = ctypes.c_int64.from_address(kind_at).value, ctypes.c_int64.from_address(length_at).value
    return (
        said == (id(kind), len(data)) and ctypes.string_at(id(value) + data_at, len(data)) == data
    )


def _state_of(text: str) -> int:
    return ctypes.c_uint8.from_address(id(text) + _STATE_AT).value & _STATE_MASK


OBJECTS_ARE_READABLE: Final = layout_holds()
OBJECTS_CAN_BE_GIVEN: Final = OBJECTS_ARE_READABLE or INTERPRETED
"""Whether a kernel may be given the address of an object, see `object_at`."""


@kernel_ahead
def _read_objects(
    items: int, kind: int, state: int, data_at: int, address: Words, length: Words
) -> int:
    """Fill address and length of each object of a kind; return the first of another, or n."""
    objects = view_words(items, len(address))
    for i in range(len(address)):
        if i + _OBJECTS_AHEAD < len(address):  # they may be anywhere in memory
            prefetch(view_bytes(objects[i + _OBJECTS_AHEAD], 64), 0)
        header = view_bytes(objects[i], _STATE_AT + 1)
        if get_word(header, _KIND_AT) != kind:
            return i
        if state != _ANY_STATE and get_u8(header, _STATE_AT) & _STATE_MASK != state:
            return i
        address[i] = objects[i] + data_at
        length[i] = get_word(header, _LENGTH_AT)
    return len(address)


object_at: Final = id
"""Return the address of an object; the caller keeps the object."""


@inlined_view
def ascii_at(text: int, kind: int, data_at: int, count: int) -> Any:
    """Return the characters of the object at an address, if it is a text of `count`, all ASCII.

    Else a view of length 0. `kind`: the address of `str`; `data_at`: TEXT_DATA_AT. Only where
    OBJECTS_CAN_BE_GIVEN.
    """
    header = view_bytes(text, _STATE_AT + 1)
    if get_word(header, _KIND_AT) != kind or get_word(header, _LENGTH_AT) != count:
        return view_bytes(0, 0)
    if get_u8(header, _STATE_AT) & _STATE_MASK != _ASCII:
        return view_bytes(0, 0)
    return view_bytes(text + data_at, count)


@inlined_view
def bytes_at(data: int, kind: int) -> Any:
    """Return the content of the object at an address, if it is `bytes`; else a view of length 0.

    `kind`: the address of `bytes`. Only where OBJECTS_CAN_BE_GIVEN.
    """
    header = view_bytes(data, _BYTES_DATA_AT)
    if get_word(header, _KIND_AT) != kind:
        return view_bytes(0, 0)
    return view_bytes(data + _BYTES_DATA_AT, get_word(header, _LENGTH_AT))


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
    asked for its hash. `data_at`: TEXT_DATA_AT. Only where OBJECTS_ARE_READABLE.
    """
    return view_bytes(text + data_at, count)


def address_of(data: bytes) -> int:
    """Return the address of an object's bytes; the caller keeps the object. 60 ns."""
    if OBJECTS_ARE_READABLE:
        return id(data) + _BYTES_DATA_AT
    return np.frombuffer(data, np.uint8).ctypes.data


def read_objects(values: tuple[Any, ...], kind: type[bytes | str] = bytes) -> Pieces | None:
    """Return what each bytes object, or each text, holds; None if one is neither.

    `kind`: bytes, or str for texts that are ASCII. None as well if no store was opened: a client
    does without the kernel. The caller keeps the tuple. O(n), 5 ns each.
    """
    if not OBJECTS_ARE_READABLE or not getattr(_read_objects, "is_at_hand", True):
        return None
    found = Pieces(np.empty(len(values), np.int64), np.empty(len(values), np.int64))
    state, data_at = (_ANY_STATE, _BYTES_DATA_AT) if kind is bytes else (_ASCII, TEXT_DATA_AT)
    items = id(values) + _TUPLE_ITEMS_AT
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
