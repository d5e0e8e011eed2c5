"""One instant of a store, for listings: where timers wait, with what judges them.

All of it is captured by one kernel, which takes and gives back the locks without returning to
Python: the near wheel, what was taken but not appended, the cursors, the cancelled set, the levels'
offsets, the counts. Only units and messages are read later, because these do not change, and a hold
keeps them where they are (`services/engine/holds.py`). A listing
that asked the cancelled set afterwards would show cancelled timers: an entry leaves the set when
the read cursor passes its delete.

The set is copied, 32 to 64 bytes for each cancelled timer that is still to come; its copy's pages
are touched before the lock is taken. A journal of what changes while somebody lists would hold the
lock for less, but it must end somewhere, and then the set must be copied after all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import load_acquire
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Bytes, Rows, Words, record
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.world.floor import Floor
from timerstore.services.world.state import (
    PASS_COLUMNS,
    PASS_COUNT_MAX,
    RING_COUNT,
    place_of,
    waiting_count,
)
from timerstore.services.world.world import World, lock_all, release_all
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.wheel.cancelled import copy_cancelled
from timerstore.wheel.near import list_due, list_entries, slot_place
from timerstore.wheel.timerwheel import next_used_slot, ring_top, slot_last

_SLACK: Final = 4_096
_SLOTS_AT_FIRST: Final = 1_024
_NO_TIMES: Final = np.zeros(0, np.int64)


class Snapshot(NamedTuple):
    """The cursors of one moment. Units do not change, so chains are walked later."""

    read: int
    claimed: int
    owed: Rows  # int64[n, 2]: the claimed slots whose chains are to be walked, from which unit on
    top: int
    timerlog_end: int
    queue_start: int
    queue_end: int
    floor: Floor  # which units were superseded
    hold: Hold  # what it names is read only while this lasts


class Instant(NamedTuple):
    """Where pending timers were at one instant, and which were cancelled by then."""

    snapshot: Snapshot
    messages: Words  # of the near wheel, and in the queues before and behind it
    due_ms: Words  # when each of these is due at the earliest
    cancelled: Words  # the set's table, see wheel/cancelled.py; of length 0 if it was empty
    pending_count: int
    level_start: Words  # of each delay level: the index of the first that waits
    level_stop: Words
    slots: Rows  # int64[n, 2]: the slots to be walked, in order, from which unit on
    near_count: int  # so many of the messages, the first ones, are of the near wheel


@record
class _Captured:
    """What stood at one moment."""

    messages: Words  # as in an Instant; its length, as that of the next, is what there is room for
    due_ms: Words
    cancelled: Bytes  # the set's table; of length 0 if nobody asks for it
    level_start: Words
    level_stop: Words
    passes: Words
    read: int = 0
    claimed: int = 0
    owed_count: int = 0
    top: int = 0
    timerlog_end: int = 0
    linked: int = 0
    queue_end: int = 0
    near_count: int = 0
    message_count: int = 0
    cancelled_length: int = 0
    cancelled_count: int = 0
    pending_count: int = 0
    level_count: int = 0
    floor: int = 0
    pass_count: int = 0


@kernel_ahead
def _capture(world: World, wanted: Words, owed: Rows, into: _Captured) -> bool:
    """Capture; False, with how much there is of each, if it does not fit.

    `wanted`: ascending due times, of which the near wheel's timers are wanted; of all, if there are
    none. `owed`: int64[n, 2], as in a Snapshot.
    """
    messages, due_ms, cancelled = into.messages, into.due_ms, into.cancelled
    queues, levels, due, late = world.queues, world.levels, world.dequeue_ring, world.late_ring
    lock_all(world)
    taken, late_count = waiting_count(due.ends), waiting_count(late.ends)
    count = world.near.count
    length = world.cancelled.length
    if world.cancelled.count == 0 or len(cancelled) == 0:
        length = 0
    into.message_count = count + taken + late_count
    into.cancelled_count = world.cancelled.count
    into.cancelled_length = world.cancelled.length
    into.owed_count = list_owed(world, owed)
    if into.owed_count > len(owed):
        release_all(world)
        return False
    if count + taken + late_count > len(messages) or 8 * length > len(cancelled):
        release_all(world)
        return False
    if len(wanted) > 0:
        passed, claimed = world.dequeue_put.passed_slot, world.dequeue_get.claimed_slot
        count = list_due(
            *(world.near, wanted, passed, claimed, world.settings.precision_ms),
            *(due_ms, messages),
        )
    else:
        list_entries(world.near, due_ms, messages)
    into.near_count = count
    into.message_count = count + taken + late_count
    for i in range(taken):
        messages[count + i] = due.message[place_of(due.ends.head + i)]
        due_ms[count + i] = 0
    for i in range(late_count):
        messages[count + taken + i] = late.message[place_of(late.ends.head + i)]
        due_ms[count + taken + i] = late.due_ms[place_of(late.ends.head + i)]
    if length > 0:
        copy_cancelled(world.cancelled, cancelled)
    into.read = world.dequeue_put.passed_slot
    into.claimed = world.dequeue_get.claimed_slot
    into.top = ring_top(world.settings, world.dequeue_put.passed_slot)
    into.timerlog_end = world.timerlog.end
    into.linked = world.enqueue_put.linked_index
    into.floor = world.cleaning.floor
    into.pass_count = world.cleaning.pass_count
    for i in range(world.cleaning.pass_count * PASS_COLUMNS):
        into.passes[i] = world.cleaning.passes[i]
    lock_acquire(world.append_lock)  # what is appended changes counts and queues together
    into.queue_end = load_acquire(queues.next_index, 0)
    pending = 0
    for row in range(queues.count):
        pending += queues.pending[row] + queues.pending[QUEUE_COUNT_MAX + row]
    into.pending_count = pending
    into.level_count = levels.count
    for level in range(levels.count):
        into.level_start[level] = into.level_stop[level] = levels.offset[level]
        if levels.row[level] >= 0:
            into.level_stop[level] = load_acquire(queues.next_index, levels.row[level])
    lock_release(world.append_lock)
    release_all(world)
    return True


@kernel_ahead
def list_owed(world: World, owed: Rows) -> int:
    """Write the claimed slots whose chains are to be walked; count them. Under near.

    `owed`: int64[n, 2], the slot, and from which unit on. What does not fit is only counted.
    O(claimed slots that were not walked).
    """
    near, count = world.near, 0
    for slot in range(world.dequeue_get.owed_slot, world.dequeue_get.claimed_slot):
        offset = near.owed[slot_place(near, slot)]
        if offset != NO_UNIT:
            if count < len(owed):
                owed[count, 0] = slot
                owed[count, 1] = offset
            count += 1
    return count


@kernel_ahead
def _list_slots(world: World, start: int, stop: int, slots: Rows, count: int) -> int:
    """Write the used slots of [start, stop), with the last unit of each, from row `count` on.

    Return the count then. `slots`: int64[n, 2], in order; what does not fit is only counted.
    Without locks: a slot that is used for another time meanwhile was passed before, see
    `capture_instant`.
    """
    stop = min(stop, start + len(world.wheel.slots) // fmt.SLOT_BYTES)
    slot = next_used_slot(world.wheel, start, stop)
    while slot < stop:
        if count < len(slots):
            slots[count, 0] = slot
            slots[count, 1] = slot_last(world.wheel, slot)
        count += 1
        slot = next_used_slot(world.wheel, slot + 1, stop)
    return count


def used_slots(world: World, start: int, stop: int) -> Rows:
    """Return the used slots of [start, stop), once around, with the last unit of each: int64[n, 2].

    No service runs. O(pages of the wheel between + used slots).
    """
    slots = np.empty((_SLOTS_AT_FIRST, 2), np.int64)
    while (count := _list_slots(world, start, stop, slots, 0)) > len(slots):
        slots = np.empty((count, 2), np.int64)
    return slots[:count]


def is_intact(world: World, at: Snapshot) -> bool:
    """Tell whether the wheel still has all slots that were not claimed at an instant.

    A slot's place is used again only once the read cursor has passed the slot.
    """
    return world.dequeue_put.passed_slot <= at.claimed


def capture_instant(engine: Engine, *, whole: bool = True, due_ms: Words = _NO_TIMES) -> Instant:
    """Capture one instant.

    O(near wheel + cancelled) under all locks, behind them O(pages of the wheel + used slots).
    Without `whole` neither the cancelled set nor the slots are captured. `due_ms`: of the near
    wheel only what is due at one of these times, or where a slot starts that the read cursor has
    not passed, is wanted; O(times + claimed slots + what was overdue) then, with no order.
    """
    world, hold, wanted = engine.world, engine.holds.take(), np.unique(due_ms)
    while True:
        found = _capture_cursors(world, hold, whole, wanted)
        if not whole:
            return found
        used, at = np.empty((_SLOTS_AT_FIRST, 2), np.int64), found.snapshot
        while True:
            used[: len(at.owed)] = at.owed[: len(used)]
            count = _list_slots(world, at.claimed, at.top, used, len(at.owed))
            if count <= len(used):
                break
            used = np.empty((count + _SLACK, 2), np.int64)
        if is_intact(world, at):
            break
    return found._replace(slots=used[:count])


def _capture_cursors(world: World, hold: Hold, with_cancelled: bool, wanted: Words) -> Instant:
    levels = np.zeros((2, fmt.LEVEL_COUNT_MAX), np.int64)
    passes = np.zeros(PASS_COUNT_MAX * PASS_COLUMNS, np.int64)
    count, length, owed_count = world.near.count, 1, 0
    if world.cancelled.count:
        length = world.cancelled.length
    while True:
        waiting = np.empty((2, count + count // 8 + 2 * RING_COUNT), np.int64)
        owed = np.zeros((owed_count + _SLOTS_AT_FIRST, 2), np.int64)
        cancelled = np.empty(length if with_cancelled else 0, np.int64)
        waiting.fill(0)  # touch the pages now, and not under the lock
        cancelled.fill(0)
        into = cancelled.view(np.uint8)
        found = _Captured(waiting[0], waiting[1], into, levels[0], levels[1], passes)
        if _capture(world, wanted, owed, found):
            break
        count, length, owed_count = found.message_count, found.cancelled_length, found.owed_count
    passes = passes[: found.pass_count * PASS_COLUMNS]
    snapshot = Snapshot(
        read=found.read,
        claimed=found.claimed,
        owed=owed[: found.owed_count],
        top=found.top,
        timerlog_end=found.timerlog_end,
        queue_start=found.linked,
        queue_end=found.queue_end,
        floor=Floor(found.floor, passes, world.hopped),
        hold=hold,
    )
    in_set = found.cancelled_length if with_cancelled and found.cancelled_count else 0
    return Instant(
        snapshot=snapshot,
        messages=waiting[0, : found.message_count],
        due_ms=waiting[1, : found.message_count],
        cancelled=cancelled[:in_set],
        pending_count=found.pending_count,
        level_start=levels[0, : found.level_count],
        level_stop=levels[1, : found.level_count],
        slots=np.zeros((0, 2), np.int64),
        near_count=found.near_count,
    )
