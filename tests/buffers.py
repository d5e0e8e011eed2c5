"""Memory that a test owns, as kernels want it: buffers, tables of segments."""

import ctypes
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from timerstore.timelog.files.segmenttable import (
    TABLE_LENGTH,
    SegmentTable,
    apron_bytes,
    enter_segment,
    new_segment_table,
)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Guarded:
    """Memory that ends where nothing may be read: the page behind it cannot be touched.

    A kernel that reads past the end ends the test run, whether or not it checks bounds.
    """

    def __init__(self, length_max: int) -> None:
        pages = -(-length_max // mmap.PAGESIZE)
        self._map = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        self.whole = whole = np.frombuffer(self._map, np.uint8)
        """With the page behind it, as a map of a file has holes that nobody may read."""
        self._room: Bytes = whole[: pages * mmap.PAGESIZE]
        libc = ctypes.CDLL(None, use_errno=True)
        address = whole.ctypes.data + pages * mmap.PAGESIZE
        done = libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0)
        assert done == 0, ctypes.get_errno()

    def hold(self, data: bytes) -> Bytes:
        """Return `data` as a uint8 array whose end is the end of the memory."""
        view = self._room[len(self._room) - len(data) :]
        view[:] = np.frombuffer(data, np.uint8)
        return view


def as_array(data: bytes) -> Bytes:
    """A writable uint8 array of these bytes."""
    return np.frombuffer(data, np.uint8).copy()


def table_over(arrays: Mapping[int, Bytes], segment_bytes: int, end: int = 0) -> SegmentTable:
    """The table of segments, by number; each array is one segment."""
    table = new_segment_table(segment_bytes)
    table.apron = apron_bytes(segment_bytes)
    table.end = end
    for number, array in arrays.items():
        assert len(array) == segment_bytes
        enter_segment(table, number, array)
        table.allocated[number % TABLE_LENGTH] = (number + 1) * segment_bytes
    table.kept = arrays  # type: ignore[attr-defined]
    return table


def table_of(segments: Mapping[int, bytes], segment_bytes: int) -> SegmentTable:
    """The table of segments given as bytes by start offset, copied."""
    arrays = {begin // segment_bytes: as_array(data) for begin, data in segments.items()}
    return table_over(arrays, segment_bytes)
