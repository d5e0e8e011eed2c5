"""What was put aside: the slots that had ended when the store was opened.

After a stop a slot may hold millions of timers, and there may be many such slots. What falls due
meanwhile does not wait for them: dequeue-get works on two ranges of slots beside each other, each
with its own cursors and its own ring of the near wheel,

    R ───── aside ─────► A          the clock
    │ ended before opening │ … │ front_slot ── the front ──► C │ not claimed yet

Both hand on through ring C, what falls due now first, and what was put aside in the room that is
left. Each keeps the order of due time. Only the first FIRST_COUNT units of what was put aside go
before all else, so that after a short stop nothing changes its order.

`front_slot` is for the front what R is without anything aside: the slot before which all is settled
from A on. R itself, which a checkpoint says, stays in what was put aside until that is done, and
then jumps to the front. Until then, so that the next life after a crash finds everything:

- the copies of slots that the front has passed keep L (`front_copy`);
- a plain delete of the front is *kept*, in a place of its own, until nothing is left aside, nor of
  what hopped from there: its target may be a roll that was put aside. Its slot does not wait for
  it; R does;
- a timer whose slot the front has passed, but R has not, is a *straggler*: the front's slot stands
  in for it, and R waits until that is passed as well.

If the stop was longer than half the wheel, nothing is put aside.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.kernel import inlined
from timerstore.jit.record import observe
from timerstore.services.world.world import World
from timerstore.wheel.near import SPAN

FIRST_COUNT: Final = 16_384
"""Units of what was put aside, walked or handed on, that go before all else: some 20 ms."""
LEAD: Final = 1
"""Slots that are claimed ahead of the clock's."""


@inlined
def is_aside(world: World) -> bool:
    """Tell whether R is still in what was put aside."""
    return observe(world.dequeue_put, "passed_slot") < observe(world.dequeue_put, "aside_stop")


@inlined
def aside_of(world: World, slot: int) -> int:
    """Return 1 for a slot that is not passed and was put aside, else 0."""
    return 1 if slot < observe(world.dequeue_put, "aside_stop") else 0


@inlined
def near_slot(world: World, slot: int) -> int:
    """Return the slot in whose place a unit's slot waits: a later one for a straggler.

    Under wheel; or of a late arrival, whose slot is not settled and stays as it is.
    """
    if aside_of(world, slot) == 1:
        return slot
    return max(slot, observe(world.dequeue_put, "front_slot"))


@inlined
def last_straggler(world: World) -> int:
    """Return the latest slot of the front that stood in for a straggler's; −1: none did."""
    linked = observe(world.enqueue_put, "straggler_slot")
    return max(linked, observe(world.dequeue_get, "straggler_slot"))


@inlined
def base_slot(world: World, aside: int) -> int:
    """Return the slot at which a range begins: R, or the front's."""
    if aside == 1:
        return observe(world.dequeue_put, "passed_slot")
    return observe(world.dequeue_put, "front_slot")


@inlined
def claim_limit(world: World, aside: int, base: int, now_ms: int) -> int:
    """Return the last slot of a range that can be claimed now; `base`: where it begins."""
    last = max(now_ms // world.settings.precision_ms, base) + LEAD
    if aside == 1:
        last = observe(world.dequeue_put, "aside_stop") - 1
    return min(last, base + SPAN - 1)


@inlined
def can_claim(world: World, now_ms: int) -> bool:
    """Tell whether a slot can be claimed now, as far as can be seen without a lock."""
    limit = claim_limit(world, 0, base_slot(world, 0), now_ms)
    if observe(world.dequeue_get, "claimed_slot") <= limit:
        return True
    limit = claim_limit(world, 1, base_slot(world, 1), now_ms)
    return is_aside(world) and observe(world.aside, "claimed_slot") <= limit
