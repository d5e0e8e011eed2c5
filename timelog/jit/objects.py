"""Reading the bytes objects of CPython in a kernel, without a call for each.

A bytes object's length and data stand at fixed places behind its address. That is an internal of
CPython, so it is checked here at import; if it does not hold, Arrow converts instead.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import numpy as np

from timerstore.timelog.jit.intrinsics import get_word, view_bytes, view_words
from timerstore.timelog.jit.kernel import INTERPRETED, kernel_ahead
from timerstore.timelog.jit.record import Words

BYTES_DATA_AT: Final = bytes.__basicsize__ - 1
_TUPLE_ITEMS_AT: Final = tuple.__basicsize__
Int64s = np.ndarray[Any, np.dtype[np.int64]]


def layout_holds() -> bool:
    """Look at one bytes object and one tuple as `read_bytes_objects` would."""
    if sys.implementation.name != "cpython" or INTERPRETED or not hasattr(sys, "getrefcount"):
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    sample = b"timerstore" * 3
    words = (ctypes.c_int64 * 3).from_address(id(sample))
    data = ctypes.string_at(id(sample) + BYTES_DATA_AT, len(sample))
    items = (sample,)  # kept while it is read
    item = ctypes.c_int64.from_address(id(items) + _TUPLE_ITEMS_AT).value
    return words[1:] == [id(bytes), len(sample)] and data == sample and item == id(sample)


OBJECTS_ARE_READABLE: Final = layout_holds()


@kernel_ahead
def _read_objects(items: int, kind: int, address: Words, length: Words) -> int:
    """Fill address and length of each bytes object; return the first that is none, or n."""
    objects = view_words(items, len(address))
    for i in range(len(address)):
        header = view_bytes(objects[i], 24)
        if get_word(header, 8) != kind:
            return i
        address[i] = objects[i] + 32
        length[i] = get_word(header, 16)
    return len(address)


def address_of(data: bytes) -> int:
    """Return the address of an object's bytes; the caller keeps the object. 60 ns."""
    if OBJECTS_ARE_READABLE:
        return id(data) + BYTES_DATA_AT
    return np.frombuffer(data, np.uint8).ctypes.data


def read_bytes_objects(values: tuple[Any, ...]) -> tuple[Int64s, Int64s] | None:
    """Return address and length of each bytes object; None if one is of another type.

    None as well if no store was opened: a client does without the kernel. The caller keeps the
    tuple for as long as it uses the addresses. O(n), 5 ns each.
    """
    if not getattr(_read_objects, "is_at_hand", True):
        return None
    address, length = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    if _read_objects(id(values) + _TUPLE_ITEMS_AT, id(bytes), address, length) < len(values):
        return None
    return address, length


assert BYTES_DATA_AT == 32 or not OBJECTS_ARE_READABLE
