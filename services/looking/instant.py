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
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Bytes, Rows, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.world.floor import Floor
from timerstore.services.world.rings import RING_COUNT, place_of, waiting_count
from timerstore.services.world.state import PASS_COLUMNS, PASS_COUNT_MAX
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.wheel.cancelled import copy_cancelled
from timerstore.wheel.near import list_due, list_entries, slot_place
from timerstore.wheel.place import ring_top
from timerstore.wheel.timerwheel import next_used_slot, slot_last

_READ: Final = 0
_CLAIMED: Final = 1
_OWED: Final = 2
_TOP: Final = 3
_TIMERLOG_END: Final = 4
_LINKED: Final = 5
_QUEUE_END: Final = 6
_MESSAGES: Final = 7
_CANCELLED_LENGTH: Final = 8
_CANCELLED: Final = 9
_COUNT: Final = 10
_LEVELS: Final = 11
_FLOOR: Final = 12
_PASSES: Final = 13
_NEAR: Final = 14
_CURSORS: Final = 16
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


class _Room(NamedTuple):
    """Where an instant is written to."""

    waiting: Rows
    owed: Rows
    cancelled: Bytes
    waiting_levels: Rows
    passes: Words


@kernel_ahead
def _capture(world: World, cursors: Words, wanted: Words, room: _Room) -> bool:
    """Capture; False, with the lengths that are needed in `cursors`, if it does not fit.

    `wanted`: ascending due times, of which the near wheel's timers are wanted; of all, if there are
    none. `waiting`: int64[2, n], the messages, and when each is due at the earliest. `owed`:
    int64[n, 2], as in a Snapshot. `cancelled`: uint8[8 * n], or of length 0 if nobody asks for the
    set. `waiting_levels`: int64[2, n], the first index that waits of each delay level, and the end.
    """
    waiting, owed, cancelled, waiting_levels, passes = room
    messages, due_ms = waiting[0], waiting[1]
    queues, levels, due, late = world.queues, world.levels, world.dequeue_ring, world.late_ring
    lock_acquire(world.fire_lock)
    lock_acquire(world.near_lock)
    lock_acquire(world.wheel_lock)
    taken, late_count = waiting_count(due.ends), waiting_count(late.ends)
    count = world.near.count
    length = world.cancelled.length
    if world.cancelled.count == 0 or len(cancelled) == 0:
        length = 0
    cursors[_MESSAGES] = count + taken + late_count
    cursors[_CANCELLED] = world.cancelled.count
    cursors[_CANCELLED_LENGTH] = world.cancelled.length
    cursors[_OWED] = list_owed(world, owed)
    if cursors[_OWED] > len(owed):
        _release(world)
        return False
    if count + taken + late_count > len(messages) or 8 * length > len(cancelled):
        _release(world)
        return False
    if len(wanted) > 0:
        passed, claimed = world.dequeue_put.passed_slot, world.dequeue_get.claimed_slot
        count = list_due(
            *(world.near, wanted, passed, claimed, world.settings.precision_ms),
            *(due_ms, messages),
        )
    else:
        list_entries(world.near, due_ms, messages)
    cursors[_NEAR] = count
    cursors[_MESSAGES] = count + taken + late_count
    for i in range(taken):
        messages[count + i] = due.message[place_of(due.ends.head + i)]
        due_ms[count + i] = 0
    for i in range(late_count):
        messages[count + taken + i] = late.message[place_of(late.ends.head + i)]
        due_ms[count + taken + i] = late.due_ms[place_of(late.ends.head + i)]
    if length > 0:
        copy_cancelled(world.cancelled, cancelled)
    cursors[_READ] = world.dequeue_put.passed_slot
    cursors[_CLAIMED] = world.dequeue_get.claimed_slot
    cursors[_TOP] = ring_top(world.settings, world.dequeue_put.passed_slot)
    cursors[_TIMERLOG_END] = world.timerlog.end
    cursors[_LINKED] = world.enqueue_put.linked_index
    cursors[_LEVELS] = levels.count
    cursors[_FLOOR] = world.cleaning.floor
    cursors[_PASSES] = world.cleaning.pass_count
    for i in range(world.cleaning.pass_count * PASS_COLUMNS):
        passes[i] = world.cleaning.passes[i]
    lock_acquire(world.append_lock)  # what is appended changes counts and queues together
    cursors[_QUEUE_END] = load_acquire(queues.next_index, 0)
    pending = 0
    for row in range(queues.count):
        pending += queues.pending[row] + queues.pending[QUEUE_COUNT_MAX + row]
    cursors[_COUNT] = pending
    for level in range(levels.count):
        waiting_levels[0, level] = waiting_levels[1, level] = levels.offset[level]
        if levels.row[level] >= 0:
            waiting_levels[1, level] = load_acquire(queues.next_index, levels.row[level])
    lock_release(world.append_lock)
    _release(world)
    return True


@inlined
def _release(world: World) -> None:
    lock_release(world.wheel_lock)
    lock_release(world.near_lock)
    lock_release(world.fire_lock)


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
    cursors = np.zeros(_CURSORS, np.int64)
    waiting_levels = np.zeros((2, fmt.LEVEL_COUNT_MAX), np.int64)
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
        room = _Room(waiting, owed, cancelled.view(np.uint8), waiting_levels, passes)
        if _capture(world, cursors, wanted, room):
            break
        count, length = int(cursors[_MESSAGES]), int(cursors[_CANCELLED_LENGTH])
        owed_count = int(cursors[_OWED])
    levels = int(cursors[_LEVELS])
    in_set = int(cursors[_CANCELLED_LENGTH]) if with_cancelled and cursors[_CANCELLED] else 0
    passes = passes.reshape(-1, PASS_COLUMNS)[: cursors[_PASSES]]
    floor = Floor(int(cursors[_FLOOR]), passes, world.hopped)
    snapshot = Snapshot(
        read=int(cursors[_READ]),
        claimed=int(cursors[_CLAIMED]),
        owed=owed[: int(cursors[_OWED])],
        top=int(cursors[_TOP]),
        timerlog_end=int(cursors[_TIMERLOG_END]),
        queue_start=int(cursors[_LINKED]),
        queue_end=int(cursors[_QUEUE_END]),
        floor=floor,
        hold=hold,
    )
    return Instant(
        snapshot=snapshot,
        messages=waiting[0, : int(cursors[_MESSAGES])],
        due_ms=waiting[1, : int(cursors[_MESSAGES])],
        cancelled=cancelled[:in_set],
        pending_count=int(cursors[_COUNT]),
        level_start=waiting_levels[0, :levels],
        level_stop=waiting_levels[1, :levels],
        slots=np.zeros((0, 2), np.int64),
        near_count=int(cursors[_NEAR]),
    )
