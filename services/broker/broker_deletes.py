"""Deletes beside their timers, where a broker looks for them."""

from __future__ import annotations

from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    UNIT_ROOM_BYTES,
    NewUnit,
    next_unit_offset,
    put_timerlog_blank,
    put_unit,
)
from timerstore.timelog.files.segmenttable import can_close, can_write, segment_at
from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.wheel.slots import link_unit, slot_last


@kernel_ahead
def link_delete(
    world: World, unit_ms: int, message: int, size: int, topic_hash: int, now_ms: int
) -> bool:
    """Write a plain delete unit at a timer's time; False where there is no room for it."""
    precision = world.settings.precision_ms
    segment_bytes = world.timerlog.segment_bytes
    slot = unit_ms // precision
    end = world.timerlog.end
    offset = next_unit_offset(segment_bytes, end)
    if offset != end and not can_close(world.timerlog, end, fmt.TIMERLOG_BLANK_BYTES):
        return False
    buf = segment_at(world.timerlog, offset)
    if len(buf) == 0 or not can_write(world.timerlog, offset, offset + UNIT_ROOM_BYTES):
        return False
    if offset != end and end % segment_bytes != 0:
        last = segment_at(world.timerlog, end)
        if len(last) == 0:
            return False
        put_timerlog_blank(last, end % segment_bytes)
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
    put_unit(buf, offset % segment_bytes, offset, unit, world.scratch)
    link_unit(world.wheel, slot, offset, -1)
    world.timerlog.end = offset + fmt.UNIT_BYTES
    return True
