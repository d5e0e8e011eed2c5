"""Linking: writes a unit at the timer log's end, as the last one of its slot.

By enqueue-put, by dequeue-get for what hops, by a handover; under wheel.
"""

from __future__ import annotations

from timerstore.jit.kernel import inlined, inlined_always
from timerstore.services.world.needs import TIMERLOG_SEGMENT
from timerstore.services.world.state import ServiceThread, tell_need
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    UNIT_ROOM_BYTES,
    NewUnit,
    next_unit_offset,
    put_timerlog_blank,
    put_unit,
    unit_change,
)
from timerstore.timelog.files.segmenttable import can_close, can_write, segment_at
from timerstore.wheel.slots import link_unit


@inlined
def find_unit_room(world: World) -> int:
    """Return the next unit's offset; −1 − the offset at which room must be made first. O(1)."""
    end = world.timerlog.end
    offset = next_unit_offset(world.timerlog.segment_bytes, end)
    if offset != end and not can_close(world.timerlog, end, fmt.TIMERLOG_BLANK_BYTES):
        return -1 - end
    buf = segment_at(world.timerlog, offset)
    if len(buf) == 0 or not can_write(world.timerlog, offset, offset + UNIT_ROOM_BYTES):
        return -1 - offset
    return offset


@inlined
def has_unit_room(world: World, thread: ServiceThread) -> bool:
    """Tell whether there is room for a unit; a service's need says it if there is not."""
    offset = find_unit_room(world)
    if offset < 0:
        tell_need(thread, TIMERLOG_SEGMENT, -1 - offset)
    return offset >= 0


@inlined_always
def write_unit(world: World, slot: int, unit: NewUnit) -> int:
    """Write a unit, for which there is room, and link it into its slot; return its offset. O(1)."""
    segment_bytes, end = world.timerlog.segment_bytes, world.timerlog.end
    offset = next_unit_offset(segment_bytes, end)
    if offset != end and end % segment_bytes != 0:
        last = segment_at(world.timerlog, end)
        if len(last) != 0:
            put_timerlog_blank(last, end % segment_bytes)
    buf = segment_at(world.timerlog, offset)
    put_unit(buf, offset % segment_bytes, offset, unit)
    link_unit(world.wheel, slot, offset, unit_change(unit.magic))
    world.timerlog.end = offset + fmt.UNIT_BYTES
    return offset
