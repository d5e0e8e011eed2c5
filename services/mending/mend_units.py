"""Mending chains: what is sound of the timer log fires on, past units that are damaged.

A chain that leads through a damaged unit hides those before it. While a store is open the timer log
is read once, and each slot's sound units are linked anew. Damaged units between two sound ones are
written again: units that no hop linked stand in the order of the timer topic's queue, so their
messages are known if none of them is a hop's, and their slots are those of the units or heads that
point to them. Of any other the timer waits: the timer index is marked to be rebuilt, which the next
opening does (`rebuild.py`), and nothing is removed until then.
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
    WRONG_UNIT_REASON,
    LoggedUnits,
    NewUnit,
    put_unit,
)
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.jit.acting import acting_as
from timerstore.timelog.jit.kernel import kernel_later
from timerstore.timelog.jit.record import Words
from timerstore.timelog.reading import units as kernels
from timerstore.timelog.reading.reader import ReadSegments
from timerstore.wheel.chain import point_all_back
from timerstore.wheel.slots import NO_UNIT, set_head

_WRITTEN_AGAIN_MAX: Final = 4_096
"""Damaged units that are written again in one go; more wait for the rebuild."""
_HOPS_PASSED_MAX: Final = 65_536
"""So many units of hops, or damaged ones, are looked at between a damaged one and a neighbour."""
_NO_INDEX: Final = -2


class _Units(NamedTuple):
    """Sound units of slots that are not passed, in the order of the log; int64[n] each."""

    offset: Words
    slot: Words
    previous: Words
    message: Words
    is_delete: Words


def mend_units(engine: Engine, offset: int) -> None:
    """Link all sound units of slots from R on anew; `offset`: the place of the damage. O(units).

    Only dequeue-get's thread calls this, which answers its needs; or enqueue-put's.
    """
    engine.damage.note("timerlog", offset, WRONG_UNIT_REASON)
    engine.rebuild_wanted |= {TIMERS}
    write_mark(engine.disk, engine.path, engine.rebuild_wanted)
    with engine.locks.guard(), acting_as(DEQUEUE_GET):
        units, damaged = _read_units(engine)
        if len(damaged) <= _WRITTEN_AGAIN_MAX:
            for each in damaged.tolist():
                engine.damage.note("timerlog", each, WRONG_UNIT_REASON)
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
    reader = ReadSegments(
        log.folder, "timerlog", log.segment_bytes, engine.disk.at, open_count_max=4
    )
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
    """Write a damaged unit again; False if its message or its slot cannot be told."""
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
    """Return the message of a damaged unit, by the entries of its neighbours; −1 if unknown.

    Of the damaged units between two sound neighbours one may be a hop's, which has no entry between
    theirs. So they are known if as many entries are missing as units are damaged.
    """
    before, damaged_before = _index_beside(engine, offset, -1)
    after, damaged_after = _index_beside(engine, offset, 1)
    if before == _NO_INDEX or after == _NO_INDEX:
        return -1
    index = before + damaged_before + 1
    if after != index + damaged_after + 1:
        return -1
    if index < engine.queues.first_index(0) or index >= engine.world.enqueue_put.linked_index:
        return -1
    return int(engine.queues.read(0, index, 1)[0]["offset"])


def _index_beside(engine: Engine, offset: int, step: int) -> tuple[int, int]:
    """Return the queue index of the nearest sound unit's message, _NO_INDEX if it has none.

    With it comes how many damaged units lie between. Units of hops are passed by. If the log has no
    more units: the index before its first one, or behind its last.
    """
    log = engine.timerlog
    room = (log.segment_bytes - fmt.TIMERLOG_BLANK_BYTES) // fmt.UNIT_BYTES
    number, position = divmod(offset, log.segment_bytes)
    at, damaged = number * room + position // fmt.UNIT_BYTES, 0
    units, unit = PinnedLog(log), LoggedUnits.room(1)
    for _ in range(_HOPS_PASSED_MAX):
        at += step
        if at < 0:
            return -1, damaged
        number, place = divmod(at, room)
        beside = number * log.segment_bytes + place * fmt.UNIT_BYTES
        if beside >= log.end:
            return int(engine.world.enqueue_put.linked_index), damaged
        if number not in log.numbers or beside < log.start:
            break
        units.map_from(beside)
        where = np.array([beside, 0], np.int64)
        kernels.read_units(units.table, log.end, kernels.EVERY_UNIT, unit, where)
        if unit.status[0] != UNIT_GOOD:
            damaged += 1
        elif not unit.magic[0] & fmt.UNIT_HOP:
            return _index_of(engine, int(unit.message[0])), damaged
    return _NO_INDEX, damaged


def _index_of(engine: Engine, message: int) -> int:
    """Return the queue index of a message; _NO_INDEX if it has none."""
    commitlog, queues = engine.commitlog, engine.queues
    if not commitlog.start <= message < commitlog.end:
        return _NO_INDEX
    index = int.from_bytes(
        commitlog.read(message + fmt.MESSAGE_QUEUE_INDEX_AT, 8), "big", signed=True
    )
    if not queues.first_index(0) <= index < queues.next_index(0):
        return _NO_INDEX
    return index if int(queues.read(0, index, 1)[0]["offset"]) == message else _NO_INDEX


@kernel_later
def _write_again(
    world: World, offset: int, previous: int, slot: int, message: int, now_ms: int
) -> bool:
    """Write the unit of a message into a slot that it was placed in; False if it cannot be."""
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
    put_unit(buf, offset % world.timerlog.segment_bytes, offset, unit)
    return True


# --- chains


def _link(engine: Engine, units: _Units) -> None:
    """Make each sound unit point to the one before it in its slot, and each slot to its last.

    A chain that led to a unit that retention has removed leads there still.
    """
    order = np.lexsort((units.offset, units.slot))
    offset, slot, previous = units.offset[order], units.slot[order], units.previous[order]
    is_first = np.diff(slot, prepend=-1) != 0
    is_cut = is_first & (previous != NO_UNIT) & (previous < engine.timerlog.start)
    expected = np.where(is_first, np.where(is_cut, previous, NO_UNIT), np.roll(offset, 1))
    for link in np.stack((offset, expected), axis=1)[previous != expected]:
        engine.timerlog.trim()
        with engine.timerlog.reading() as table:
            engine.timerlog.reserve(int(link[0]), int(link[0]) + fmt.UNIT_BYTES)
            while point_all_back(table, link.reshape(1, 2)) < 0:
                engine.timerlog.existing(int(link[0]) // engine.timerlog.segment_bytes)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(slot))[: len(firsts)] - 1
    change = np.concatenate([[0], np.cumsum(1 - 2 * units.is_delete[order])])
    heads = {
        int(slot[low]): (int(offset[low]), int(offset[high]), int(change[high + 1] - change[low]))
        for low, high in zip(firsts.tolist(), lasts.tolist(), strict=True)
    }
    cut = set(slot[is_cut].tolist())
    world, wheel = engine.world, engine.wheel.slots
    aside_stop = 0
    if engine.read_slot < world.dequeue_put.aside_stop:
        aside_stop = world.dequeue_put.aside_stop
    unclaimed = wheel["time"] >= world.dequeue_get.claimed_slot
    unclaimed |= (wheel["time"] >= world.aside.claimed_slot) & (wheel["time"] < aside_stop)
    held = set(wheel["time"][unclaimed].tolist())
    for each in sorted(held - heads.keys()):
        set_head(engine.world.wheel, each, NO_UNIT, NO_UNIT, 0)
    for each, head in heads.items():
        there = wheel[each % len(wheel)]
        is_same = (int(there["time"]), int(there["last"])) == (each, head[1])
        if not is_same or (each not in cut and int(there["first"]) != head[0]):
            set_head(engine.world.wheel, each, *head)
    for get in (world.dequeue_get, world.aside):
        if get.claim_offset != NO_UNIT:
            # What was walked of its chain stands behind that.
            rest = offset[(slot == get.claimed_slot - 1) & (offset <= get.claim_offset)]
            get.claim_offset = int(rest.max()) if len(rest) else NO_UNIT
