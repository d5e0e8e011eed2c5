"""Deletes beside their timers, where a broker looks for them."""

from __future__ import annotations

from timerstore.services.world import World
from timerstore.timelog.format import TIMERLOG_BLANK_BYTES, UNIT_BYTES, UNIT_DELETE, UNIT_PLAIN
from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.timelog.jit.record import Rows, Words
from timerstore.timelog.message import (
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    identify_target,
    identify_timer,
    java_hash,
    read_message,
)
from timerstore.timelog.segmenttable import (
    END,
    SEGMENT_BYTES,
    SegmentTable,
    can_close,
    can_write,
    segment_at,
)
from timerstore.timelog.unit import UNIT_ROOM_BYTES, next_unit_offset, put_timerlog_blank, put_unit
from timerstore.wheel import chain
from timerstore.wheel.slots import link_unit, slot_last


@kernel_ahead
def identify_all(
    commitlog: SegmentTable, units: Rows, tag: int, found: Words, columns: Rows, start: int
) -> int:
    """Fill identity and topic hash of each unit's timer, or target: int64[3, n].

    Return the first whose message is not mapped, or n.
    """
    for i in range(start, len(units)):
        message = units[i, chain.WALK_MESSAGE]
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        at = message % commitlog.words[SEGMENT_BYTES]
        columns[0, i] = columns[1, i] = columns[2, i] = 0
        if read_message(buf, at, found, False) != GOOD or found[REAL_TOPIC_BYTES] < 0:
            continue
        if units[i, chain.WALK_MAGIC] & UNIT_DELETE != 0:
            identify_target(buf, found, tag)
        else:
            identify_timer(buf, found, tag)
        columns[0, i] = found[IDENTITY_HIGH]
        columns[1, i] = found[IDENTITY_LOW]
        columns[2, i] = java_hash(buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES])
    return len(units)


@kernel_ahead
def link_delete(
    world: World, unit_ms: int, message: int, size: int, topic_hash: int, now_ms: int
) -> bool:
    """Write a plain delete unit at a timer's time; False where there is no room for it."""
    precision = world.settings.precision_ms
    segment_bytes = world.timerlog.words[SEGMENT_BYTES]
    slot = unit_ms // precision
    end = world.timerlog.words[END]
    offset = next_unit_offset(segment_bytes, end)
    if offset != end and not can_close(world.timerlog, end, TIMERLOG_BLANK_BYTES):
        return False
    buf = segment_at(world.timerlog, offset)
    if len(buf) == 0 or not can_write(world.timerlog, offset, offset + UNIT_ROOM_BYTES):
        return False
    if offset != end and end % segment_bytes != 0:
        last = segment_at(world.timerlog, end)
        if len(last) == 0:
            return False
        put_timerlog_blank(last, end % segment_bytes)
    put_unit(
        buf,
        offset % segment_bytes,
        offset,
        slot_last(world.wheel, slot),
        UNIT_PLAIN | UNIT_DELETE,
        now_ms // precision * precision,
        unit_ms,
        slot * precision,
        message,
        size,
        topic_hash,
        unit_ms,
        world.scratch,
    )
    link_unit(world.wheel, slot, offset, -1)
    world.timerlog.words[END] = offset + UNIT_BYTES
    return True
