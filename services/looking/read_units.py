"""The units of an open store in the order of the timer log; what is damaged there is an error.

Behind it those of slots, newest first. Code that may go on past damage uses
`timelog/reading/units.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import copy_bytes, get_i64
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Bytes, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.looking.instant import Instant
from timerstore.services.world.floor import read_floor
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts, is_plain, read_message
from timerstore.timelog.bytes.text import get_hex_8, get_hex_12
from timerstore.timelog.bytes.unit import NO_UNIT, WRONG_UNIT_REASON, Units
from timerstore.timelog.files.segments import PinnedLog, SegmentedFile
from timerstore.timelog.files.segmenttable import (
    MESSAGES_AHEAD,
    SegmentTable,
    prefetch_message,
    segment_at,
)
from timerstore.timelog.reading.reader import FEW_MAPS, ReadSegments
from timerstore.timelog.reading.scan import LoggedMessages, LoggedParts, ReadAs
from timerstore.timelog.timerlog import (
    CHUNK_ROWS,
    LANE_COUNT,
    WALK_DAMAGED,
    WALK_DONE,
    WALK_UNMAPPED,
    scan_units,
)
from timerstore.timelog.writing.append import QueueTable
from timerstore.timelog.writing.consumequeue import find_row
from timerstore.wheel import judge as pending
from timerstore.wheel.judge import (
    GONE,
    IN_MESSAGE,
    PENDING,
    PendingRead,
    PlacesRead,
    Reading,
    places_to_read,
    read_places,
)

SCAN_UNITS: Final = 16_384


def unit_reader(engine: Engine) -> ReadSegments | PinnedLog:
    """Return what reads units through maps of its own: those of the services stay as they are.

    If nothing is written, units that recovery linked are only in the engine's maps. O(segments).
    """
    return own_maps(engine, engine.timerlog) if engine.disk.writes else PinnedLog(engine.timerlog)


def own_maps(engine: Engine, log: SegmentedFile) -> ReadSegments:
    """Return a log's files, of which FEW_MAPS are mapped at most. O(segments)."""
    return ReadSegments(
        log.folder, log.name, log.segment_bytes, engine.disk.at, open_count_max=FEW_MAPS
    )


def all_units(
    engine: Engine,
    start: int,
    stop: int,
    from_slot: int = -1,
    reader: ReadSegments | PinnedLog | None = None,
) -> Iterator[Units]:
    """Yield the units in [start, stop) of slots from `from_slot` on; overwritten by the next.

    `reader`: who reads several ranges makes one for all of them.
    """
    yield from _units(engine, reader or unit_reader(engine), start, stop, from_slot)


def live_units(engine: Engine) -> Iterator[Units]:
    """Yield the units from the read cursor on that are not superseded; overwritten by the next.

    No service runs: they are read through the engine's own maps.
    """
    log, floor = engine.timerlog, read_floor(engine.world)
    for units in _units(engine, PinnedLog(log), log.start, log.end, engine.read_slot):
        kept = ~floor.superseded(units)
        if kept.any():
            yield units if kept.all() else units[kept]


def _units(
    engine: Engine, reader: ReadSegments | PinnedLog, start: int, stop: int, from_slot: int
) -> Iterator[Units]:
    units = Units.room(SCAN_UNITS)
    where = np.array([start, 0], np.int64)
    while where[0] < stop:
        part = read_units(engine, reader, stop, from_slot, units, where)
        if len(part):
            yield part
        if where[1] == WALK_DONE:
            return


def read_units(
    engine: Engine,
    reader: ReadSegments | PinnedLog,
    stop: int,
    from_slot: int,
    units: Units,
    where: Words,
) -> Units:
    """Read units before `stop` as `scan_units` does, mapped on the way; damage is an error.

    Segments that are removed meanwhile are skipped: nobody needs their units.
    """
    log = engine.timerlog
    while True:
        before = where[0] = max(int(where[0]), log.start)
        try:
            is_there = reader.map_from(before)
        except FileNotFoundError:
            is_there = False
        if is_there or before >= log.start:
            break
    count = scan_units(
        reader.table, stop, from_slot, engine.precision_ms, engine.hop_ms, units, where
    )
    if where[1] == WALK_DAMAGED:
        raise CorruptStoreError("timerlog", int(where[0]), WRONG_UNIT_REASON)
    if where[1] == WALK_UNMAPPED and where[0] == before:
        number = int(before) // log.segment_bytes
        offset = (number + (number in log.numbers)) * log.segment_bytes
        raise CorruptStoreError("timerlog", offset, "this segment is missing")
    return units[:count]


# --- Units of slots: their chains walked from the newest, with segments mapped on the way.


def slot_units(
    engine: Engine,
    slot: int,
    start: int = NO_UNIT,
    chunk_rows: int = CHUNK_ROWS,
    hold: Hold | None = None,
) -> Iterator[Units]:
    """Yield a slot's units in chunks, newest first, from `start` on: see `chain_units`."""
    if start == NO_UNIT:
        used = engine.wheel.get(slot)
        start = NO_UNIT if used is None else used.last
    yield from chain_units(engine, np.array([[slot, start]], np.int64), chunk_rows, 1, hold)


def chain_units(
    engine: Engine,
    chains: Words,
    chunk_rows: int = CHUNK_ROWS,
    lane_count: int = LANE_COUNT,
    hold: Hold | None = None,
) -> Iterator[Units]:
    """Yield the units of chains in chunks, each chain newest first.

    `chains`: int64[n, 2], a slot with the unit to begin at. `lane_count`: so many chains are walked
    in turn. A chain ends if its next units were removed as done with, or are damaged. `hold`: under
    which the chains were captured, so that a unit which is gone may be needed still: LapsedError.
    A chunk is written over by the next.
    """
    log = engine.timerlog
    yield from log.chains(
        chains,
        engine.precision_ms,
        engine.hop_ms,
        chunk_rows,
        lane_count,
        (lambda offset: None) if hold is None else partial(hold.pass_missing, log),
    )


# --- Reading the messages of pending timers into columns, whose segments are mapped on the way.

T = TypeVar("T")


def reading_of(engine: Engine, cancelled: Words, *, verify: bool = True) -> Reading:
    """Return how messages of an open store are read if that may be cancelled."""
    return Reading(
        ReadAs(engine.store_tag, engine.precision_ms, engine.level_ms, verify),
        done=engine.done,
        done_count=int(engine.world.done.count),
        cancelled=cancelled,
    )


def reading_all(engine: Engine) -> Reading:
    """Return how messages are read if nothing is known to be done or cancelled."""
    return reading_of(engine, np.zeros(0, np.int64))._replace(done_count=0)


def read_timers(
    engine: Engine, messages: Words, reading: Reading, due_ms: Words | int = IN_MESSAGE
) -> PendingRead:
    """Read the messages at timers' places, while no service runs. O(bytes).

    `due_ms`: see `places_to_read`.
    """
    log, queues, found = engine.commitlog, engine.queues.table, MessageParts()
    columns, done = places_to_read(messages, due_ms), 0
    while True:
        with log.reading() as table:
            done = pending.read_pending(table, queues, reading, found, columns, done)
        if done == len(messages):
            return columns
        message = int(messages[done])
        if columns.verdict[done] == PENDING:  # its topic has no row yet
            engine.row_of_message(message)
        else:
            log.readable(message // log.segment_bytes)


def look_held(log: SegmentedFile, offset: int, hold: Hold, look: Callable[[], T]) -> T | None:
    """Return what a look at a place finds that was captured under a hold.

    None if it was done with before. Raises LapsedError if the hold has lapsed and the place is
    gone, and what the look raises if the place is damaged.
    """
    try:
        return look()
    except CorruptStoreError:
        if offset >= log.start:
            raise
        hold.pass_missing(log, offset)
        return None


# --- The pending timers of an open store, read as rows, chunk by chunk.

CHUNK_MESSAGES: Final = 8_192


def read_rows(
    engine: Engine,
    log: PinnedLog,
    instant: Instant,
    messages: Words,
    due_ms: Words,
    tell: Callable[[int], None],
) -> Iterator[tuple[LoggedMessages, LoggedParts]]:
    """Yield rows and parts of the timers among messages that were pending at an instant.

    `messages`, `due_ms`: of `Places.in_log_order`, best in their order. The arrays are overwritten
    by the next step, until which texts can be read by their places. `tell` is called with the
    offset of each that is damaged, which is left out. Raises LapsedError. O(bytes).
    """
    reading = reading_of(engine, instant.cancelled)
    rows, parts = LoggedMessages.room(CHUNK_MESSAGES), LoggedParts.room(CHUNK_MESSAGES)
    verdicts = np.zeros(CHUNK_MESSAGES, np.int64)
    into = PlacesRead(rows, parts, verdicts)
    found, state = MessageParts(), np.zeros(1, np.int64)
    for at in range(0, len(messages), CHUNK_MESSAGES):
        message, level_due_ms = (each[at : at + CHUNK_MESSAGES] for each in (messages, due_ms))
        log.pin(message)
        state[0] = 0
        given = log.table, message, level_due_ms, reading, into, found, state
        while read_places(*given) >= 0:
            instant.snapshot.hold.pass_missing(engine.commitlog, int(message[state[0]]))
            verdicts[state[0]] = GONE
            state[0] += 1
        for offset in message[verdicts[: len(message)] < 0].tolist():
            tell(offset)
        pending = verdicts[: len(message)] == PENDING
        if pending.all():
            yield rows[: len(message)], parts[: len(message)]
        else:
            yield rows[: len(message)][pending], parts[: len(message)][pending]


# --- Where the parts of a pending timer's message lie, so that Python can cut them out.

# Where a message's parts begin and end in its segment.
SPAN_STATUS: Final = 0  # what `read_message` says of it; −1 if it is not mapped
SPAN_BODY: Final = 1
SPAN_BODY_END: Final = 2
SPAN_PROPERTIES: Final = 3
SPAN_PROPERTIES_END: Final = 4
SPAN_BORN_MS: Final = 5
SPAN_ROW: Final = 6  # of its real topic's queue; −1: its properties have to be looked at
SPAN_KEY: Final = 7  # in a row: the user's key, −1 for none
SPAN_KEY_END: Final = 8
SPAN_TAG: Final = 9
SPAN_TAG_END: Final = 10
SPAN_COLUMNS: Final = 11


@inlined
def _is_hex(buf: Bytes, at: int) -> bool:
    """Tell whether the 32 bytes of an id are hex digits, each a letter by itself."""
    return (
        get_hex_12(buf, at) >= 0 and get_hex_12(buf, at + 12) >= 0 and get_hex_8(buf, at + 24) >= 0
    )


@inlined
def note_parts(
    buf: Bytes, at: int, found: MessageParts, row: int, parts: Words, first: int
) -> None:
    """Note where the parts of a message that was read at `at` lie, from `parts[first]` on.

    `row`: of its real topic's queue.
    """
    parts[first + SPAN_BODY] = found.body_at
    parts[first + SPAN_BODY_END] = found.body_at + found.body_bytes
    parts[first + SPAN_PROPERTIES] = found.properties_at
    parts[first + SPAN_PROPERTIES_END] = found.properties_at + found.properties_bytes
    parts[first + SPAN_BORN_MS] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
    parts[first + SPAN_ROW] = -1
    if is_plain(buf, found) and _is_hex(buf, found.key_at):
        parts[first + SPAN_ROW] = row
        parts[first + SPAN_KEY] = found.keys_at
        parts[first + SPAN_KEY_END] = found.keys_at + found.keys_bytes
        parts[first + SPAN_TAG] = found.tags_at
        parts[first + SPAN_TAG_END] = found.tags_at + found.tags_bytes


@kernel_ahead
def find_timer_parts(
    commitlog: SegmentTable,
    queues: QueueTable,
    messages: Words,
    found: MessageParts,
    parts: Words,
    ids: Bytes,
) -> int:
    """Fill where each message's parts lie: int64[n * SPAN_COLUMNS]. O(bytes).

    `ids`: uint8[n * 32], written if SPAN_ROW is not −1: the timer's id.
    """
    for i in range(len(messages)):
        if i + MESSAGES_AHEAD < len(messages):
            prefetch_message(commitlog, messages[i + MESSAGES_AHEAD])
        buf = segment_at(commitlog, messages[i])
        at = messages[i] % commitlog.segment_bytes
        first = i * SPAN_COLUMNS
        parts[first + SPAN_STATUS] = -1
        if len(buf) == 0:
            continue
        parts[first + SPAN_STATUS] = read_message(buf, at, messages[i], found, True)
        if parts[first + SPAN_STATUS] == GOOD:
            topic_at, topic_bytes, row = found.real_topic_at, found.real_topic_bytes, -1
            if topic_bytes >= 0:
                row = find_row(queues, buf, topic_at, topic_bytes, max(0, found.real_queue))
            note_parts(buf, at, found, row, parts, first)
            if parts[first + SPAN_ROW] >= 0:
                copy_bytes(ids, i * fmt.KEY_DIGITS, buf, found.key_at, fmt.KEY_DIGITS)
    return len(messages)
