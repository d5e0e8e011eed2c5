"""The verdict on timers of this store: pending, cancelled, or too late.

It falls under fire, under which dequeue-put appends what it took. A timer that is due after the
frontier was certainly not taken; only for one that is overdue is it looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.arguments import (
    Int64s,
)
from timerstore.core import Core
from timerstore.errors import UnknownTimerError
from timerstore.ids import TimerId, TimerIds, format_id, parse_id
from timerstore.pending.overdue import find_moved, find_overdue
from timerstore.timelog.append import QUEUE_COUNT_MAX, QueueTable
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import (
    LEVEL_COUNT_MAX,
    LEVEL_MARK,
    MESSAGE_QUEUE_ID_AT,
    MESSAGE_QUEUE_INDEX_AT,
)
from timerstore.timelog.intrinsics import get_i32, get_i64
from timerstore.timelog.kernel import inlined, kernel_ahead
from timerstore.timelog.message import (
    DELETES_BYTES,
    FOUND_WORDS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    KEY_AT,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    identify_timer,
    read_message,
)
from timerstore.timelog.record import Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.timelog.text import get_hex
from timerstore.wheel.sets import map_get

Bools = np.ndarray[Any, np.dtype[np.bool_]]

_UNKNOWN: Final = -1
_GONE: Final = -2
_UNMAPPED: Final = -3
_NO_ROW: Final = -4


class Verdict(NamedTuple):
    """What is known of some of this store's timers, one each."""

    due_ms: Int64s
    offset: Int64s  # as in the id: of a delay level's with LEVEL_MARK
    message: Int64s  # the first put, or where that was removed the latest copy, −1 for none
    row: Int64s  # queue of the real topic; of a delay level's + QUEUE_COUNT_MAX
    pending: Bools
    cancelled: Bools


@inlined
def row_of_first_put(
    queues: QueueTable, buf: Any, found: Words, due_ms: int, offset: int, tag: int
) -> int:
    """Return the row of the real topic's queue of a message that was read.

    _UNKNOWN where it is not the first put of the id with this due time and offset; _NO_ROW where
    nothing was put to that topic or fired since the store was opened.
    """
    if found[REAL_TOPIC_BYTES] < 0 or found[DELETES_BYTES] >= 0:
        return _UNKNOWN
    identify_timer(buf, found, tag)
    if found[IDENTITY_HIGH] != IDENTITY_OURS or found[IDENTITY_LOW] != offset:
        return _UNKNOWN
    if get_hex(buf, found[KEY_AT], 12) != due_ms:
        return _UNKNOWN
    row = find_row(
        queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
    )
    return row if row >= 0 else _NO_ROW


@kernel_ahead
def _look_up(
    commitlog: SegmentTable,
    queues: QueueTable,
    offsets: Words,
    due_ms: Words,
    tag: int,
    start: int,
    end: int,
    done: Words,
    done_count: int,
    found: Words,
    rows: Words,
    indexes: Words,
    levels: Words,
) -> int:
    """Read the first put of each id; `rows`: written: its real topic's queue, _UNKNOWN or _GONE.

    Or _NO_ROW, where nothing was put to that topic or fired since the store was opened.

    `indexes`: written: its index in the timer topic's queue, or in that of `levels`, its delay
    level − 1. Return the first whose segment is not mapped, or n. `start`, `end`: what the commit
    log holds.
    """
    for i in range(len(offsets)):
        if rows[i] != _UNMAPPED and rows[i] != _NO_ROW:
            continue
        offset = offsets[i] & ~LEVEL_MARK
        rows[i] = _UNKNOWN
        if offset < start:
            rows[i] = _GONE
            continue
        if offset >= end:
            continue
        buf = segment_at(commitlog, offset)
        if len(buf) == 0:
            rows[i] = _UNMAPPED
            return i
        at = offset % commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) != GOOD:
            continue
        rows[i] = row_of_first_put(queues, buf, found, due_ms[i], offsets[i], tag)
        if rows[i] == _NO_ROW:
            return i
        if rows[i] == _UNKNOWN:
            continue
        indexes[i] = get_i64(buf, at + MESSAGE_QUEUE_INDEX_AT)
        if offsets[i] >= LEVEL_MARK:
            rows[i] += QUEUE_COUNT_MAX
            levels[i] = get_i32(buf, at + MESSAGE_QUEUE_ID_AT) & (LEVEL_COUNT_MAX - 1)
            if done_count > 0 and map_get(done, offset) >= 0:
                indexes[i] = -1  # an earlier life has delivered it
    return len(offsets)


def parse(core: Core, ids: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Return due times and offsets of ids that must be this store's."""
    tag = core.engine.store_tag
    if isinstance(ids, TimerIds):
        parts: list[TimerId | None] = []
        if ids._tag == tag:
            return ids.due_ms, ids.offsets
        raise _unknown(ids[0])
    due_ms, offsets = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    parts = [parse_id(each) for each in ids]
    for i, part in enumerate(parts):
        if part is None or part.tag != tag:
            raise _unknown(ids[i])
        due_ms[i], offsets[i] = part.due_ms, part.offset
    return due_ms, offsets


def _unknown(id: object) -> UnknownTimerError:
    return UnknownTimerError(f"{id!r} is no timer of this store. Pass an id that put returned.")


class Found(NamedTuple):
    """Where the first puts of some of this store's timers lie."""

    due_ms: Int64s
    offset: Int64s
    row: Int64s  # queue of the real topic, or _GONE; of a delay level's + QUEUE_COUNT_MAX
    entry: Int64s  # index in the timer topic's queue, or in its level's
    level: Int64s  # delay level − 1, or −1 for a timer


def find(core: Core, due_ms: Int64s, offsets: Int64s) -> Found:
    """Find the first put of each id; raise UnknownTimerError where there was none."""
    engine = core.engine
    rows, indexes = np.full(len(offsets), _UNMAPPED, np.int64), np.zeros(len(offsets), np.int64)
    levels = np.full(len(offsets), -1, np.int64)
    found, pins = np.zeros(FOUND_WORDS, np.int64), []
    while True:
        with engine.commitlog.reading():
            stopped = _look_up(
                engine.commitlog.table,
                engine.queues.table,
                offsets,
                due_ms,
                engine.store_tag,
                engine.commitlog.start,
                engine.commitlog.end,
                engine.done,
                engine.world.done.count,
                found,
                rows,
                indexes,
                levels,
            )
        if stopped == len(offsets):
            break
        message = int(offsets[stopped]) & ~LEVEL_MARK
        pins.append(engine.commitlog.existing(message // engine.commitlog.segment_bytes))
        if rows[stopped] == _NO_ROW:
            engine.row_of_message(message)
    unknown = np.flatnonzero(rows == _UNKNOWN)
    if len(unknown):
        i = int(unknown[0])
        raise _unknown(format_id(int(due_ms[i]), int(offsets[i]), engine.store_tag))
    return Found(due_ms, offsets, rows, indexes, levels)


def judge(core: Core, ids: Sequence[str], *, locked: bool = False) -> Verdict:
    """Decide which timers are pending. With `locked` the caller holds all locks of the services."""
    found = find(core, *parse(core, ids))
    if locked:
        return _decide(core, found)
    with core.engine.locks:
        return _decide(core, found)


def _decide(core: Core, found: Found) -> Verdict:
    """Decide under all locks of the services."""
    due_ms, offsets, rows, indexes, levels = found
    engine, world = core.engine, core.engine.world
    high = np.full(len(offsets), IDENTITY_OURS, np.int64)
    cancelled = engine.cancelled.contains(high, offsets)
    of_level = offsets >= LEVEL_MARK
    waits = of_level & (rows != _GONE) & ~cancelled & (indexes >= engine.levels.offset[levels])
    kept = (rows != _GONE) & ~cancelled & ~of_level
    # A cancelled roll is dropped long before its time, so R may be past what was ever taken.
    passed_ms = engine.read_slot * engine.precision_ms
    frontier_ms = max(world.dequeue_put.frontier_ms, passed_ms - 1)
    pending = kept & (due_ms > frontier_ms)
    pending |= kept & (indexes >= world.enqueue_put.linked_index)
    overdue = kept & ~pending
    if overdue.any():
        pending[overdue] = find_overdue(core, due_ms[overdue], offsets[overdue], rows[overdue])
    pending |= waits
    messages = offsets & ~LEVEL_MARK
    gone = (rows == _GONE) & ~cancelled & ~of_level
    if gone.any():
        messages[gone], rows[gone] = find_moved(core, due_ms[gone], offsets[gone])
        pending[gone] = (messages[gone] >= 0) & (rows[gone] >= 0)
    return Verdict(due_ms, offsets, messages, rows, pending, cancelled)


def is_foreign(core: Core, id: object) -> bool:
    """Tell whether an id can only be a broker's unique key."""
    if (
        not isinstance(id, str)
        or not id
        or any("\ud800" <= each < "\udc80" or (each > "\udcff" and each < "\ue000") for each in id)
    ):
        return False  # no key at all
    part = parse_id(id)
    return part is None or part.tag != core.engine.store_tag
