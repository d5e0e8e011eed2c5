"""Windows: what became of each entry of a queue that a group has begun to hand out.

A window has a byte for each entry from the first that is not done to the first that was never
handed out, in a ring. Each kernel is one change of it. They keep the GIL and wait for nothing, so
none needs a lock, and no signal comes in the midst of one.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import put_u8
from timerstore.jit.kernel import inlined, kernel_ahead_with_gil
from timerstore.jit.mapping import Lent, lent_bytes
from timerstore.jit.record import Bytes, record, record_at

# What became of an entry.
WAITING: Final = 0  # it was passed over, or given back
OUT: Final = 1  # it was handed out
DONE: Final = 2
HELD: Final = 3  # its entry is damaged: it waits for the next opening
NO_ROOM: Final = -1
"""The ring has to grow first. Nothing was done."""

# Places of what is lent to a window.
RING: Final = 0
OTHER: Final = 1


@record
class Window:
    """A group's window of one queue."""

    lent: Lent  # 2 of them: the ring; what `move` makes it, or `copy_states` fills
    length: int = 0  # of the ring, a power of two
    first: int = 0  # the first entry that is not done
    next: int = 0  # the first that was never handed out
    waiting_count: int = 0
    waiting_from: int = 0  # none before it waits
    out_count: int = 0
    held_count: int = 0
    start: int = 0  # out: of what was handed out; only until the kernel returns
    told_start: int = 0  # out: the same for who has the group's lock, or of what was copied


_window_at = record_at(Window)


@inlined
def _trim(window: Window, ring: Bytes) -> None:
    """Move `first` behind what is done."""
    first, stop, mask = window.first, window.next, window.length - 1
    while first < stop and ring[first & mask] == DONE:
        first += 1
    window.first = first


@inlined
def window_hand_out(window: Window, visible_end: int, count_max: int) -> int:
    """Hand out the next run of entries before `visible_end`; return how many, or NO_ROOM.

    What waits goes first. `window.start` tells where they begin. O(entries).
    """
    ring, mask = lent_bytes(window.lent, RING, window.length), window.length - 1
    if window.waiting_count > 0:
        start = max(window.first, window.waiting_from)
        while ring[start & mask] != WAITING:
            start += 1
        stop = start
        last = min(window.next, start + count_max)
        while stop < last and ring[stop & mask] == WAITING:
            put_u8(ring, stop & mask, OUT)
            stop += 1
        window.waiting_count -= stop - start
        window.waiting_from = stop
    else:
        start = window.next
        stop = max(start, min(visible_end, start + count_max))
        if stop - window.first > window.length:
            return NO_ROOM
        for index in range(start, stop):
            put_u8(ring, index & mask, OUT)
        window.next = stop
    window.start = start
    window.out_count += stop - start
    return stop - start


@inlined
def window_mark(window: Window, start: int, stop: int, state: int) -> int:
    """Have entries become WAITING, OUT, HELD or DONE; return how many do. O(entries).

    What is done stays so, and what was never handed out; what is held only becomes done.
    """
    ring, mask = lent_bytes(window.lent, RING, window.length), window.length - 1
    start, stop = max(start, window.first), min(stop, window.next)
    count, waited_count, held_count = 0, 0, 0
    for index in range(start, stop):
        before = ring[index & mask]
        if before == DONE or before == state or (before == HELD and state != DONE):
            continue
        put_u8(ring, index & mask, state)
        count += 1
        waited_count += before == WAITING
        held_count += before == HELD
    window.waiting_count -= waited_count
    window.held_count -= held_count
    window.out_count -= count - waited_count - held_count
    if state == DONE:
        _trim(window, ring)
    elif state == OUT:
        window.out_count += count
    elif state == HELD:
        window.held_count += count
    elif count > 0:
        window.waiting_count += count
        window.waiting_from = min(window.waiting_from, start)
    return count


@kernel_ahead_with_gil
def hand_out(address: int, visible_end: int, count_max: int) -> int:
    """Hand out the next run, see `window_hand_out`; `told_start` tells where it begins."""
    window = _window_at(address)
    count = window_hand_out(window, visible_end, count_max)
    window.told_start = window.start
    return count


@kernel_ahead_with_gil
def mark(address: int, start: int, stop: int, state: int) -> int:
    """Have entries become WAITING, OUT, HELD or DONE, see `window_mark`."""
    return window_mark(_window_at(address), start, stop, state)


@kernel_ahead_with_gil
def state_at(address: int, index: int) -> int:
    """Tell what became of one entry."""
    window = _window_at(address)
    if index < window.first:
        return DONE
    if index >= window.next:
        return WAITING
    state: int = lent_bytes(window.lent, RING, window.length)[index & (window.length - 1)]
    return state


@kernel_ahead_with_gil
def extend(address: int, stop: int, state: int) -> int:
    """Have what was never handed out before `stop` be WAITING or DONE; 0, or NO_ROOM."""
    window = _window_at(address)
    ring, mask, start = lent_bytes(window.lent, RING, window.length), window.length - 1, window.next
    if stop - window.first > window.length:
        return NO_ROOM
    for index in range(start, stop):
        put_u8(ring, index & mask, state)
    if stop > start:
        window.next = stop
        if state == WAITING:
            if window.waiting_count == 0:
                window.waiting_from = start
            window.waiting_count += stop - start
    _trim(window, ring)
    return 0


@kernel_ahead_with_gil
def move(address: int, length: int) -> int:
    """Make the other array, which is longer, the ring. O(entries)."""
    window = _window_at(address)
    ring, mask = lent_bytes(window.lent, RING, window.length), window.length - 1
    other = lent_bytes(window.lent, OTHER, length)
    for index in range(window.first, window.next):
        put_u8(other, index & (length - 1), ring[index & mask])
    window.lent[RING] = window.lent[OTHER]
    window.length = length
    return 0


@kernel_ahead_with_gil
def copy_states(address: int, count: int) -> int:
    """Copy what became of up to `count` entries to the other array; return of how many.

    0 if none of them is done. `told_start` tells where they begin.
    """
    window = _window_at(address)
    ring, mask = lent_bytes(window.lent, RING, window.length), window.length - 1
    other, window.told_start = lent_bytes(window.lent, OTHER, count), window.first
    count = min(count, window.next - window.first)
    if window.waiting_count + window.out_count + window.held_count == window.next - window.first:
        return 0
    for i in range(count):
        put_u8(other, i, ring[(window.first + i) & mask])
    return count
