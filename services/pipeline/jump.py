"""The read cursor's jump: time costs what is due in it, not the slots that pass.

`tests/models/jump_model.py` has each rule with a wrong variant.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.acting import act_as
from timerstore.jit.kernel import inlined
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import observe, publish
from timerstore.services.world.state import DEQUEUE_PUT
from timerstore.services.world.world import World
from timerstore.wheel.timerwheel import next_used_slot

JUMP_SLOTS: Final = 1 << 20
"""Slots over which the read cursor goes at once at most: wheel is held for some 10 µs."""


@inlined
def jump(world: World, now_ms: int) -> int:
    """Move read cursor and claim cursor together over slots without units; return 1 if it did.

    Takes near and wheel. Where all that is claimed was passed, nothing waits but in slots from the
    claim cursor on. What is linked afterwards comes into a slot that is not passed, as ever.
    O(pages of the wheel), JUMP_SLOTS at the most.
    """
    get, put, precision = world.dequeue_get, world.dequeue_put, world.settings.precision_ms
    slot, stop = get.claimed_slot, now_ms // precision
    # Only this service moves the claim cursor, and the read cursor stays behind it: so what is seen
    # here stays.
    if observe(put, "passed_slot") != slot or slot >= stop:
        return 0
    stop = min(stop, slot + JUMP_SLOTS)
    stop = min(stop, observe(world.flush, "checkpointed_slot") + world.settings.slot_count)
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
