"""The read cursor's leap: if no timer waits, it goes to the clock at once.

Otherwise the read cursor jumps over slots without units, and after each turn of half the ring it
waits for a checkpoint. For a wheel of 64 slots, ten days of seconds are 13,500 checkpoints.
"""

from __future__ import annotations

from timerstore.jit.acting import ALONE, acting_as
from timerstore.services.engine.engine import Engine
from timerstore.wheel.near import NONE
from timerstore.wheel.timerwheel import is_used_from


def leap(engine: Engine, now_ms: int) -> bool:
    """Move read cursor and claim cursor to the slot of `now_ms`, if nothing is pending.

    False, with nothing changed, if anything waits, or if the read cursor is less than the wheel's
    length behind. While no step runs. O(pages of the wheel).

    The checkpointed read cursor of the world goes along, although the durable one stays behind
    until the next checkpoint. It is there to keep units that a crash would need from being
    overwritten, and an empty wheel has none. If the process ends before that checkpoint, all that
    was linked since is linked again, from the durable queue cursor on.
    """
    slot = now_ms // engine.precision_ms
    with engine.locks.guard():
        if slot < engine.read_slot + engine.config.wheel_slot_count or _waits(engine):
            return False
        with acting_as(ALONE):
            engine.world.dequeue_put.flush_wanted = 0  # it waits for no checkpoint any more
        # Its slot is claimed: a cancel looks for what is overdue among what was claimed.
        engine.move_to(slot, slot + 1)
    return True


def _waits(engine: Engine) -> bool:
    """Tell whether anything waits: a timer, an entry of a queue between services, a unit."""
    world = engine.world
    get, count = world.dequeue_get, engine.queues.table.count
    if get.walked_slot < get.claimed_slot:
        return True
    if engine.queues.table.pending.reshape(2, -1)[:, :count].any():
        return True
    if world.enqueue_put.linked_index != engine.queues.next_index(0):
        return True
    for ring in (world.enqueue_ring, world.late_ring, world.dequeue_ring):
        if ring.ends.head != ring.ends.tail:
            return True
    near = engine.near
    if near.count or (near.deletes != NONE).any():
        return True
    if (near.chain + near.late != near.settled).any():
        return True
    return bool(is_used_from(world.wheel, engine.read_slot))
