"""Capturing a checkpoint: cursors with copies of the wheel's dirty pages, in one kernel.

It takes and gives back the step lock without returning to Python in between, for a thread that
holds the lock and waits for the GIL makes every timer late that falls due meanwhile.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.services.levels import LEVEL_HELD_FROM
from timerstore.services.world import World
from timerstore.timelog.append import QUEUE_COUNT
from timerstore.timelog.intrinsics import copy_bytes, load_acquire
from timerstore.timelog.kernel import kernel
from timerstore.timelog.record import Bytes, Words
from timerstore.timelog.segments import END
from timerstore.timelog.system import lock_acquire, lock_release
from timerstore.wheel.near import SLOT_FIRST_COPY, slot_word
from timerstore.wheel.slots import PAGE_BYTES
from timerstore.wheel.state import CANCELLED_COUNT, CLAIMED, FRONTIER, LINKED, READ

_READ: Final = 0
_LINKED: Final = 1
_CLAIMED: Final = 2
_FRONTIER: Final = 3
_CANCELLED: Final = 4
_TIMERLOG_END: Final = 5
_COMMITLOG_END: Final = 6
_SCAN_FROM: Final = 7
_PAGES: Final = 8
_CURSORS: Final = 16
_SLACK: Final = 64


class Captured(NamedTuple):
    """What stood in an engine at one moment."""

    read_slot: int
    linked: int
    claimed_slot: int
    frontier_ms: int
    cancelled_count: int
    timerlog_end: int
    commitlog_end: int
    scan_from: int  # L, as far as this life's copies say
    next_index: Words
    level_offsets: Words
    runs: list[tuple[int, Bytes]]  # dirty pages: position in the wheel's file, content


@kernel
def _capture(
    world: Any, cursors: Any, next_index: Any, level_offsets: Any, numbers: Any, pages: Any
) -> bool:
    """Capture; False, with the count of dirty pages in `cursors`, where they do not fit."""
    words, near, wheel = world.words, world.near, world.wheel
    lock_acquire(world.step_lock)
    count = 0
    for page in range(len(wheel.dirty)):
        if wheel.dirty[page] != 0:
            count += 1
    cursors[_PAGES] = count
    if count > len(numbers):
        lock_release(world.step_lock)
        return False
    count = 0
    for page in range(len(wheel.dirty)):
        if wheel.dirty[page] != 0:
            copy_bytes(pages, count * PAGE_BYTES, wheel.slots, page * PAGE_BYTES, PAGE_BYTES)
            numbers[count] = page
            wheel.dirty[page] = 0
            count += 1
    for row in range(len(next_index)):
        next_index[row] = load_acquire(world.queues.next_index, row)
    for level in range(len(level_offsets)):
        level_offsets[level] = world.levels.offset[level]
    end = load_acquire(world.commitlog.words, END)
    oldest = min(end, world.levels.words[LEVEL_HELD_FROM])
    for slot in range(words[READ], words[CLAIMED]):
        oldest = min(oldest, near.slots[slot_word(slot, SLOT_FIRST_COPY)])
    cursors[_READ] = words[READ]
    cursors[_LINKED] = words[LINKED]
    cursors[_CLAIMED] = words[CLAIMED]
    cursors[_FRONTIER] = words[FRONTIER]
    cursors[_CANCELLED] = words[CANCELLED_COUNT]
    cursors[_TIMERLOG_END] = world.timerlog.words[END]
    cursors[_COMMITLOG_END] = end
    cursors[_SCAN_FROM] = oldest
    lock_release(world.step_lock)
    return True


def capture(world: World) -> Captured:
    """Capture cursors and dirty pages, which are clean from then on. O(dirty pages)."""
    cursors = np.zeros(_CURSORS, np.int64)
    next_index = np.zeros(int(world.queues.words[QUEUE_COUNT]), np.int64)
    level_offsets = np.zeros(len(world.levels.offset), np.int64)
    room = int(np.count_nonzero(world.wheel.dirty)) + _SLACK
    while True:
        numbers, pages = np.empty(room, np.int64), np.empty(room * PAGE_BYTES, np.uint8)
        if _capture(world, cursors, next_index, level_offsets, numbers, pages):
            break
        room = int(cursors[_PAGES]) + _SLACK
    read, linked, claimed, frontier, cancelled, units, messages, oldest = cursors[:_PAGES].tolist()
    runs = _runs(numbers[: int(cursors[_PAGES])], pages)
    return Captured(
        *(read, linked, claimed, frontier, cancelled, units, messages, oldest),
        *(next_index, level_offsets, runs),
    )


def _runs(numbers: Words, pages: Bytes) -> list[tuple[int, Bytes]]:
    """Join pages that follow each other."""
    if len(numbers) == 0:
        return []
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1).tolist()
    return [
        (int(numbers[first]) * PAGE_BYTES, pages[first * PAGE_BYTES : stop * PAGE_BYTES])
        for first, stop in zip(starts, [*starts[1:], len(numbers)], strict=True)
    ]
