"""Mending chains: what is sound of the timer log fires on, past units that are damaged.

A chain that leads through a damaged unit hides those before it. While a store is open the timer log
is read once, and each slot's sound units are linked anew. A damaged unit between two sound ones is
written again: units stand in the order of the timer topic's queue, so its message is known, and its
slot is that of whoever points to it. Of any other the timer waits: the timer index is marked to be
rebuilt, which the next opening does (`rebuild.py`), and nothing is removed until then.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import TIMERS, write_mark
from timerstore.services.world.state import DEQUEUE_GET
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, exact_due_ms, java_hash, read_message
from timerstore.timelog.bytes.unit import (
    UNIT_GOOD,
    LoggedUnits,
    NewUnit,
    is_broker_unit,
    put_unit,
    unit_crc,
)
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.jit.acting import acting_as
from timerstore.timelog.jit.intrinsics import put_i32, put_i64
from timerstore.timelog.jit.kernel import kernel_later
from timerstore.timelog.jit.record import Words
from timerstore.timelog.reading import units as kernels
from timerstore.timelog.reading.reader import ReadSegments
from timerstore.wheel.near import near_entries
from timerstore.wheel.slots import NO_UNIT, SlotArray, set_slot

_WRITTEN_AGAIN_MAX: Final = 4_096
"""Damaged units that are written again in one go; more wait for the rebuild."""


class _Units(NamedTuple):
    """Sound units of slots that are not passed, in the order of the log; int64[n] each."""

    offset: Words
    slot: Words
    previous: Words
    message: Words
    is_delete: Words


def mend_units(engine: Engine, offset: int) -> None:
    """Link all sound units of slots from R on anew; `offset`: where damage was met. O(units).

    Only dequeue-get's thread calls this, which answers its needs; or enqueue-put's.
    """
    engine.damage.note("timerlog", offset, "this is not the unit that was written there")
    engine.rebuild_wanted |= {TIMERS}
    write_mark(engine.disk, engine.path, engine.rebuild_wanted)
    with engine.locks, acting_as(DEQUEUE_GET):
        units, damaged = _read_units(engine)
        if len(damaged) <= _WRITTEN_AGAIN_MAX:
            for each in damaged.tolist():
                engine.damage.note("timerlog", each, "this is not the unit that was written there")
            restored = [_restore(engine, units, each) for each in damaged.tolist()]
            if any(restored):
                units, damaged = _read_units(engine)
        _link(engine, units)
        for get in (engine.world.dequeue_get, engine.world.aside):
            if get.claim_offset == offset and offset not in units.offset:
                get.claim_offset = NO_UNIT  # nothing sound is left of the slot
            if get.claim_offset == NO_UNIT:
                get.walked_slot = get.claimed_slot


def _read_units(engine: Engine) -> tuple[_Units, Words]:
    """Return the sound units of slots from R on, and the offsets of those that are damaged."""
    log, precision_ms = engine.timerlog, engine.precision_ms
    reader = ReadSegments(log.folder, "timerlog", log.segment_bytes, open_count_max=4)
    parts, damaged = [np.zeros((5, 0), np.int64)], [np.zeros(0, np.int64)]
    for part in kernels.walk_units(reader, log.start, log.end):
        slots = part.ms // precision_ms
        sound = part.status == UNIT_GOOD
        damaged.append(part.offset[~sound])
        kept = sound & (slots >= engine.read_slot)
        is_delete = part.magic & fmt.UNIT_DELETE != 0
        columns = part.offset, slots, part.prev, part.message, is_delete
        parts.append(np.stack([column[kept] for column in columns]))
    return _Units(*np.concatenate(parts, axis=1)), np.concatenate(damaged)


# --- units that can be written again


def _restore(engine: Engine, units: _Units, offset: int) -> bool:
    """Write a damaged unit again; False where its message or its slot cannot be told."""
    message, slot = _message_of(engine, offset), _slot_of(engine, units, offset)
    if message < 0 or slot < engine.read_slot:
        return False
    before = units.offset[(units.slot == slot) & (units.offset < offset)]
    previous = int(before[-1]) if len(before) else NO_UNIT
    now_ms = engine.clock.now_ms
    with engine.timerlog.reading(), engine.commitlog.reading():
        # A copy of the store may be sparse there.
        engine.timerlog.reserve(offset, offset + fmt.UNIT_BYTES)
        engine.commitlog.readable(message // engine.commitlog.segment_bytes)
        return bool(_write_again(engine.world, offset, previous, slot, message, now_ms))


def _slot_of(engine: Engine, units: _Units, offset: int) -> int:
    """Return the slot of a unit: that of the next one of its chain, or of whose head it is."""
    world = engine.world
    for get in (world.dequeue_get, world.aside):
        if get.claim_offset == offset:
            return int(get.claimed_slot) - 1
    following = np.flatnonzero(units.previous == offset)
    if len(following):
        return int(units.slot[following[0]])
    slots = engine.wheel.slots
    heads = np.flatnonzero(slots["last"] == offset)
    return int(slots["time"][heads[0]]) if len(heads) else -1


def _message_of(engine: Engine, offset: int) -> int:
    """Return the message of a damaged unit: of the entry between those of its neighbours; or −1."""
    before, after = (_index_at(engine, offset, step) for step in (-1, 1))
    index = before + 1 if before >= 0 else after - 1
    if after >= 0 and after != index + 1:
        return -1
    if index < engine.queues.first_index(0) or index >= engine.world.enqueue_put.linked_index:
        return -1
    if after < 0 and index != engine.world.enqueue_put.linked_index - 1:
        return -1
    return int(engine.queues.read(0, index, 1)[0]["offset"])


def _index_at(engine: Engine, offset: int, step: int) -> int:
    """Return the queue index of the message of the unit beside another; −1 where it has none."""
    log, commitlog = engine.timerlog, engine.commitlog
    room = (log.segment_bytes - fmt.TIMERLOG_BLANK_BYTES) // fmt.UNIT_BYTES
    number, position = divmod(offset, log.segment_bytes)
    number, place = divmod(number * room + position // fmt.UNIT_BYTES + step, room)
    beside = number * log.segment_bytes + place * fmt.UNIT_BYTES
    if number not in log.numbers or not log.start <= beside < log.end:
        return -1
    units = PinnedLog(log)
    units.map_from(beside)
    unit, where = LoggedUnits.room(1), np.array([beside, 0], np.int64)
    every, scratch = kernels.EVERY_UNIT, np.zeros(64, np.uint8)
    kernels.read_units(units.table, log.end, every, unit, scratch, where)
    message = int(unit.message[0])
    if unit.status[0] != UNIT_GOOD or not commitlog.start <= message < commitlog.end:
        return -1
    index = int.from_bytes(
        commitlog.read(message + fmt.MESSAGE_QUEUE_INDEX_AT, 8), "big", signed=True
    )
    queues = engine.queues
    if not queues.first_index(0) <= index < queues.next_index(0):
        return -1
    return index if int(queues.read(0, index, 1)[0]["offset"]) == message else -1


@kernel_later
def _write_again(
    world: World, offset: int, previous: int, slot: int, message: int, now_ms: int
) -> bool:
    """Write the unit of a message into a slot that it was placed in; False where it cannot be."""
    found = world.dequeue_get.thread.found
    source = segment_at(world.commitlog, message)
    buf = segment_at(world.timerlog, offset)
    if len(source) == 0 or len(buf) == 0:
        return False
    if read_message(source, message % world.commitlog.segment_bytes, found, True) != GOOD:
        return False
    if found.due_ms < 0 or found.real_topic_bytes < 0:
        return False
    precision = world.settings.precision_ms
    magic, unit_ms = fmt.UNIT_PLAIN, found.due_ms
    ahead = unit_ms // precision - slot
    if ahead > 0:
        if ahead % world.settings.hop_slots != 0:
            return False
        magic |= fmt.UNIT_ROLL
        unit_ms -= ahead * precision
    elif ahead < 0:
        unit_ms = slot * precision
    if found.deletes_bytes >= 0:
        magic |= fmt.UNIT_DELETE
    unit = NewUnit(
        previous,
        magic,
        now_ms // precision * precision,
        unit_ms,
        slot * precision,
        message,
        found.size,
        java_hash(source, found.real_topic_at, found.real_topic_bytes),
        exact_due_ms(source, found, world.settings.store_tag, precision),
    )
    put_unit(buf, offset % world.timerlog.segment_bytes, offset, unit, world.scratch)
    return True


# --- chains


def _link(engine: Engine, units: _Units) -> None:
    """Make each sound unit point to the one before it in its slot, and each slot to its last."""
    order = np.lexsort((units.offset, units.slot))
    offset, slot, previous = units.offset[order], units.slot[order], units.previous[order]
    is_first = np.diff(slot, prepend=-1) != 0
    expected = np.where(is_first, NO_UNIT, np.roll(offset, 1))
    for i in np.flatnonzero(previous != expected).tolist():
        engine.timerlog.trim()
        with engine.timerlog.reading():
            engine.timerlog.reserve(int(offset[i]), int(offset[i]) + fmt.UNIT_BYTES)
            while not _set_previous(engine.world, int(offset[i]), int(expected[i])):
                engine.timerlog.existing(int(offset[i]) // engine.timerlog.segment_bytes)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(slot))[: len(firsts)] - 1
    change = np.concatenate([[0], np.cumsum(1 - 2 * units.is_delete[order])])
    heads = {
        int(slot[low]): (int(offset[low]), int(offset[high]), int(change[high + 1] - change[low]))
        for low, high in zip(firsts.tolist(), lasts.tolist(), strict=True)
    }
    world, wheel = engine.world, engine.wheel.slots
    aside_stop = 0
    if engine.read_slot < world.dequeue_put.aside_stop:
        aside_stop = world.dequeue_put.aside_stop
    unclaimed = wheel["time"] >= world.dequeue_get.claimed_slot
    unclaimed |= (wheel["time"] >= world.aside.claimed_slot) & (wheel["time"] < aside_stop)
    held = set(wheel["time"][unclaimed].tolist())
    for each in sorted(held - heads.keys()):
        _set_head(engine.world.wheel, each, NO_UNIT, NO_UNIT, 0)
    for each, head in heads.items():
        at = each % len(wheel)
        if (int(wheel["time"][at]), int(wheel["last"][at])) != (each, head[1]):
            _set_head(engine.world.wheel, each, *head)
    for get in (world.dequeue_get, world.aside):
        if get.claim_offset != NO_UNIT:
            mine = slot == get.claimed_slot - 1
            _, waiting = near_entries(engine.near)
            taken = offset[mine & np.isin(units.message[order], waiting)]
            rest = offset[mine & (offset < taken.min(initial=1 << 62))]
            get.claim_offset = int(rest.max()) if len(rest) else NO_UNIT


@kernel_later
def _set_previous(world: World, offset: int, previous: int) -> bool:
    """Make a unit point to another one; False where its segment is not mapped."""
    buf = segment_at(world.timerlog, offset)
    if len(buf) == 0:
        return False
    at = offset % world.timerlog.segment_bytes
    by_broker = is_broker_unit(buf, at)
    put_i64(buf, at + fmt.UNIT_PREV_AT, previous)
    if not by_broker:
        put_i32(buf, at + fmt.UNIT_CRC_AT, unit_crc(buf, at, offset, world.scratch))
    return True


@kernel_later
def _set_head(wheel: SlotArray, slot: int, first: int, last: int, count: int) -> None:
    """Write a slot of the wheel."""
    set_slot(wheel, slot, first, last, count)
