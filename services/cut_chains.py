"""Cutting chains: takes superseded units out of their slots, for a broker, which knows no floor.

Units stand in the order of their messages, so what is superseded of a chain is its older end. A
store that stays ours never does this: it asks each unit (`floor.py`).
"""

from __future__ import annotations

from timerstore.services.engine import Engine
from timerstore.services.floor import is_superseded
from timerstore.services.world import World
from timerstore.timelog.format import (
    SLOT_BYTES,
    SLOT_LAST_AT,
    SLOT_TIME_AT,
    UNIT_CRC_AT,
    UNIT_DELETE,
    UNIT_MAGIC_AT,
    UNIT_MESSAGE_AT,
    UNIT_PREV_AT,
)
from timerstore.timelog.intrinsics import get_i32, get_i64, put_i32, put_i64
from timerstore.timelog.kernel import kernel_ahead
from timerstore.timelog.pinned import PinnedLog
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.timelog.unit import is_broker_unit, unit_crc
from timerstore.wheel.slots import NO_UNIT, set_slot


def cut_chains(engine: Engine) -> int:
    """Cut the chains of all slots from R on; return how many were. O(units).

    Nothing else runs, and a checkpoint was written since the last copy. What was changed of the
    timer log is durable on return, the wheel with the next checkpoint.
    """
    log = engine.timerlog
    units = PinnedLog(log)
    units.pin_all()
    count = int(_cut_all(engine.world, units.table))
    if count:
        log.flush(log.start, log.end)
    return count


@kernel_ahead
def _cut_all(world: World, timerlog: SegmentTable) -> int:
    wheel, cut_count = world.wheel.slots, 0
    for index in range(len(wheel) // SLOT_BYTES):
        slot = get_i64(wheel, index * SLOT_BYTES + SLOT_TIME_AT)
        last = get_i64(wheel, index * SLOT_BYTES + SLOT_LAST_AT)
        if slot < world.dequeue_put.passed_slot or last == NO_UNIT:
            continue
        kept, count, offset = NO_UNIT, 0, last
        while offset >= world.cleaning.timerlog_start:
            buf = segment_at(timerlog, offset)
            at = offset % world.timerlog.words[SEGMENT_BYTES]
            if len(buf) == 0 or is_superseded(
                world.cleaning, get_i64(buf, at + UNIT_MESSAGE_AT), slot
            ):
                break
            count += -1 if get_i32(buf, at + UNIT_MAGIC_AT) & UNIT_DELETE != 0 else 1
            kept, offset = offset, get_i64(buf, at + UNIT_PREV_AT)
        if offset == NO_UNIT:
            continue
        if kept == NO_UNIT:
            last = NO_UNIT
        else:
            buf = segment_at(timerlog, kept)
            at = kept % world.timerlog.words[SEGMENT_BYTES]
            by_broker = is_broker_unit(buf, at)
            put_i64(buf, at + UNIT_PREV_AT, NO_UNIT)
            if not by_broker:
                put_i32(buf, at + UNIT_CRC_AT, unit_crc(buf, at, kept, world.scratch))
        set_slot(world.wheel, slot, kept, last, count)
        cut_count += 1
    return cut_count
