"""How far slots are claimed, and what of them is owed.

    read cursor ────────────────────────────────► claim cursor: the clock + LEAD
    │ passed up to here │ walked │ owes │ walked … │ not claimed yet
                                 owed_slot

The claim cursor goes with the clock. What is linked into a claimed slot is a late arrival, which
waits for nothing but its time. What was linked before, the slot's chain, is walked by one of two:

- the front, up to the claim cursor, if the slot had not ended when it was claimed. If the page of a
  unit is missing, or of its message, it leaves the rest as it is, and goes on with the next slot;
- what it has left is *owed*, and walked by a second cursor, the oldest slot first, which waits for
  pages. So is a slot that had ended when it was claimed, after a stop above all.

What the front has met, and late arrivals, go before what was owed, each in the order of due time.
But after a short stop nothing changes its order: FIRST_COUNT units of what is owed, walked or
handed on, go before what is due later, unless pages are missing.

The read cursor passes a slot that owes nothing, whose units are all settled. The claim cursor is
half the wheel ahead of it at most: after a longer stop what is overdue goes first.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import act_as, observe, publish
from timerstore.services.world.state import DEQUEUE_PUT, waiting_count
from timerstore.services.world.world import World
from timerstore.wheel.near import OWED, SPAN
from timerstore.wheel.timerwheel import next_used_slot

FIRST_COUNT: Final = 16_384
"""Units that are owed, walked or handed on, that go before all else: some 20 ms."""
LEAD: Final = 1
"""Slots that are claimed ahead of the clock's."""


@kernel_ahead
def begin_at(world: World, slot: int) -> None:
    """Set the read cursor and the claim cursor; before any step has run."""
    get = world.dequeue_get
    publish(world.dequeue_put, "passed_slot", slot)
    publish(get, "claimed_slot", slot)
    publish(get, "owed_slot", slot)
    publish(get, "walked_slot", slot)
    for ring in range(2):
        get.emptied_ms[ring] = slot * world.settings.precision_ms
    get.first_count = get.first_max


@inlined
def reach_slots(world: World) -> int:
    """Return how many slots can be claimed at once."""
    return world.settings.slot_count // 2


@inlined
def claim_limit(world: World, now_ms: int) -> int:
    """Return the last slot that can be claimed now."""
    read = observe(world.dequeue_put, "passed_slot")
    last = max(now_ms // world.settings.precision_ms, read) + LEAD
    return min(last, read + reach_slots(world) - 1)


@inlined
def owed_stop(world: World) -> int:
    """Return the slot before which all that the front has not met is owed."""
    return observe(world.dequeue_get, "claimed_slot") - observe(world.dequeue_get, "is_walking")


@inlined
def claim_last(world: World, now_ms: int) -> int:
    """Return the last slot that is claimed in this step.

    While nothing waits, the claim cursor stays within SPAN slots of the read cursor: that comes up
    to it, and both jump over slots without units.
    """
    get, last = world.dequeue_get, claim_limit(world, now_ms)
    claimed, stop = observe(get, "claimed_slot"), observe(world.dequeue_put, "passed_slot") + SPAN
    if observe(get, "owed_slot") < owed_stop(world) or world.near.count > 0:
        return last
    if last < stop or waiting_count(world.dequeue_ring.ends) > 0:
        return last
    if claimed < stop and next_used_slot(world.wheel, claimed, stop) < stop:
        return last
    return stop - 1


@inlined
def ring_stop(world: World, ring: int) -> int:
    """Return the slot from which on no chain is walked into a ring, until its first are emptied."""
    return world.dequeue_get.emptied_ms[ring] // world.settings.precision_ms + SPAN


@inlined
def can_claim(world: World, now_ms: int) -> bool:
    """Tell whether anything can be claimed now, as far as can be seen without a lock."""
    get = world.dequeue_get
    if observe(get, "claimed_slot") <= claim_last(world, now_ms):
        return True
    return observe(get, "owed_slot") < min(owed_stop(world), ring_stop(world, OWED))


# --- The read cursor's jump: time costs what is due in it, not the slots that pass.
#
# `tests/models/jump_model.py` has each rule with a wrong variant.


@inlined
def jump(world: World, now_ms: int) -> int:
    """Move read cursor and claim cursor together over slots without units; return 1 if it did.

    Takes near and wheel. Where all that is claimed was passed, nothing waits but in slots from the
    claim cursor on. What is linked afterwards comes into a slot that is not passed, as ever.
    However far it is: O(pages of the wheel), wheel is held for some 10 µs.
    """
    get, put, precision = world.dequeue_get, world.dequeue_put, world.settings.precision_ms
    slot, stop = get.claimed_slot, now_ms // precision
    # Only this service moves the claim cursor, and the read cursor stays behind it: so what is seen
    # here stays.
    if observe(put, "passed_slot") != slot or slot >= stop:
        return 0
    lock_acquire(world.near_lock)
    lock_acquire(world.wheel_lock)
    to = next_used_slot(world.wheel, slot, stop)
    if to > slot:
        to = min(to, stop)
        publish(get, "claimed_slot", to)
        publish(get, "owed_slot", to)
        publish(get, "walked_slot", to)
        for ring in range(2):
            get.emptied_ms[ring] = max(get.emptied_ms[ring], to * precision)
        before = act_as(DEQUEUE_PUT)
        publish(put, "passed_slot", to)
        act_as(before)
    lock_release(world.wheel_lock)
    lock_release(world.near_lock)
    return 1 if to > slot else 0
