"""Where pending timers of an open store stood at an instant: messages, not yet read.

`wheel/judge.py` says what of them is pending. Each raises LapsedError if what is to be read is gone
because the instant's hold has lapsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import get_i32, get_i64
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Flags, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.looking.instant import Instant, Snapshot
from timerstore.services.looking.read_pending import kept_by, read_timers, reading_of
from timerstore.services.looking.read_units import slot_units
from timerstore.services.world.state import LevelTable
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts, read_message
from timerstore.timelog.bytes.unit import NO_UNIT, NOT_SAID, Units
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.wheel import judge as pending

# --- What waits in the delay levels, as arrays.

_CHUNK: Final = 65_536


class LevelTimers(NamedTuple):
    """Messages that wait in delay levels, one row each, by level and then in order."""

    message: Words  # commit log offset
    due_ms: Words
    high: Words  # identity
    low: Words
    row: Words  # queue of the real topic
    born_ms: Words
    body_bytes: Words
    damaged: Words  # messages that cannot be read; they are in no row


def find_waiting(engine: Engine, instant: Instant) -> LevelTimers:
    """Return what waited in all levels at an instant, without what was cancelled. O(waiting).

    Not under the locks. Raises LapsedError.
    """
    parts = [_read_chunk(engine, instant, entries) for entries in level_entries(engine, instant)]
    none = np.zeros(0, np.int64)
    found = [LevelTimers(none, none, none, none, none, none, none, none), *parts]
    return LevelTimers(*map(np.concatenate, zip(*found, strict=True)))


def level_entries(engine: Engine, instant: Instant) -> Iterator[fmt.Entries]:
    """Yield the entries that waited in all levels at an instant, in chunks, without blanks."""
    ranges = zip(instant.level_start.tolist(), instant.level_stop.tolist(), strict=True)
    for level, (start, stop) in enumerate(ranges):
        row = int(engine.levels.row[level])
        for index in range(start, stop, _CHUNK) if row >= 0 else ():
            entries = read_held(
                engine, row, index, min(index + _CHUNK, stop), instant.snapshot.hold
            )
            yield entries[entries["size"] != fmt.QUEUE_BLANK_SIZE]


def _read_chunk(engine: Engine, instant: Instant, entries: fmt.Entries) -> LevelTimers:
    messages, due_ms = (entries[name].astype(np.int64) for name in ("offset", "tags_code"))
    return read_waiting(engine, instant, messages, due_ms)


def read_waiting(engine: Engine, instant: Instant, messages: Words, due_ms: Words) -> LevelTimers:
    """Return some of what waited in levels, without what was cancelled. Raises LapsedError."""
    reading = reading_of(engine, instant.cancelled)._replace(needs_rows=True)
    locate = kept_by(instant.snapshot.hold)
    found = read_timers(engine, messages, reading, in_level=True, locate=locate)
    verdicts = found.verdict
    kept = verdicts == pending.PENDING
    who = found.high, found.low, found.row, found.born_ms, found.body_bytes
    columns = [column[kept] for column in (messages, due_ms, *who)]
    return LevelTimers(*(*columns, messages[verdicts < 0]))


def read_held(engine: Engine, row: int, start: int, stop: int, hold: Hold) -> fmt.Entries:
    """Return the entries of a queue in [start, stop) that were captured under a hold.

    Without those that were done with before. Raises LapsedError if others may be missing.
    """
    entries = read_kept(engine, row, start, stop)
    if len(entries) < stop - start:
        hold.check()
    return entries


def read_kept(engine: Engine, row: int, start: int, stop: int) -> fmt.Entries:
    """Return the entries of a queue in [start, stop) whose messages are kept.

    Retention may remove their segments meanwhile, with what was fired or delivered.
    """
    queues = engine.queues
    while True:
        first = max(start, queues.first_kept(row, engine.commitlog.start))
        try:
            return queues.read(row, first, max(0, stop - first))
        except CorruptStoreError:
            if queues.first_index(row) <= first:
                raise


@kernel_ahead
def _still_wait(
    commitlog: SegmentTable, levels: LevelTable, sources: Words, waits: Flags, start: int
) -> int:
    """Tell which messages their loops have not passed, from `start` on; `waits`: bool[n].

    Return the first whose segment is not mapped, or n.
    """
    for i in range(start, len(sources)):
        buf = segment_at(commitlog, sources[i])
        if len(buf) == 0:
            return i
        at = sources[i] % commitlog.segment_bytes
        level = get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT)
        waits[i] = False
        if level >= 0 and level < levels.count:
            waits[i] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT) >= levels.offset[level]
    return len(sources)


def still_wait(engine: Engine, sources: Words) -> Flags:
    """Tell which messages of levels their loops have not passed: bool[n]; before services run."""
    log = engine.commitlog
    waits = (sources >= log.start) & (sources < log.end)
    kept = np.flatnonzero(waits)
    found, done = np.zeros(len(kept), np.bool_), 0
    while True:
        with log.reading() as table:
            done = _still_wait(table, engine.levels, sources[kept], found, done)
        if done == len(kept):
            break
        log.existing(int(sources[kept[done]]) // log.segment_bytes)
    waits[kept] = found
    return waits


_NOTHING: Final = np.zeros(0, np.int64)


def unlinked_messages(engine: Engine, at: Snapshot) -> Words:
    """Return the timer messages that had no unit yet."""
    if at.queue_end <= at.queue_start:
        return _NOTHING
    entries = read_held(engine, 0, at.queue_start, at.queue_end, at.hold)
    return entries["offset"].astype(np.int64)


def slot_messages(engine: Engine, at: Snapshot, slot: int) -> Words:
    """Return the messages of a slot's units that were not claimed, as the snapshot saw them."""
    start = NO_UNIT
    if slot < at.claimed:
        owed = at.owed[at.owed[:, 0] == slot, 1]
        if not len(owed):
            return _NOTHING
        start = int(owed[0])
    units_of = slot_units(engine, slot, start, hold=at.hold)
    parts = [units.message[seen_units(engine, units, at)] for units in units_of]
    return np.concatenate([_NOTHING, *parts])


def seen_units(engine: Engine, units: Units, at: Snapshot) -> Flags:
    """Tell which units the snapshot saw, if they were not superseded."""
    if len(at.floor.passes):
        say_leads(engine, units, at.hold)
    seen: Flags = units.offset < at.timerlog_end
    return seen & ~at.floor.superseded(units)


def level_messages(engine: Engine, instant: Instant) -> tuple[Words, Words]:
    """Return the messages that waited in the delay levels, with their due times. O(waiting)."""
    messages, due_ms = [_NOTHING], [_NOTHING]
    for entries in level_entries(engine, instant):
        messages.append(entries["offset"].astype(np.int64))
        due_ms.append(entries["tags_code"].astype(np.int64))
    return np.concatenate(messages), np.concatenate(due_ms)


@kernel_ahead
def _say_leads(
    commitlog: SegmentTable, units: Units, precision_ms: int, found: MessageParts, start: int
) -> int:
    """Write the slots of units from `start` on that do not say them; return how far it came.

    `found`: scratch. It stops at a message whose segment is not mapped. O(n).
    """
    for i in range(start, len(units.offset)):
        message = units.message[i]
        if units.leads_to[i] != NOT_SAID or message < 0 or message >= commitlog.end:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        good = read_message(buf, message % commitlog.segment_bytes, found, False) == GOOD
        if good and found.due_ms >= 0:
            units.leads_to[i] = found.due_ms // precision_ms
    return len(units.offset)


def say_leads(engine: Engine, units: Units, hold: Hold | None = None) -> None:
    """Write the slots of units that do not say them; what cannot be read stays NOT_SAID.

    O(units), and a message read for each of those: a broker's rolls, above all.
    """
    if not (units.leads_to == NOT_SAID).any():
        return
    log, found, at = engine.commitlog, MessageParts(), 0
    while at < len(units):
        with log.reading() as table:
            at = int(_say_leads(table, units, engine.precision_ms, found, at))
        if at < len(units):
            try:
                log.existing(int(units.message[at]) // log.segment_bytes)
            except CorruptStoreError:  # removed just now, or lost
                if hold is not None and units.message[at] >= hold.commitlog:
                    hold.check()
                at += 1
