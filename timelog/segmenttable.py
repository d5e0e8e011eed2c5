"""The table of a log's segments, by which kernels find a byte.

Two arrays say where segment `number = offset // segment_bytes` is mapped; more say which of its
bytes can be written to. Only `SegmentedFile` (segments.py) tells it what is mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from timerstore.timelog.acting import may_look
from timerstore.timelog.intrinsics import (
    load_acquire,
    prefetch,
    store_release,
    view_bytes,
)
from timerstore.timelog.kernel import INTERPRETED, inlined, inlined_view, kernel_ahead
from timerstore.timelog.locks import lock_acquire, lock_release
from timerstore.timelog.record import Words, record

TABLE_LENGTH: Final = 1 << 16
"""Segments that a table can tell apart; the open maps are far fewer."""

APRON_BYTES_MAX: Final = 64 << 10
ALL_ZEROED: Final = 1 << 62
_MESSAGE_BYTES: Final = 384
MESSAGES_AHEAD: Final = 6
"""So many messages that lie anywhere are asked for before they are read."""

# Words of a SegmentTable.
SEGMENT_BYTES: Final = 0
END: Final = 1
"""The append position. Written by the one appender, with release order."""
APRON: Final = 2
"""`apron_bytes`."""
IS_SHARED: Final = 3
"""1: maps are dropped while kernels look at them, so whoever looks is a reader, see epochs.py."""


def apron_bytes(segment_bytes: int) -> int:
    """Return how much behind the log's end is zeros, also in a segment that is used again.

    So whoever reads on, a broker too, finds the end. See `append.py`. A small segment has less.
    """
    return min(APRON_BYTES_MAX, segment_bytes // 8)


@record
class SegmentTable:
    """Where segments are mapped; kernels index it with `number % TABLE_LENGTH`."""

    words: Words  # int64[8], see the constants above
    address: Words  # int64[TABLE_LENGTH]
    number: Words  # int64[TABLE_LENGTH], −1 where nothing is mapped
    zeroed: Words  # int64[TABLE_LENGTH]: up to this offset a segment is zeros behind the log's end
    allocated: Words  # int64[TABLE_LENGTH]: up to this offset a segment's blocks are allocated


def new_segment_table(segment_bytes: int) -> SegmentTable:
    """Return a table of segments that are only read; nothing is mapped yet."""
    table = SegmentTable(
        np.zeros(8, np.int64),
        np.zeros(TABLE_LENGTH, np.int64),
        np.full(TABLE_LENGTH, -1, np.int64),
        np.full(TABLE_LENGTH, ALL_ZEROED, np.int64),
        np.zeros(TABLE_LENGTH, np.int64),
    )
    table.words[SEGMENT_BYTES] = segment_bytes
    return table


@inlined_view
def segment_at(table: SegmentTable, offset: int) -> Any:
    """Return the uint8 view of the segment that holds `offset`; of length 0 where unmapped."""
    segment_bytes = table.words[SEGMENT_BYTES]
    number = offset // segment_bytes
    slot = number & (TABLE_LENGTH - 1)
    if offset < 0 or load_acquire(table.number, slot) != number:
        return view_bytes(0, 0)
    return view_bytes(table.address[slot], segment_bytes)


def _checked(look: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse who does not keep what is found; interpreted kernels ask, compiled ones do not."""

    def segment_at(table: SegmentTable, offset: int) -> Any:
        assert not table.words[IS_SHARED] or may_look(table), "call this kernel inside `reading`"
        return look(table, offset)

    return segment_at


if INTERPRETED:
    segment_at = _checked(segment_at)


@inlined
def prefetch_message(table: SegmentTable, offset: int) -> None:
    """Ask for the cache lines of a message of usual size, which is read a little later.

    `offset`: any number.
    """
    buf = segment_at(table, offset)
    if len(buf) > 0:
        at = offset % table.words[SEGMENT_BYTES]
        for line in range(0, _MESSAGE_BYTES, 64):
            prefetch(buf, at + line)


@inlined
def is_allocated(table: SegmentTable, offset: int, stop: int) -> bool:
    """Tell whether the segment that `offset` lies in may be written to up to offset `stop`."""
    number = offset // table.words[SEGMENT_BYTES]
    slot = number & (TABLE_LENGTH - 1)
    if offset < 0 or load_acquire(table.number, slot) != number:
        return False
    allocated: int = load_acquire(table.allocated, slot)
    return stop <= allocated


@kernel_ahead
def leave(table: SegmentTable, lock: Words, number: int, reach_bytes: int) -> bool:
    """Have nobody find a segment any more that begins well behind the log's end; did it?

    Under the append lock: whoever appends later finds that it is missing, and has it made.
    """
    lock_acquire(lock)
    slot, start = number & (TABLE_LENGTH - 1), number * table.words[SEGMENT_BYTES]
    is_far = start > table.words[END] + reach_bytes
    if is_far and table.number[slot] == number:
        store_release(table.number, slot, -1)
    lock_release(lock)
    return is_far
