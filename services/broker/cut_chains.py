"""Cutting chains for a broker, which knows no floor: it fires what it reaches.

What is superseded, and each source whose copy was made by an earlier life of the store, is taken
out of the chain of its slot. That is not enough: a broker that opens makes each unit of the timer
log's last files the last one of its slot, in their order. So what was taken out is then moved to a
slot that is passed. Both in steps that may end anywhere: until the wheel is durable, chains lead to
all that they led to, except what nobody needs. A store that stays ours never does this: it asks
each unit (`floor.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine.engine import Engine
from timerstore.services.world.floor import find_in, is_superseded
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    UNIT_GOOD,
    NewUnit,
    check_unit,
    is_broker_unit,
    next_unit_offset,
    put_unit,
    unit_crc,
    unit_ms,
)
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.jit.intrinsics import get_i32, get_i64, put_i32, put_i64
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.record import Rows, Words
from timerstore.wheel.slots import NO_UNIT, set_slot, slot_at


def used_chains(engine: Engine) -> Words:
    """Return the slots from R on that have units, each with its last unit: int64[n, 2]."""
    slots = engine.wheel.slots
    used = slots[(slots["time"] >= engine.read_slot) & (slots["last"] != NO_UNIT)]
    chains = np.empty((len(used), 2), np.int64)
    chains[:, 0], chains[:, 1] = used["time"], used["last"]
    return chains[np.argsort(chains[:, 0])]


def cut_chains(engine: Engine) -> int:
    """Cut the chains of all slots from R on; return how many were. O(units).

    Nothing else runs, and a checkpoint was written since the last copy. What was changed of the
    timer log is durable on return, the wheel with the next checkpoint: then call `move_units`.
    Raises CorruptStoreError.
    """
    return change_units(engine, _cut_all, used_chains(engine))


def move_units(engine: Engine) -> int:
    """Move what was cut out of its chain to a slot that is passed; return how many units. O(units).

    The wheel is durable since they were cut out. Durable on return. Raises CorruptStoreError.
    """
    return change_units(engine, _move_all, np.zeros((0, 2), np.int64))


def change_units(
    engine: Engine, change: Callable[[World, SegmentTable, Rows], int], chains: Words
) -> int:
    """Change units in place, as a kernel does it; durable on return. Returns what that does."""
    log = engine.timerlog
    units = PinnedLog(log)
    units.pin_all()
    count = int(change(engine.world, units.table, chains))
    if count < 0:
        raise CorruptStoreError("timerlog", -1 - count, "this is not the unit that was written")
    if count:
        log.flush(log.start, log.end)
    return count


@inlined
def _is_done(world: World, message: int, slot: int, offset: int) -> bool:
    """Tell whether nobody needs the unit of a message in a slot; no pass is under way."""
    return is_superseded(world, message, slot, offset) or find_in(world.done, message) >= 0


@inlined
def point_back(world: World, timerlog: SegmentTable, offset: int, prev_pos: int) -> bool:
    """Make a unit point to another one; False if it did already."""
    buf = segment_at(timerlog, offset)
    at = offset % world.timerlog.segment_bytes
    if len(buf) == 0 or get_i64(buf, at + fmt.UNIT_PREV_AT) == prev_pos:
        return False
    by_broker = is_broker_unit(buf, at)
    put_i64(buf, at + fmt.UNIT_PREV_AT, prev_pos)
    if not by_broker:
        put_i32(buf, at + fmt.UNIT_CRC_AT, unit_crc(buf, at, offset, world.scratch))
    return True


@kernel_ahead
def _cut_all(world: World, timerlog: SegmentTable, chains: Rows) -> int:
    """Cut chains, int64[n, 2]; return how many were, or −1 − offset of what is no unit."""
    cut_count = 0
    for i in range(len(chains)):
        slot, offset = chains[i, 0], chains[i, 1]
        first, last, count, changed = NO_UNIT, NO_UNIT, 0, False
        while offset >= world.cleaning.timerlog_start:
            buf = segment_at(timerlog, offset)
            at = offset % world.timerlog.segment_bytes
            if len(buf) == 0 or check_unit(buf, at, offset, world.scratch) != UNIT_GOOD:
                return -1 - offset
            if _is_done(world, get_i64(buf, at + fmt.UNIT_MESSAGE_AT), slot, offset):
                changed = True
            else:
                if first == NO_UNIT:
                    last = offset
                else:
                    point_back(world, timerlog, first, offset)
                first = offset
                count += -1 if get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_DELETE != 0 else 1
            offset = get_i64(buf, at + fmt.UNIT_PREV_AT)
        if first != NO_UNIT and point_back(world, timerlog, first, NO_UNIT):
            changed = True
        if changed or first == NO_UNIT:
            set_slot(world.wheel, slot, first, last, count)
            cut_count += 1
    return cut_count


@inlined
def _passed_slot(world: World) -> int:
    """Return a slot before R whose place in the ring no slot from R on has."""
    passed = world.dequeue_put.passed_slot
    slot = passed - 1
    while get_i64(world.wheel.slots, slot_at(world.wheel, slot) + fmt.SLOT_TIME_AT) >= passed:
        slot -= 1
    return slot


@inlined
def retire_unit(
    world: World,
    timerlog: SegmentTable,
    offset: int,
    magic: int,
    message: int,
    size: int,
    topic_hash: int,
) -> bool:
    """Rewrite a unit, as one of a message in a slot that is passed; False if there is none."""
    buf = segment_at(timerlog, offset)
    at = offset % world.timerlog.segment_bytes
    if len(buf) == 0 or check_unit(buf, at, offset, world.scratch) != UNIT_GOOD:
        return False
    to_ms = _passed_slot(world) * world.settings.precision_ms
    unit = NewUnit(
        NO_UNIT,
        magic & ~fmt.UNIT_ROLL,
        get_i64(buf, at + fmt.UNIT_WRITE_AT),
        to_ms,
        to_ms,
        message,
        size,
        topic_hash,
        to_ms + fmt.EXTRA_READ_MESSAGE,
    )
    put_unit(buf, at, offset, unit, world.scratch)
    return True


@kernel_ahead
def _move_all(world: World, timerlog: SegmentTable, chains: Rows) -> int:
    """Move all units of slots from R on that nobody needs; return how many, or −1 − offset."""
    precision, segment_bytes = world.settings.precision_ms, world.timerlog.segment_bytes
    count = 0
    offset = next_unit_offset(segment_bytes, world.cleaning.timerlog_start)
    while offset + fmt.UNIT_BYTES <= world.timerlog.end:
        buf = segment_at(timerlog, offset)
        at = offset % segment_bytes
        if len(buf) == 0 or check_unit(buf, at, offset, world.scratch) != UNIT_GOOD:
            return -1 - offset
        slot, message = unit_ms(buf, at) // precision, get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
        if slot >= world.dequeue_put.passed_slot and _is_done(world, message, slot, offset):
            magic = get_i32(buf, at + fmt.UNIT_MAGIC_AT)
            size = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
            topic_hash = get_i32(buf, at + fmt.UNIT_HASH_AT)
            retire_unit(world, timerlog, offset, magic, message, size, topic_hash)
            count += 1
        offset = next_unit_offset(segment_bytes, offset + fmt.UNIT_BYTES)
    return count
