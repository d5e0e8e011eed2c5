"""What waits in the delay levels, as arrays."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine import Engine
from timerstore.services.levels import LEVEL_COUNT, LEVEL_HELD
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import (
    LEVEL_MARK,
    MESSAGE_QUEUE_ID_AT,
    MESSAGE_QUEUE_INDEX_AT,
    QUEUE_BLANK_SIZE,
)
from timerstore.timelog.intrinsics import get_i32, get_i64
from timerstore.timelog.kernel import kernel
from timerstore.timelog.message import (
    FOUND_WORDS,
    GOOD,
    IDENTITY_HELD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    identify_timer,
    read_message,
)
from timerstore.timelog.record import Words
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.wheel import state
from timerstore.wheel.sets import map_get, set_contains_all

CHUNK: Final = 65_536
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class LevelTimers(NamedTuple):
    """Messages that wait in delay levels, one row each, by level and then in order."""

    message: Words  # commit log offset
    due_ms: Words
    high: Words  # identity
    low: Words
    row: Words  # queue of the real topic


@kernel
def _read_levels(
    commitlog: Any,
    queues: Any,
    messages: Any,
    tag: int,
    done: Any,
    done_count: int,
    found: Any,
    columns: Any,
    kept: Any,
    start: int,
) -> int:
    """Read messages from `start` on: `columns` int64[3, n]: identity, row; `kept`: bool[n].

    Not kept: what cannot be read, and sources that have their copy. Return the first message whose
    segment or whose topic's row is missing, or n.
    """
    for i in range(start, len(messages)):
        kept[i] = False
        message = messages[i]
        if done_count > 0 and map_get(done, message) >= 0:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        at = message % commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) != GOOD or found[REAL_TOPIC_BYTES] <= 0:
            continue
        identify_timer(buf, found, tag)
        columns[0, i] = found[IDENTITY_HIGH]
        columns[1, i] = found[IDENTITY_LOW]
        columns[2, i] = find_row(
            queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
        )
        if columns[2, i] < 0:
            return i
        kept[i] = True
    return len(messages)


def find_waiting(engine: Engine) -> LevelTimers:
    """Return what waits in all levels, without what was cancelled. O(waiting).

    Not under the step lock. A message that is delivered meanwhile may be among them.
    """
    levels = engine.levels
    count = int(levels.words[LEVEL_COUNT])
    with engine.step_lock:
        offsets = levels.offset[:count].tolist()
    parts = [
        _read_chunk(engine, level, index, min(index + CHUNK, end))
        for level in range(count)
        if levels.row[level] >= 0
        for end in [engine.queues.next_index(int(levels.row[level]))]
        for index in range(offsets[level], end, CHUNK)
    ]
    none = np.zeros(0, np.int64)
    found = [LevelTimers(none, none, none, none, none), *parts]
    return LevelTimers(*map(np.concatenate, zip(*found, strict=True)))


def _read_chunk(engine: Engine, level: int, start: int, stop: int) -> LevelTimers:
    queues, row = engine.queues, int(engine.levels.row[level])
    start = max(start, queues.first_kept(row, engine.commitlog.start))
    entries = queues.read(row, start, max(0, stop - start))
    entries = entries[entries["size"] != QUEUE_BLANK_SIZE]
    messages = entries["offset"].astype(np.int64)
    columns, kept = np.zeros((3, len(messages)), np.int64), np.zeros(len(messages), np.bool_)
    found, done, pins = np.zeros(FOUND_WORDS, np.int64), 0, []
    while True:
        done = _read_levels(
            engine.commitlog.table,
            engine.queues.table,
            messages,
            engine.store_tag,
            engine.done,
            int(engine.words[state.DONE_COUNT]),
            found,
            columns,
            kept,
            done,
        )
        if done == len(messages):
            break
        message = int(messages[done])
        try:
            pins.append(engine.commitlog.existing(message // engine.commitlog.segment_bytes))
        except CorruptStoreError:
            if message >= engine.commitlog.start:
                raise
            done += 1  # delivered and removed since
            continue
        if columns[2, done] < 0:
            engine.row_of_message(message)
            columns[2, done] = 0
    high, low, rows = columns
    with engine.step_lock:
        kept &= ~cancelled_among(engine, messages, high, low)
    due_ms = entries["tags_code"].astype(np.int64)
    return LevelTimers(messages[kept], due_ms[kept], high[kept], low[kept], rows[kept])


def cancelled_among(engine: Engine, messages: Words, high: Words, low: Words) -> Flags:
    """Tell which messages of levels were cancelled: bool[n]. Under the step lock.

    A message that was sent back has the key of its first one, and is not meant by it.
    """
    first = (high == IDENTITY_OURS) & (low == messages | LEVEL_MARK)
    return first & in_cancelled_set(engine, high, low)


def in_cancelled_set(engine: Engine, high: Words, low: Words) -> Flags:
    """Tell which identities are in the cancelled set: bool[n]. Under the step lock."""
    found = np.zeros(len(low), np.bool_)
    set_contains_all(engine.cancelled, high, low, found)
    if engine.levels.words[LEVEL_HELD]:
        held = np.zeros(len(low), np.bool_)
        set_contains_all(engine.cancelled, np.full(len(low), IDENTITY_HELD), low, held)
        found |= held & (high == IDENTITY_OURS)
    return found


@kernel
def _still_wait(commitlog: Any, levels: Any, sources: Any, waits: Any, start: int) -> int:
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
        done = _still_wait(log.table, engine.levels, sources[kept], found, done)
        if done == len(kept):
            break
        log.trim()
        log.existing(int(sources[kept[done]]) // log.segment_bytes)
    waits[kept] = found
    return waits
