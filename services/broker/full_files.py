"""The last units of the timer log's full files, by which a broker removes them.

A broker removes the oldest file of its timer log once the message of the file's *last unit* lies
before the commit log's start: it counts on units in the order of their messages. What hopped, and a
delete beside its timer, stand behind units of later messages. So the last unit of a full file in
which a live unit has a later message than its own is made to name the handover's own delete, in a
slot that is passed; if it is live itself, it is linked once more before, as a hop is. It cannot
name the largest live message of its file instead: then code that asks for the slot of a message's
last unit is misled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.broker.cut_chains import change_units, point_back, retire_unit
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import all_units, live_units
from timerstore.services.opening.recover_hops import use_last_units
from timerstore.services.pipeline.link_units import find_unit_room, write_unit
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    UNIT_GOOD,
    UNIT_ROOM_BYTES,
    NewUnit,
    check_unit,
    is_broker_unit,
    next_unit_offset,
    unit_ms,
)
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.jit.intrinsics import get_i32, get_i64, get_u32
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.record import Rows, Words
from timerstore.wheel.slots import NO_UNIT, set_slot, slot_last


class NamedDelete(NamedTuple):
    """A delete, as a unit names it."""

    message: int
    size: int
    topic_hash: int  # its target's topic's


def misleading_units(engine: Engine) -> tuple[Words, Words]:
    """Return the last units by which full files would go too soon: those to name, those to link.

    Offsets, the second of live units. Nothing else runs. O(units).
    """
    log = engine.timerlog
    count = log.end // log.segment_bytes + 1
    largest = np.full(count, -1, np.int64)
    live = [np.zeros(0, np.int64)]
    last_at = (log.segment_bytes - UNIT_ROOM_BYTES) // fmt.UNIT_BYTES * fmt.UNIT_BYTES
    for units in live_units(engine):
        np.maximum.at(largest, units.offset // log.segment_bytes, units.message)
        live.append(units.offset[units.offset % log.segment_bytes == last_at])
    found = [np.zeros(0, np.int64)]
    for units in all_units(engine, log.start, log.end):
        lasts = units[units.offset % log.segment_bytes == last_at]
        found.append(lasts.offset[lasts.message < largest[lasts.offset // log.segment_bytes]])
    misled = np.concatenate(found)
    is_live = np.isin(misled, np.concatenate(live))
    return misled[~is_live], misled[is_live]


def link_again(engine: Engine, offsets: Words) -> None:
    """Link live units once more, behind all others, as if they had hopped within their slot.

    Theirs are superseded then: cut them out of their chains, make the wheel durable, and name them.
    """
    hops_from, world, at = engine.timerlog.end, engine.world, 0
    rows = np.zeros((len(offsets), 3), np.int64)
    rows[:, 0] = offsets
    while at < len(rows):
        with engine.timerlog.reading() as table:
            at = int(_link_all(world, table, rows, at))
        if at < 0:
            raise CorruptStoreError("timerlog", -1 - at, "this is not the unit that was written")
        if at < len(rows):
            for offset in rows[at : at + 1, 0].tolist():
                engine.timerlog.existing(offset // engine.timerlog.segment_bytes)
            engine.make_unit_room()
    use_last_units(engine, rows[:, 1], rows[:, 2])
    if engine.hopped_until <= engine.read_slot:
        engine.hopped_from = hops_from
    ends = [int(units.ms.max()) for units in all_units(engine, hops_from, engine.timerlog.end)]
    until = max(ends, default=0) // engine.precision_ms + 1
    engine.hopped_until = max(engine.hopped_until, until)


@kernel_ahead
def _link_all(world: World, timerlog: SegmentTable, rows: Rows, start: int) -> int:
    """Link units at rows[:, 0] once more; write their messages, with where they are now, behind.

    Return how far it came: the row for which room, or a segment, must be made first; −1 − offset of
    what is no unit.
    """
    precision = world.settings.precision_ms
    for i in range(start, len(rows)):
        offset = rows[i, 0]
        buf = segment_at(timerlog, offset)
        at = offset % timerlog.segment_bytes
        if len(buf) == 0 or find_unit_room(world) < 0:
            return i
        if check_unit(buf, at, offset, world.scratch) != UNIT_GOOD:
            return -1 - offset
        ms, magic = unit_ms(buf, at), get_i32(buf, at + fmt.UNIT_MAGIC_AT)
        extra = get_u32(buf, at + fmt.UNIT_EXTRA_AT)
        if is_broker_unit(buf, at):
            extra = fmt.EXTRA_READ_MESSAGE
        due_ms = ms + extra
        if magic & fmt.UNIT_ROLL != 0:
            due_ms = extra * 1000
        slot, message = ms // precision, get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
        unit = NewUnit(
            slot_last(world.wheel, slot),
            magic | fmt.UNIT_HOP,
            get_i64(buf, at + fmt.UNIT_WRITE_AT),
            ms,
            slot * precision,
            message,
            get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT),
            get_i32(buf, at + fmt.UNIT_HASH_AT),
            due_ms,
        )
        rows[i, 1], rows[i, 2] = message, write_unit(world, slot, unit, world.scratch)
    return len(rows)


def name_units(engine: Engine, offsets: Words, delete: NamedDelete) -> None:
    """Make units that nobody needs name a delete, in a slot that is passed; durable on return.

    They are taken out of the chains of slots that are passed before; O(units).
    """
    rows = np.empty((len(offsets), 4), np.int64)
    rows[:, 0], rows[:, 1:] = np.sort(offsets), delete
    change_units(engine, _take_out_all, rows)
    change_units(engine, _name_all, rows)


def ends_file(engine: Engine) -> bool:
    """Tell whether the next unit is the last of its file."""
    log = engine.timerlog
    at = log.end % log.segment_bytes
    if at + UNIT_ROOM_BYTES > log.segment_bytes:
        at = 0
    return at + fmt.UNIT_BYTES + UNIT_ROOM_BYTES > log.segment_bytes


def passed_slot_ms(engine: Engine) -> int:
    """Return when a slot begins that is passed, and whose place in the ring no other has."""
    slots, slot = engine.wheel.slots["time"], engine.read_slot - 1
    while slots[slot % len(slots)] >= engine.read_slot:
        slot -= 1
    return slot * engine.precision_ms


@inlined
def _is_named(rows: Rows, offset: int) -> bool:
    """Tell whether one of `rows`, sorted by their first column, is of the unit at `offset`."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if rows[middle, 0] < offset:
            low = middle + 1
        else:
            high = middle
    return low < len(rows) and rows[low, 0] == offset


@inlined
def _kept_before(world: World, timerlog: SegmentTable, rows: Rows, offset: int) -> int:
    """Return a unit's offset, or that of the first one before it in its chain that is kept."""
    while offset >= world.cleaning.timerlog_start and _is_named(rows, offset):
        buf = segment_at(timerlog, offset)
        if len(buf) == 0:
            return NO_UNIT
        offset = get_i64(buf, offset % timerlog.segment_bytes + fmt.UNIT_PREV_AT)
    return offset


@kernel_ahead
def _take_out_all(world: World, timerlog: SegmentTable, rows: Rows) -> int:
    """Take units out of their chains; return how many others were changed, or −1 − offset.

    `rows`: int64[n, 4], sorted by the offset of a unit, its first column. The slots of chains that
    are still in the wheel lead past them, too.
    """
    segment_bytes, count = timerlog.segment_bytes, 0
    offset = next_unit_offset(segment_bytes, world.cleaning.timerlog_start)
    while offset + fmt.UNIT_BYTES <= world.timerlog.end:
        buf = segment_at(timerlog, offset)
        at = offset % segment_bytes
        if len(buf) == 0 or check_unit(buf, at, offset, world.scratch) != UNIT_GOOD:
            return -1 - offset
        if not _is_named(rows, offset):
            before = get_i64(buf, at + fmt.UNIT_PREV_AT)
            count += point_back(
                world, timerlog, offset, _kept_before(world, timerlog, rows, before)
            )
        offset = next_unit_offset(segment_bytes, offset + fmt.UNIT_BYTES)
    for i in range(len(rows)):
        buf = segment_at(timerlog, rows[i, 0])
        slot = unit_ms(buf, rows[i, 0] % segment_bytes) // world.settings.precision_ms
        _shorten_slot(world, timerlog, rows, slot)
    return count


@inlined
def _shorten_slot(world: World, timerlog: SegmentTable, rows: Rows, slot: int) -> None:
    """Make a slot lead past units that were taken out of its chain."""
    offset = _kept_before(world, timerlog, rows, slot_last(world.wheel, slot))
    first, last, count = NO_UNIT, offset, 0
    while offset >= world.cleaning.timerlog_start:
        buf = segment_at(timerlog, offset)
        if len(buf) == 0:
            break
        at = offset % timerlog.segment_bytes
        first = offset
        count += -1 if get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_DELETE != 0 else 1
        offset = get_i64(buf, at + fmt.UNIT_PREV_AT)
    if last != NO_UNIT or slot_last(world.wheel, slot) != NO_UNIT:
        set_slot(world.wheel, slot, first, last, count)


@kernel_ahead
def _name_all(world: World, timerlog: SegmentTable, rows: Rows) -> int:
    """Rewrite units; return how many, or −1 − offset of what is none.

    `rows`: int64[n, 4]: its offset, the delete's, its size, the hash of its target's topic.
    """
    magic = fmt.UNIT_PLAIN | fmt.UNIT_DELETE | fmt.UNIT_HOP
    for i in range(len(rows)):
        row = rows[i]
        if not retire_unit(world, timerlog, row[0], magic, row[1], row[2], row[3]):
            return -1 - row[0]
    return len(rows)
