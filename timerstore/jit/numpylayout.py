"""How NumPy lays out an array in memory, for code that takes arguments without Numba.

NumPy promises these fields to extensions, in its versions 1 and 2. They are looked at here all the
same, with arrays whose fields are known: if anything is in another place, no kernel is called. So
it is with CPython's bytes, texts and tuples, which `objects.py` reads.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import numpy as np

OBJECT_TYPE_AT: Final = 8
ARRAY_DATA_AT: Final = 16
ARRAY_NDIM_AT: Final = 24
ARRAY_SHAPE_AT: Final = 32
ARRAY_DESCR_AT: Final = 56
ARRAY_FLAGS_AT: Final = 64
DESCR_BYTE_ORDER_AT: Final = 26
DESCR_NUMBER_AT: Final = 28
BIG_ENDIAN: Final = ord(">")
IS_C_CONTIGUOUS, IS_ALIGNED, IS_WRITEABLE = 0x1, 0x100, 0x400
NUMBERS: Final = {"bool": (0,), "int8": (1,), "uint8": (2,), "int32": (5,), "int64": (7, 9)}
"""What NumPy counts as which type; int64 is a long and a long long."""
OBJECT_LENGTH_AT: Final = 16
BYTES_DATA_AT: Final = 32
TEXT_DATA_AT: Final = sys.getsizeof("") - 1
"""Where the characters of an ASCII text begin: another place in 3.11 than later."""
TEXT_STATE_AT: Final = 32
TEXT_STATE_MASK: Final = 0x7C
"""Size of a character, whether its data stand behind it, whether all are ASCII."""
TEXT_IS_ASCII: Final = 0x64
TUPLE_ITEMS_AT: Final = tuple.__basicsize__
NDARRAY_SYMBOL: Final = "timerstore_ndarray"
"""The variable of a packed library that holds the address of NumPy's class of arrays."""


def layout_holds() -> bool:
    """Look at some arrays as that code would."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little":
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)() or object.__basicsize__ != 16:
        return False
    return _are_objects_laid_out() and all(map(_is_laid_out, _samples()))


def _are_objects_laid_out() -> bool:
    data = b"timerstore" * 3
    text, items = data.decode(), (data,)  # kept while they are read
    if not (_has(data, bytes, BYTES_DATA_AT, data) and _has(text, str, TEXT_DATA_AT, data)):
        return False
    if ctypes.c_int64.from_address(id(items) + TUPLE_ITEMS_AT).value != id(data):
        return False
    return _is_ascii(text) and not any(map(_is_ascii, ("é", "€" * 30)))


def _has(value: bytes | str, kind: type, data_at: int, data: bytes) -> bool:
    """Tell whether an object of a kind has its data at a place, one byte behind, and no more."""
    if sys.getsizeof(value) != data_at + len(data) + 1:
        return False
    places = (id(value) + OBJECT_TYPE_AT, id(value) + OBJECT_LENGTH_AT)
    said = [ctypes.c_int64.from_address(each).value for each in places]
    return (
        said == [id(kind), len(data)] and ctypes.string_at(id(value) + data_at, len(data)) == data
    )


def _is_ascii(text: str) -> bool:
    state = ctypes.c_uint8.from_address(id(text) + TEXT_STATE_AT).value
    return state & TEXT_STATE_MASK == TEXT_IS_ASCII


def _samples() -> list[Any]:
    words = np.zeros((3, 5), np.int64)
    sealed = np.zeros(7, np.uint8)
    sealed.flags.writeable = False
    others = [np.zeros(2, each) for each in (np.bool_, np.int32, np.longlong, ">i8")]
    return [words, words[:, 1], sealed, *others]


def _is_laid_out(array: Any) -> bool:
    at = id(array)
    kind = array.dtype
    shape = ctypes.c_int64 * array.ndim
    flags = ctypes.c_int32.from_address(at + ARRAY_FLAGS_AT).value
    said = (
        bool(flags & IS_C_CONTIGUOUS),
        bool(flags & IS_ALIGNED),
        bool(flags & IS_WRITEABLE),
        ctypes.c_int64.from_address(at + OBJECT_TYPE_AT).value,
        ctypes.c_int64.from_address(at + ARRAY_DATA_AT).value,
        ctypes.c_int32.from_address(at + ARRAY_NDIM_AT).value,
        ctypes.c_int64.from_address(at + ARRAY_DESCR_AT).value,
    )
    known = (
        array.flags.c_contiguous,
        array.flags.aligned,
        array.flags.writeable,
        id(np.ndarray),
        array.ctypes.data,
        array.ndim,
        id(kind),
    )
    if said != known:
        return False
    lengths = ctypes.c_int64.from_address(at + ARRAY_SHAPE_AT).value
    return (
        tuple(shape.from_address(lengths)) == array.shape
        and ctypes.c_int32.from_address(id(kind) + DESCR_NUMBER_AT).value == kind.num
        and chr(ctypes.c_uint8.from_address(id(kind) + DESCR_BYTE_ORDER_AT).value) == kind.byteorder
        and (kind.byteorder == ">" or kind.num in NUMBERS[kind.name])
    )
