"""The table of a log's segments, by which kernels find a byte.

Two columns say where segment `number = offset // segment_bytes` is mapped; more say which of its
bytes can be written to. Only `SegmentedFile` (segments.py) tells it what is mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from timerstore.jit.intrinsics import load_acquire, prefetch, store_release, view_bytes
from timerstore.jit.kernel import INTERPRETED, inlined, inlined_view, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.mapping import PAGE_BYTES, Lent, lend, lent_bytes, new_lent, publish_at
from timerstore.jit.record import Bytes, Words, may_look, record
from timerstore.jit.system import is_resident, open_pages, read_ahead

TABLE_LENGTH: Final = 1 << 16
"""Segments that a table can tell apart; the open maps are far fewer."""

APRON_BYTES_MAX: Final = 64 << 10
ALL_ZEROED: Final = 1 << 62
_MESSAGE_BYTES: Final = 384
MESSAGES_AHEAD: Final = 6
"""So many messages that lie anywhere are asked for before they are read."""


def apron_bytes(segment_bytes: int) -> int:
    """Return how much behind the log's end is zeros, also in a segment that is used again.

    So a reader that goes on, also a broker, finds the end. See `append.py`. A small segment has
    less.
    """
    return min(APRON_BYTES_MAX, segment_bytes // 8)


@record
class SegmentTable:
    """Where segments are mapped; kernels index it with `number % TABLE_LENGTH`."""

    lent: Lent  # TABLE_LENGTH of them
    number: Words  # int64[TABLE_LENGTH], −1 if nothing is mapped
    zeroed: Words  # int64[TABLE_LENGTH]: up to this offset a segment is zeros behind the log's end
    allocated: Words  # int64[TABLE_LENGTH]: up to this offset a segment's blocks are allocated
    opened: Words  # int64[TABLE_LENGTH]: up to this offset its pages were opened lately
    segment_bytes: int = 0
    end: int = 0
    """The append position. Written by the one appender, with release order."""
    apron: int = 0
    """`apron_bytes`."""
    is_shared: int = 0
    """1: maps are dropped while kernels look at them; such kernels are readers, see blocks.py."""


def new_segment_table(
    segment_bytes: int, length: int = TABLE_LENGTH, apron: int = 0
) -> SegmentTable:
    """Return a table with `length` places, in which nothing is mapped yet."""
    return SegmentTable(
        new_lent(length),
        np.full(length, -1, np.int64),
        np.full(length, ALL_ZEROED, np.int64),
        np.zeros(length, np.int64),
        np.zeros(length, np.int64),
        segment_bytes=segment_bytes,
        apron=apron,
    )


def enter_segment(table: SegmentTable, number: int, view: Bytes) -> None:
    """Let kernels find a segment, whose map the caller keeps."""
    slot = number % len(table.number)
    lend(table.lent, slot, view)
    publish_at(table.number, slot, number)


@inlined_view
def segment_at(table: SegmentTable, offset: int) -> Any:
    """Return the uint8 view of the segment that holds `offset`; of length 0 if unmapped."""
    segment_bytes = table.segment_bytes
    number = offset // segment_bytes
    slot = number & (TABLE_LENGTH - 1)
    if offset < 0 or load_acquire(table.number, slot) != number:
        return view_bytes(0, 0)
    return lent_bytes(table.lent, slot, segment_bytes)


def _checked(look: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse who does not keep what is found; interpreted kernels ask, compiled ones do not."""

    def segment_at(table: SegmentTable, offset: int) -> Any:
        assert not table.is_shared or may_look(table), "call this kernel inside `reading`"
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
        at = offset % table.segment_bytes
        for line in range(0, _MESSAGE_BYTES, 64):
            prefetch(buf, at + line)


@inlined
def ask_for(segment: Bytes, at: int, count: int, pages: Bytes) -> bool:
    """Tell whether bytes of a segment are in memory; have the system read them if not.

    It does not wait for them. `pages`: scratch, see `is_resident`.
    """
    count = min(count, len(segment) - at)
    if is_resident(segment, at, count, pages):
        return True
    read_ahead(segment, at, count)
    return False


@inlined
def can_write(table: SegmentTable, offset: int, stop: int) -> bool:
    """Have bytes from `offset` to `stop`, in one segment, writable; False if they are not.

    Who appends to a log calls it, with rising offsets. A page of a segment that has all its blocks
    is just written to. In any other the system is asked to open it, once between two ticks of the
    flush thread: as long as it is dirty it stays in the page cache as it is.
    """
    segment_bytes = table.segment_bytes
    number = offset // segment_bytes
    slot, first = number & (TABLE_LENGTH - 1), number * segment_bytes
    if offset < 0 or load_acquire(table.number, slot) != number:
        return False
    allocated: int = load_acquire(table.allocated, slot)
    if stop > allocated:
        return False
    if stop > load_acquire(table.opened, slot) and allocated != first + segment_bytes:
        segment = lent_bytes(table.lent, slot, segment_bytes)
        if not open_pages(segment, offset - first, stop - offset):
            return False
        table.opened[slot] = first + (stop - first + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
    return True


@inlined
def can_close(table: SegmentTable, end: int, blank_bytes: int) -> bool:
    """Have a blank writable at the end of a segment that what comes next does not fit into."""
    segment_bytes = table.segment_bytes
    position = end % segment_bytes
    return position == 0 or can_write(table, end, end + min(blank_bytes, segment_bytes - position))


@inlined
def write_stop(table: SegmentTable, offset: int) -> int:
    """Return the offset up to which an append at `offset` can write without asking."""
    segment_bytes = table.segment_bytes
    number = offset // segment_bytes
    slot = number & (TABLE_LENGTH - 1)
    if load_acquire(table.number, slot) != number:
        return 0
    allocated: int = load_acquire(table.allocated, slot)
    if allocated == (number + 1) * segment_bytes:
        return allocated
    opened: int = load_acquire(table.opened, slot)
    return min(allocated, opened)


@kernel_ahead
def leave(table: SegmentTable, lock: Words, number: int, reach_bytes: int) -> bool:
    """Have nobody find a segment any more that begins well behind the log's end; did it?

    Under the append lock: the next append finds that it is missing, and has it made.
    """
    lock_acquire(lock)
    slot, start = number & (TABLE_LENGTH - 1), number * table.segment_bytes
    is_far = start > table.end + reach_bytes
    if is_far and table.number[slot] == number:
        store_release(table.number, slot, -1)
    lock_release(lock)
    return is_far
