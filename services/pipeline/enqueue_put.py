"""Enqueue-put: links a unit for each timer into its slot.

It moves `linked_index` over the timer topic's queue in order; every message gets one unit. A unit
that is linked into a claimed slot is a late arrival, which dequeue-get is told of. After RocketMQ's
`TimerMessageStore.TimerEnqueuePutService` and `doEnqueue`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from timerstore.jit.intrinsics import get_i64, prefetch
from timerstore.jit.kernel import inlined, inlined_always
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import ALONE, act_as, publish
from timerstore.services.world.floor import find_in
from timerstore.services.world.needs import CANCELLED_ROOM, TIMERLOG_SEGMENT
from timerstore.services.world.state import (
    KIND_DELETE,
    KIND_UNREADABLE,
    RING_COUNT,
    ServiceThread,
    place_of,
    tell_need,
    waiting_count,
)
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NewUnit, unit_change
from timerstore.timelog.files.segmenttable import TABLE_LENGTH
from timerstore.timelog.timerlog import append_unit, find_unit_room
from timerstore.wheel.cancelled import cancelled_add, cancelled_has_room, is_of_level
from timerstore.wheel.near import slot_place
from timerstore.wheel.timerwheel import Settings, link_unit, place, ring_top, slot_at, slot_last

# --- Linking: writes a unit at the timer log's end, as the last one of its slot.
#
# By enqueue-put, and by dequeue-get for what hops; under wheel.


@inlined
def has_unit_room(world: World, thread: ServiceThread) -> bool:
    """Tell whether there is room for a unit; a service's need says it if there is not."""
    offset = find_unit_room(world.timerlog)
    if offset < 0:
        tell_need(thread, TIMERLOG_SEGMENT, -1 - offset)
    return offset >= 0


class NewTimer(NamedTuple):
    """A message that gets its first unit."""

    message: int
    size: int
    topic_hash: int
    out_ms: int  # TIMER_OUT_MS
    due_ms: int  # exact
    is_delete: bool


@inlined
def unit_in_slot(
    settings: Settings, slot: int, hops: int, prev: int, timer: NewTimer, now_ms: int
) -> NewUnit:
    """Return a timer's unit in the slot that `place` chose; `prev`: the slot's last unit."""
    precision, magic = settings.precision_ms, fmt.UNIT_PLAIN
    unit_ms = timer.out_ms
    if hops > 0:
        magic |= fmt.UNIT_ROLL
        unit_ms -= hops * settings.hop_slots * precision
    if unit_ms // precision != slot:
        unit_ms = slot * precision  # its own slot was passed, or the read cursor's stands in for it
    if timer.is_delete:
        magic |= fmt.UNIT_DELETE
    return NewUnit(
        prev,
        magic,
        now_ms // precision * precision,
        unit_ms,
        slot * precision,
        timer.message,
        timer.size,
        timer.topic_hash,
        timer.due_ms,
    )


@inlined_always
def write_unit(world: World, slot: int, unit: NewUnit) -> int:
    """Write a unit, for which there is room, and link it into its slot; return its offset. O(1)."""
    offset = append_unit(world.timerlog, unit)
    link_unit(world.wheel, slot, offset, unit_change(unit.magic))
    return offset


BATCH_COUNT: Final = 512
LOCKED_COUNT: Final = 64
"""Units that are linked in one hold of the lock: some 5 µs."""
_AHEAD: Final = 8


@inlined
def enqueue_put(world: World, now_ms: int) -> int:
    """Link up to BATCH_COUNT timers; return how many. Takes wheel. O(1) for each."""
    ring = world.enqueue_ring
    head = ring.ends.head
    count = min(waiting_count(ring.ends), BATCH_COUNT)
    done = 0
    lock_acquire(world.wheel_lock)  # read cursor and claim cursor stay as they are meanwhile
    while done < count:
        if done & (LOCKED_COUNT - 1) == LOCKED_COUNT - 1:
            lock_release(world.wheel_lock)
            lock_acquire(world.wheel_lock)
        at = place_of(head + done)
        likely = ring.out_ms[place_of(head + done + _AHEAD)] // world.settings.precision_ms
        prefetch(world.wheel.slots, slot_at(world.wheel, likely))
        if ring.kind[at] == KIND_UNREADABLE:
            publish(world.enqueue_put, "linked_index", world.enqueue_put.linked_index + 1)
        elif not _link(world, at, now_ms):
            break
        done += 1
    lock_release(world.wheel_lock)
    publish(ring.ends, "head", head + done)
    world.enqueue_put.linked_count += done
    return done


@inlined
def _link(world: World, at: int, now_ms: int) -> bool:
    """Write and link one unit; False, with a need, if something must be made first."""
    ring, mine, settings = world.enqueue_ring, world.enqueue_put.thread, world.settings
    precision, passed = settings.precision_ms, world.dequeue_put.passed_slot
    is_delete = ring.kind[at] == KIND_DELETE
    if is_delete and world.settings.recovering != 0:
        if not _note_delete(world, ring.high[at], ring.low[at]):
            return False
    if waiting_count(world.late_ring.ends) == RING_COUNT:  # it may be a late arrival
        return False
    if not has_unit_room(world, mine):
        return False

    message, out_ms = ring.message[at], ring.out_ms[at]
    copy = find_in(world.done, message)
    if copy >= 0:
        slot, hops = passed, 0  # done in an earlier life: it only has to be counted as linked
    else:
        base = max(now_ms // precision, passed, world.dequeue_get.claimed_slot - 1)
        slot, hops = place(settings, base, passed, out_ms)
    _count_collision(world, slot, passed)
    size = ring.size[at]
    due_ms = ring.due_ms[at]
    timer = NewTimer(message, size, ring.topic_hash[at], out_ms, due_ms, is_delete)
    unit = unit_in_slot(settings, slot, hops, slot_last(world.wheel, slot), timer, now_ms)
    write_unit(world, slot, unit)
    world.enqueue_put.linked_bytes += size
    segment = message // world.commitlog.segment_bytes & (TABLE_LENGTH - 1)
    leads_to = max(slot, out_ms // precision)
    world.latest_slot[segment] = max(world.latest_slot[segment], leads_to)
    late = slot < world.dequeue_get.claimed_slot and copy < 0
    if late:
        world.near.late[slot_place(world.near, slot)] += 1
    # First the queue cursor, then the late ring: were it the other way round, a timer could fire
    # whose entry still seems to have no unit, and cancel would say that it did not.
    publish(world.enqueue_put, "linked_index", world.enqueue_put.linked_index + 1)
    if late:
        _hand_on_late(world, slot, unit.magic, message, size, due_ms)
    return True


@inlined
def _hand_on_late(
    world: World, slot: int, magic: int, message: int, size: int, due_ms: int
) -> None:
    """Tell dequeue-get of a unit that its claim of the slot did not see."""
    ring, tail = world.late_ring, world.late_ring.ends.tail
    at = place_of(tail)
    ring.slot[at] = slot
    ring.magic[at] = magic
    ring.message[at] = message
    ring.size[at] = size
    ring.due_ms[at] = due_ms
    publish(ring.ends, "tail", tail + 1)


@inlined
def _note_delete(world: World, high: int, low: int) -> bool:
    """Add a delete's target to the cancelled set; False if the set must grow first.

    Only in recovery: while services run, the call that cancels adds it, under fire. Not a delay
    level's, whose loop may have passed it.
    """
    if is_of_level(high, low):
        return True
    if not cancelled_has_room(world.cancelled):
        world.enqueue_put.thread.need = CANCELLED_ROOM
        return False
    before = act_as(ALONE)
    cancelled_add(world.cancelled, high, low)
    act_as(before)
    return True


@inlined
def _count_collision(world: World, slot: int, passed_slot: int) -> None:
    """Count a slot of the ring that still holds another time that is not passed."""
    time = get_i64(world.wheel.slots, slot_at(world.wheel, slot) + fmt.SLOT_TIME_AT)
    outside = slot < passed_slot or slot >= ring_top(world.settings, passed_slot)
    if outside or (time != slot and time >= passed_slot):
        world.enqueue_put.collision_count += 1
