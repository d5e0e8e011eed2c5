"""What waits in the delay levels, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine import Engine
from timerstore.services.instant import Instant
from timerstore.services.levels import LEVEL_COUNT, LevelTable
from timerstore.services.pending_rows import reading_of
from timerstore.timelog.append import QueueTable
from timerstore.timelog.consumequeue import Entries, find_row
from timerstore.timelog.format import (
    MESSAGE_BORN_AT,
    MESSAGE_QUEUE_ID_AT,
    MESSAGE_QUEUE_INDEX_AT,
    QUEUE_BLANK_SIZE,
)
from timerstore.timelog.jit.intrinsics import get_i32, get_i64
from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.timelog.jit.record import Flags, Rows, Words
from timerstore.timelog.message import (
    BODY_BYTES,
    FOUND_WORDS,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    identify_timer,
)
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.wheel.pending import DONE, GONE, PENDING, Reading, judge_message
from timerstore.wheel.sets import map_get

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


@kernel_ahead
def _read_levels(
    commitlog: SegmentTable,
    queues: QueueTable,
    messages: Words,
    reading: Reading,
    found: Words,
    columns: Rows,
    verdicts: Words,
    start: int,
) -> int:
    """Read messages from `start` on: `columns` int64[5, n], as in `LevelTimers` from `high` on.

    `verdicts`: int64[n], written, see `wheel/pending.py`. Return the first message whose segment or
    whose topic's row is missing, or n.
    """
    for i in range(start, len(messages)):
        message = messages[i]
        verdicts[i] = DONE
        if reading.done_count > 0 and map_get(reading.done, message) >= 0:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        at = message % commitlog.words[SEGMENT_BYTES]
        verdicts[i] = judge_message(buf, at, message, True, reading, found)
        if verdicts[i] != PENDING:
            continue
        identify_timer(buf, found, reading.tag)
        columns[0, i] = found[IDENTITY_HIGH]
        columns[1, i] = found[IDENTITY_LOW]
        columns[2, i] = find_row(
            queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
        )
        if columns[2, i] < 0:
            return i
        columns[3, i] = get_i64(buf, at + MESSAGE_BORN_AT)
        columns[4, i] = found[BODY_BYTES]
    return len(messages)


def find_waiting(engine: Engine, instant: Instant) -> LevelTimers:
    """Return what waited in all levels at an instant, without what was cancelled. O(waiting).

    Not under the locks. What was delivered and removed since is left out.
    """
    parts = [_read_chunk(engine, instant, entries) for entries in level_entries(engine, instant)]
    none = np.zeros(0, np.int64)
    found = [LevelTimers(none, none, none, none, none, none, none, none), *parts]
    return LevelTimers(*map(np.concatenate, zip(*found, strict=True)))


def level_entries(engine: Engine, instant: Instant) -> Iterator[Entries]:
    """Yield the entries that waited in all levels at an instant, in chunks, without blanks."""
    ranges = zip(instant.level_start.tolist(), instant.level_stop.tolist(), strict=True)
    for level, (start, stop) in enumerate(ranges):
        row = int(engine.levels.row[level])
        for index in range(start, stop, _CHUNK) if row >= 0 else ():
            entries = read_kept(engine, row, index, min(index + _CHUNK, stop))
            yield entries[entries["size"] != QUEUE_BLANK_SIZE]


def _read_chunk(engine: Engine, instant: Instant, entries: Entries) -> LevelTimers:
    messages = entries["offset"].astype(np.int64)
    columns, verdicts = np.zeros((5, len(messages)), np.int64), np.zeros(len(messages), np.int64)
    found, done = np.zeros(FOUND_WORDS, np.int64), 0
    reading = reading_of(engine, instant.cancelled)
    while True:
        with engine.commitlog.reading() as commitlog:
            done = _read_levels(
                commitlog,
                engine.queues.table,
                messages,
                reading,
                found,
                columns,
                verdicts,
                done,
            )
        if done == len(messages):
            break
        message = int(messages[done])
        try:
            engine.commitlog.existing(message // engine.commitlog.segment_bytes)
            if columns[2, done] < 0:
                engine.row_of_message(message)
        except CorruptStoreError:
            if message >= engine.commitlog.start:
                raise
            verdicts[done] = GONE  # delivered and removed since
            done += 1
            continue
        if columns[2, done] < 0:
            columns[2, done] = 0
    due_ms = entries["tags_code"].astype(np.int64)
    kept = verdicts == PENDING
    return LevelTimers(
        *(messages[kept], due_ms[kept], *columns[:, kept], messages[verdicts < 0]),
    )


def read_kept(engine: Engine, row: int, start: int, stop: int) -> Entries:
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
        at = sources[i] % commitlog.words[SEGMENT_BYTES]
        level = get_i32(buf, at + MESSAGE_QUEUE_ID_AT)
        waits[i] = False
        if level >= 0 and level < levels.words[LEVEL_COUNT]:
            waits[i] = get_i64(buf, at + MESSAGE_QUEUE_INDEX_AT) >= levels.offset[level]
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
        log.trim()
        log.existing(int(sources[kept[done]]) // log.segment_bytes)
    waits[kept] = found
    return waits
