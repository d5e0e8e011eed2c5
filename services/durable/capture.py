"""Capturing a checkpoint's cursors, all of one moment, in one kernel."""

from __future__ import annotations

import numpy as np

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Words, observe, record
from timerstore.services.world.state import PASS_COLUMNS, PASS_FIRST_COPY
from timerstore.services.world.world import World
from timerstore.wheel.near import PAGE_PLACES, give_back_page, slot_place


@kernel_ahead
def read_appended(world: World, into: Words) -> None:
    """Fill what was appended since the store was opened, of one moment under fire: int64[4].

    Bytes of what fired; units of hops; bytes that cleaning copied; the commit log's end.
    """
    lock_acquire(world.fire_lock)
    into[0] = world.dequeue_put.counts.fired_bytes + world.deliver_levels.counts.fired_bytes
    into[1] = world.dequeue_get.hop_count
    into[2] = world.cleaning.copied_bytes
    into[3] = observe(world.commitlog, "end")
    lock_release(world.fire_lock)


@record
class Captured:
    """What stood in an engine at one moment."""

    next_index: Words  # of each queue
    level_offsets: Words
    queue_count: int = 0
    read_slot: int = 0
    linked: int = 0
    claimed_slot: int = 0
    frontier_ms: int = 0
    cancelled_count: int = 0
    timerlog_end: int = 0
    commitlog_end: int = 0
    scan_from: int = 0  # the copies cursor, as far as this life's copies say
    floor: int = 0
    hops_from: int = 0  # the hops cursor, as far as this life's hops say


@kernel_ahead
def _capture(world: World, into: Captured) -> bool:
    """Capture; False if the queues do not fit, whose count is told."""
    near = world.near
    next_index, level_offsets = into.next_index, into.level_offsets
    lock_acquire(world.fire_lock)
    lock_acquire(world.wheel_lock)
    for level in range(len(level_offsets)):
        level_offsets[level] = world.levels.offset[level]
    # Of one instant: of what the log is said to be durable up to, recovery reads no entry anew.
    lock_acquire(world.append_lock)
    end = world.commitlog.end
    queues = world.queues.count
    for row in range(min(queues, len(next_index))):
        next_index[row] = world.queues.next_index[row]
    lock_release(world.append_lock)
    into.queue_count = queues
    if queues > len(next_index):
        lock_release(world.wheel_lock)
        lock_release(world.fire_lock)
        return False
    oldest = min(end, world.cancelled.held_from)
    hops_from = world.timerlog.end
    for slot in range(world.dequeue_put.passed_slot, world.dequeue_get.claimed_slot):
        place = slot_place(near, slot)
        oldest = min(oldest, near.first_copy[place])
        hops_from = min(hops_from, near.first_hop[place])
    for i in range(world.cleaning.pass_count):
        oldest = min(oldest, world.cleaning.passes[i * PASS_COLUMNS + PASS_FIRST_COPY])
    into.read_slot = world.dequeue_put.passed_slot
    into.linked = world.enqueue_put.linked_index
    into.claimed_slot = world.dequeue_get.claimed_slot
    into.frontier_ms = world.dequeue_put.frontier_ms
    into.cancelled_count = world.cancelled.count
    into.timerlog_end = world.timerlog.end
    into.commitlog_end = end
    into.scan_from = oldest
    into.floor = world.cleaning.floor
    into.hops_from = hops_from
    lock_release(world.wheel_lock)
    lock_release(world.fire_lock)
    return True


def capture(world: World) -> Captured:
    """Capture the cursors. O(queues + claimed slots)."""
    level_offsets, queues = np.zeros(len(world.levels.offset), np.int64), int(world.queues.count)
    while True:
        into = Captured(np.zeros(queues, np.int64), level_offsets)
        if _capture(world, into):
            return into
        queues = into.queue_count


@kernel_ahead
def give_back(world: World, start: int, stop: int) -> int:
    """Give back the memory of slots in [start, stop), all of which were passed. Takes wheel.

    Else the columns of a store that is open for a week would take their whole length. A place is
    used again once the slot that is the columns' length later is claimed. The claim cursor moves
    under wheel, so whether that is so is asked, and the memory given back, in one hold of it.

    Return the slot to go on from next time. O(places): some 10 µs under wheel for each 512.
    """
    near, place_count = world.near, len(world.near.waiting)
    if place_count % PAGE_PLACES != 0:
        return stop
    slot = -(-max(start, stop - place_count) // PAGE_PLACES) * PAGE_PLACES
    while slot + PAGE_PLACES <= stop:
        lock_acquire(world.wheel_lock)
        if world.dequeue_get.claimed_slot <= slot + place_count:  # else the place may be in use
            give_back_page(near, slot_place(near, slot))
        lock_release(world.wheel_lock)
        slot += PAGE_PLACES
    return max(start, slot)
