"""Whether a timer still waits: asked under fire, under which dequeue-put appends what it took.

A timer that is due after the frontier, or has no unit yet, was certainly not taken. Any other most
likely was fired. It may still wait in the rings before and behind the near wheel, in the bucket of
its millisecond, or in a slot that was not walked yet, because the clock went back or the store was
just opened. Bucket and rings are looked at under near and wheel, O(bucket). A chain is walked
before, without a lock (`timerstore/pending/overdue.py`): units do not change, and what is taken
from a chain meanwhile is in the near wheel.

What waits is one message: the first put, or a copy that cleaning or a broker made of it. Whoever
asks says which one; COPIED says that it is another one by now.
"""

from __future__ import annotations

from typing import Final

from timerstore.services.calls.first_puts import GONE, NOT_SOUGHT, FirstPuts
from timerstore.services.world.aside import aside_of, base_slot
from timerstore.services.world.floor import find_in, is_superseded
from timerstore.services.world.rings import Ends, place_of
from timerstore.services.world.world import World
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.locks import lock_acquire, lock_release
from timerstore.timelog.jit.record import Int8s, Words, observe
from timerstore.wheel.cancelled import cancelled_contains
from timerstore.wheel.near import bucket_at, near_holds
from timerstore.wheel.slots import NO_UNIT, slot_last

# What becomes known of a timer.
NOT_JUDGED: Final = 0
WAITS: Final = 1
WAS_CANCELLED: Final = 2
OVER: Final = 3
IN_CHAINS: Final = 4  # it may be in a chain that nobody has looked at
COPIED: Final = 5  # if anything waits, then a copy of the message

_LATEST: Final = 1 << 62


@inlined
def is_ahead(world: World, due_ms: int, index: int, message: int) -> bool:
    """Tell whether a timer that is not in the cancelled set certainly waits. Under fire.

    `index`: of its message in the timer topic's queue; `message`: that one's offset.
    """
    if message < world.cleaning.floor:  # if it was cancelled, cleaning may have forgotten that
        return False
    # A cancelled roll is dropped long before its time, so R may be past what was ever taken.
    passed_ms = observe(world.dequeue_put, "passed_slot") * world.settings.precision_ms
    if due_ms > max(world.dequeue_put.frontier_ms, passed_ms - 1):
        return True
    return index >= observe(world.enqueue_put, "linked_index")


@inlined
def _is_copied(world: World, puts: FirstPuts, i: int) -> bool:
    """Tell whether another message took the place of a timer's. Under fire. O(passes)."""
    message, lead = puts.message[i], puts.out_ms[i] // world.settings.precision_ms
    done: bool = find_in(world.done, message) >= 0
    return done or is_superseded(world, message, lead, _LATEST)


@inlined
def _ring_holds(ends: Ends, messages: Words, message: int) -> bool:
    for entry in range(observe(ends, "head"), observe(ends, "tail")):
        if messages[place_of(entry)] == message:
            return True
    return False


@inlined
def _is_claimed(world: World, due_ms: int, message: int) -> bool:
    """Tell whether a message is in the near wheel, or in the rings beside it. O(bucket + rings).

    Under fire, near and wheel. A claimed slot may stand in for its timer's own.
    """
    near, precision = world.near, world.settings.precision_ms
    if _ring_holds(world.late_ring.ends, world.late_ring.message, message):
        return True
    if _ring_holds(world.dequeue_ring.ends, world.dequeue_ring.message, message):
        return True
    for aside in range(2):
        get = world.dequeue_get
        if aside == 1:
            get = world.aside
        before_ms = -1
        for slot in range(base_slot(world, aside), get.claimed_slot + 1):
            ms = min(max(due_ms, slot * precision), (slot + 2) * precision)
            if ms != before_ms and near_holds(near, bucket_at(near, ms, aside), message):
                return True
            before_ms = ms
    return False


@inlined
def _is_unwalked(world: World, slot: int) -> bool:
    """Tell whether a slot has units that were not claimed. Under near and wheel."""
    walked = world.dequeue_get.walked_slot
    if aside_of(world, slot) == 1:
        walked = world.aside.walked_slot
    return slot >= walked and slot_last(world.wheel, slot) != NO_UNIT


@inlined
def _may_be_in_chains(world: World, due_ms: int, ours: bool) -> bool:
    """Tell whether a timer that may have been taken can be in a chain still. Under near and wheel.

    R's slot stands in for those before it; a broker's rolls are on no grid.
    """
    read = world.dequeue_put.passed_slot
    if not ours or _is_unwalked(world, read):
        return True
    slot = due_ms // world.settings.precision_ms
    while slot >= read:
        if _is_unwalked(world, slot):
            return True
        slot -= world.settings.hop_slots
    return False


@inlined
def _find(world: World, puts: FirstPuts, i: int, ours: bool) -> int:
    """Look where a timer can wait that may have been taken. Under fire, near and wheel."""
    if _is_copied(world, puts, i):
        return COPIED
    if _is_claimed(world, puts.due_ms[i], puts.message[i]):
        return WAITS
    unit, slot, get = puts.unit[i], puts.slot[i], world.dequeue_get
    if unit == NO_UNIT:
        return OVER
    if unit != NOT_SOUGHT:
        if aside_of(world, slot) == 1:
            get = world.aside
        if slot >= get.claimed_slot or (slot == get.claimed_slot - 1 and unit <= get.claim_offset):
            return WAITS
    return IN_CHAINS if _may_be_in_chains(world, puts.due_ms[i], ours) else OVER


@inlined
def judge_timer(world: World, puts: FirstPuts, i: int, ours: bool, trusts: bool) -> int:
    """Tell whether a timer waits that is not in the cancelled set: WAITS, or what is beside it.

    Under fire; takes near, then wheel, if it may have been taken. `ours`: this store gave it its
    id. `trusts`: no message is damaged, so that a copy is sound if there is one. O(bucket).
    """
    level, row = puts.level[i], puts.row[i]
    if row < 0:
        return COPIED if row == GONE else OVER
    if level >= 0:
        return WAITS if puts.entry[i] >= world.levels.offset[level] else OVER
    due_ms = min(puts.due_ms[i], puts.out_ms[i])
    if is_ahead(world, due_ms, puts.entry[i], puts.message[i]):
        if trusts or not _is_copied(world, puts, i):
            return WAITS
    lock_acquire(world.near_lock)
    lock_acquire(world.wheel_lock)
    found: int = _find(world, puts, i, ours)
    lock_release(world.wheel_lock)
    lock_release(world.near_lock)
    return found


@kernel_ahead
def judge_timers(
    world: World, puts: FirstPuts, high: int, low: Words, trusts: bool, became: Int8s
) -> None:
    """Judge the timers that are NOT_JUDGED, each under fire. O(bucket) each.

    `high`, `low`: who they are; the first word is the same for all.
    """
    ours = high == IDENTITY_OURS
    for i in range(len(became)):
        if became[i] != NOT_JUDGED:
            continue
        lock_acquire(world.fire_lock)
        if cancelled_contains(world.cancelled, high, low[i]):
            became[i] = WAS_CANCELLED
        else:
            became[i] = judge_timer(world, puts, i, ours, trusts)
        lock_release(world.fire_lock)
