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
from timerstore.jit.intrinsics import get_i32, get_i64, get_u32
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Rows, Words
from timerstore.services.broker.cut_chains import change_units, passed_slot_ms, retire_unit
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import all_units, live_units
from timerstore.services.looking.slot_units import chain_units
from timerstore.services.opening.recover_hops import use_last_units
from timerstore.services.pipeline.link_units import write_unit
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    NO_UNIT,
    UNIT_GOOD,
    UNIT_ROOM_BYTES,
    WRONG_UNIT_REASON,
    NewUnit,
    check_unit,
    is_broker_unit,
    unit_ms,
)
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.reading.reader import ReadSegments
from timerstore.timelog.reading.units import walk_units
from timerstore.timelog.timerlog import find_unit_room, point_all_back
from timerstore.wheel.timerwheel import Slot, slot_last


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
    last_at = _last_at(log)
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
            raise CorruptStoreError("timerlog", -1 - at, WRONG_UNIT_REASON)
        if at < len(rows):
            for offset in rows[at : at + 1, 0].tolist():
                engine.timerlog.existing(offset // engine.timerlog.segment_bytes)
            engine.timerlog.make_unit_room()
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
        if len(buf) == 0 or find_unit_room(world.timerlog) < 0:
            return i
        if check_unit(buf, at, offset) != UNIT_GOOD:
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
        rows[i, 1], rows[i, 2] = message, write_unit(world, slot, unit)
    return len(rows)


def name_units(engine: Engine, offsets: Words, delete: NamedDelete) -> None:
    """Make units that nobody needs name a delete, in a slot that is passed; durable on return.

    They are taken out of the chains of slots that are passed before; O(units).
    """
    rows = np.empty((len(offsets), 4), np.int64)
    rows[:, 0], rows[:, 1:] = offsets, delete
    _take_out(engine, offsets)
    to_ms = passed_slot_ms(engine)
    change_units(engine, lambda table, part: _name_all(table, part, to_ms), [rows])


def ends_file(engine: Engine) -> bool:
    """Tell whether the next unit is the last of its file."""
    at, last_at = engine.timerlog.end % engine.timerlog.segment_bytes, _last_at(engine.timerlog)
    return (at if at <= last_at else 0) == last_at


def _last_at(log: SegmentedFile) -> int:
    """Return where the last unit of a file stands."""
    return (log.segment_bytes - UNIT_ROOM_BYTES) // fmt.UNIT_BYTES * fmt.UNIT_BYTES


def _take_out(engine: Engine, offsets: Words) -> None:
    """Take units out of their chains, durably, and out of the slots that are still in the wheel."""
    log = engine.timerlog
    gone = set(offsets.tolist())
    before = dict[int, int]()  # of each of them the first unit before it that stays
    links, slots = list[tuple[int, int]](), set[int]()
    reader = ReadSegments(
        log.folder, "timerlog", log.segment_bytes, engine.disk.at, open_count_max=4
    )
    for units in walk_units(reader, log.start, log.end):
        if (units.status != UNIT_GOOD).any():
            offset = int(units.offset[units.status != UNIT_GOOD][0])
            raise CorruptStoreError("timerlog", offset, WRONG_UNIT_REASON)
        for unit in units[np.isin(units.offset, offsets) | np.isin(units.prev, offsets)]:
            offset, prev = int(unit.offset), int(unit.prev)
            prev = before.get(prev, prev)
            if offset in gone:
                before[offset] = prev
                slots.add(int(unit.ms) // engine.precision_ms)
            else:
                links.append((offset, prev))
    change_units(engine, point_all_back, [np.array(links, np.int64).reshape(-1, 2)])
    for slot in slots:
        used = engine.wheel.get(slot)
        if used is None:
            continue
        first, last, count = NO_UNIT, before.get(used.last, used.last), 0
        for part in chain_units(engine, np.array([[slot, last]]), lane_count=1):
            first = int(part.offset[-1])
            count += len(part) - 2 * int((part.magic & fmt.UNIT_DELETE != 0).sum())
        engine.wheel.put(Slot(slot, first, last, count))


@kernel_ahead
def _name_all(timerlog: SegmentTable, rows: Rows, to_ms: int) -> int:
    """Rewrite units; return how many, or −1 − offset of what is none.

    `rows`: int64[n, 4]: its offset, the delete's, its size, the hash of its target's topic.
    """
    magic = fmt.UNIT_PLAIN | fmt.UNIT_DELETE | fmt.UNIT_HOP
    for i in range(len(rows)):
        row = rows[i]
        if not retire_unit(timerlog, row[0], to_ms, magic, row[1], row[2], row[3]):
            return -1 - row[0]
    return len(rows)
