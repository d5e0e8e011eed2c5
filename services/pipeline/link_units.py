"""Linking: writes a unit at the timer log's end, as the last one of its slot.

By enqueue-put, by dequeue-get for what hops, by a handover; under wheel.
"""

from __future__ import annotations

from timerstore.jit.kernel import inlined, inlined_always
from timerstore.services.world.needs import TIMERLOG_SEGMENT
from timerstore.services.world.state import ServiceThread, tell_need
from timerstore.services.world.world import World
from timerstore.timelog.bytes.unit import NewUnit, unit_change
from timerstore.timelog.timerlog import append_unit, find_unit_room
from timerstore.wheel.timerwheel import link_unit


@inlined
def has_unit_room(world: World, thread: ServiceThread) -> bool:
    """Tell whether there is room for a unit; a service's need says it if there is not."""
    offset = find_unit_room(world.timerlog)
    if offset < 0:
        tell_need(thread, TIMERLOG_SEGMENT, -1 - offset)
    return offset >= 0


@inlined_always
def write_unit(world: World, slot: int, unit: NewUnit) -> int:
    """Write a unit, for which there is room, and link it into its slot; return its offset. O(1)."""
    offset = append_unit(world.timerlog, unit)
    link_unit(world.wheel, slot, offset, unit_change(unit.magic))
    return offset
