"""The read cursor's leap: if no timer waits, it goes to the clock at once.

Otherwise the read cursor jumps over slots without units, and after each turn of half the ring it
waits for a checkpoint. For a wheel of 64 slots, ten days of seconds are 13,500 checkpoints.
"""

from __future__ import annotations

from timerstore.jit.acting import ALONE, act_as
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import publish
from timerstore.services.engine.engine import Engine
from timerstore.services.world.claims import move_cursors
from timerstore.services.world.rings import waiting_count
from timerstore.services.world.world import World
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
    return _leap(engine.world, now_ms // engine.precision_ms)


@kernel_ahead
def _leap(world: World, slot: int) -> bool:
    lock_acquire(world.fire_lock)
    lock_acquire(world.near_lock)
    lock_acquire(world.wheel_lock)
    far = world.dequeue_put.passed_slot + world.settings.slot_count
    leaps = slot >= far and not _waits(world)
    if leaps:
        before = act_as(ALONE)
        publish(world.dequeue_put, "flush_wanted", 0)  # it waits for no checkpoint any more
        # Its slot is claimed: a cancel looks for what is overdue among what was claimed.
        move_cursors(world, slot, slot + 1)
        act_as(before)
    lock_release(world.wheel_lock)
    lock_release(world.near_lock)
    lock_release(world.fire_lock)
    return leaps


@inlined
def _waits(world: World) -> bool:
    """Tell whether anything waits: a timer, an entry of a queue between services, a unit."""
    get, near, pending = world.dequeue_get, world.near, world.queues.pending
    if get.walked_slot < get.claimed_slot or near.count > 0:
        return True
    for row in range(world.queues.count):
        if pending[row] != 0 or pending[len(pending) // 2 + row] != 0:
            return True
    if world.enqueue_put.linked_index != world.queues.next_index[0]:
        return True
    if waiting_count(world.enqueue_ring.ends) + waiting_count(world.late_ring.ends) > 0:
        return True
    if waiting_count(world.dequeue_ring.ends) > 0:
        return True
    for i in range(len(near.settled)):
        if near.chain[i] + near.late[i] != near.settled[i] or near.deletes[i] != NONE:
            return True
    return is_used_from(world.wheel, world.dequeue_put.passed_slot)
