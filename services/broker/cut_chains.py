"""Cutting chains for a broker, which knows no floor: it fires what it reaches.

What is superseded, and each source whose copy was made by an earlier life of the store, is taken
out of the chain of its slot. That is not enough: a broker that opens makes each unit of the timer
log's last files the last one of its slot, in their order. So what was taken out is then moved to a
slot that is passed. Both in steps that may end anywhere: until the wheel is durable, chains lead to
all that they led to, except what nobody needs. A store that stays ours never does this: it asks
each unit (`floor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import get_i32, get_i64
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Rows, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import all_units
from timerstore.services.world.floor import find_in, is_superseded
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    NO_UNIT,
    UNIT_GOOD,
    WRONG_UNIT_REASON,
    NewUnit,
    Units,
    check_unit,
    put_unit,
    unit_change,
)
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.timerlog import point_back
from timerstore.wheel.timerwheel import set_slot

T = TypeVar("T")


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
    chains = [used_chains(engine)]
    return change_units(engine, lambda table, part: _cut_all(engine.world, table, part), chains)


def move_units(engine: Engine) -> int:
    """Move what was cut out of its chain to a slot that is passed; return how many units. O(units).

    The wheel is durable since they were cut out. Durable on return. Raises CorruptStoreError.
    """
    log, to_ms = engine.timerlog, passed_slot_ms(engine)
    units = all_units(engine, log.start, log.end, engine.read_slot)
    return change_units(
        engine, lambda table, part: _move_all(engine.world, table, part, to_ms), units
    )


def change_units(
    engine: Engine, change: Callable[[SegmentTable, T], int], parts: Iterable[T]
) -> int:
    """Change units in place, part by part; return how many were changed. Durable on return.

    `change` returns how many it changed of a part, or −1 − the offset of what is no unit.
    """
    log, count = engine.timerlog, 0
    units = PinnedLog(log)
    units.pin_all()
    for part in parts:
        done = int(change(units.table, part))
        if done < 0:
            raise CorruptStoreError("timerlog", -1 - done, WRONG_UNIT_REASON)
        count += done
    if count:
        log.flush(log.start, log.end)
    return count


def passed_slot_ms(engine: Engine) -> int:
    """Return when a slot begins that is passed, and whose place in the ring no other has."""
    slots, slot = engine.wheel.slots["time"], engine.read_slot - 1
    while slots[slot % len(slots)] >= engine.read_slot:
        slot -= 1
    return slot * engine.precision_ms


@inlined
def _is_done(world: World, message: int, slot: int, offset: int) -> bool:
    """Tell whether nobody needs the unit of a message in a slot; no pass is under way."""
    return is_superseded(world, message, slot, offset) or find_in(world.done, message) >= 0


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
            if len(buf) == 0 or check_unit(buf, at, offset) != UNIT_GOOD:
                return -1 - offset
            if _is_done(world, get_i64(buf, at + fmt.UNIT_MESSAGE_AT), slot, offset):
                changed = True
            else:
                if first == NO_UNIT:
                    last = offset
                else:
                    point_back(timerlog, first, offset)
                first = offset
                count += unit_change(get_i32(buf, at + fmt.UNIT_MAGIC_AT))
            offset = get_i64(buf, at + fmt.UNIT_PREV_AT)
        if first != NO_UNIT and point_back(timerlog, first, NO_UNIT) > 0:
            changed = True
        if changed or first == NO_UNIT:
            set_slot(world.wheel, slot, first, last, count)
            cut_count += 1
    return cut_count


@inlined
def retire_unit(
    timerlog: SegmentTable,
    offset: int,
    to_ms: int,
    magic: int,
    message: int,
    size: int,
    topic_hash: int,
) -> bool:
    """Rewrite a unit, as one of a message in a slot that is passed; False if there is none."""
    buf = segment_at(timerlog, offset)
    at = offset % timerlog.segment_bytes
    if len(buf) == 0 or check_unit(buf, at, offset) != UNIT_GOOD:
        return False
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
    put_unit(buf, at, offset, unit)
    return True


@kernel_ahead
def _move_all(world: World, timerlog: SegmentTable, units: Units, to_ms: int) -> int:
    """Move those of some units that nobody needs; return how many, or −1 − offset."""
    precision, count = world.settings.precision_ms, 0
    for i in range(len(units.offset)):
        offset, message = units.offset[i], units.message[i]
        if not _is_done(world, message, units.ms[i] // precision, offset):
            continue
        buf = segment_at(timerlog, offset)
        at = offset % timerlog.segment_bytes
        topic_hash = get_i32(buf, at + fmt.UNIT_HASH_AT) if len(buf) > 0 else 0
        if not retire_unit(
            timerlog, offset, to_ms, units.magic[i], message, units.size[i], topic_hash
        ):
            return -1 - offset
        count += 1
    return count
