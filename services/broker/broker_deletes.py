"""Deletes beside their timers, because a broker looks for them there."""

from __future__ import annotations

from timerstore.jit.kernel import kernel_ahead
from timerstore.services.pipeline.link_units import find_unit_room, write_unit
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NewUnit
from timerstore.wheel.slots import slot_last


@kernel_ahead
def link_delete(
    world: World, unit_ms: int, message: int, size: int, topic_hash: int, now_ms: int
) -> bool:
    """Write a plain delete unit at a timer's time; False if there is no room for it."""
    if find_unit_room(world) < 0:
        return False
    precision = world.settings.precision_ms
    slot = unit_ms // precision
    unit = NewUnit(
        slot_last(world.wheel, slot),
        fmt.UNIT_PLAIN | fmt.UNIT_DELETE,
        now_ms // precision * precision,
        unit_ms,
        slot * precision,
        message,
        size,
        topic_hash,
        unit_ms,
    )
    write_unit(world, slot, unit)
    return True
