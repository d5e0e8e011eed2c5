"""How many timers are pending: counted from the units, or as a clean close stored it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine import Engine
from timerstore.services.pass_lost import pass_lost
from timerstore.services.pending_rows import reading_of
from timerstore.services.recover_deletes import live_units
from timerstore.services.recover_removed import count_removed
from timerstore.services.state import LOST_COUNT_MAX
from timerstore.services.world import World, note_lost
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import MESSAGE_BORN_AT, UNIT_DELETE
from timerstore.timelog.intrinsics import get_i64
from timerstore.timelog.jsonfile import check_seal, read_json
from timerstore.timelog.kernel import kernel_later
from timerstore.timelog.message import (
    BODY_BYTES,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    exact_due_ms,
)
from timerstore.timelog.record import Rows, Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, segment_at
from timerstore.timelog.tally import count_pending
from timerstore.wheel import chain
from timerstore.wheel.pending import CANCELLED, PENDING, Reading, judge_message
from timerstore.wheel.sets import map_get


def count_units(engine: Engine) -> int:
    """Count the pending timers of each topic from the units; return how many are gone."""
    engine.queues.table.pending[:] = 0
    where, removed_count = np.zeros(1, np.int64), 0
    reading = reading_of(engine, engine.cancelled.table)
    for units in live_units(engine):
        removed_count += count_removed(engine, units)
        where[0] = 0
        while not _count_units(engine.world, units, reading, where, engine.clock.now_ms):
            message = int(units[where[0], chain.WALK_MESSAGE])
            pass_lost(engine, engine.world.dequeue_put.thread)
            engine.commitlog.trim()
            engine.commitlog.readable(message // engine.commitlog.segment_bytes)
            engine.row_of_message(message)
    pass_lost(engine, engine.world.dequeue_put.thread)
    return removed_count


@kernel_later
def _count_units(world: World, units: Rows, reading: Reading, where: Words, now_ms: int) -> bool:
    """Count timers from `where[0]` on; return False where a segment or a topic's row is missing."""
    found = world.found
    while where[0] < len(units):
        message = units[where[0], chain.WALK_MESSAGE]
        is_done = reading.done_count > 0 and map_get(reading.done, message) >= 0
        if is_done or units[where[0], chain.WALK_MAGIC] & UNIT_DELETE != 0:
            where[0] += 1
            continue
        buf = segment_at(world.commitlog, message)
        if len(buf) == 0:
            return False
        at = message % world.commitlog.words[SEGMENT_BYTES]
        verdict = judge_message(buf, at, message, False, reading, found)
        if verdict == PENDING:
            count = found[REAL_TOPIC_BYTES]
            queue = max(0, found[REAL_QUEUE])
            row = find_row(world.queues, buf, found[REAL_TOPIC_AT], count, queue)
            if row < 0:
                return False
            world.queues.pending[row] += 1
            due_ms = exact_due_ms(buf, found, reading.tag, reading.precision_ms)
            born_ms, body_bytes = get_i64(buf, at + MESSAGE_BORN_AT), found[BODY_BYTES]
            count_pending(world.queues.tally, row, due_ms, born_ms, body_bytes, now_ms)
        elif verdict != CANCELLED:
            if world.dequeue_put.thread.lost_count == LOST_COUNT_MAX:
                return False
            note_lost(world.dequeue_put.thread, message, units[where[0], chain.WALK_MAGIC])
        where[0] += 1
    return True


def stored_counts(engine: Engine) -> dict[str, Any] | None:
    """Return the counts that a clean close stored."""
    path = engine.path / "config" / "timermetrics"
    try:
        metrics = read_json(path, engine.disk.read)
        check_seal(path, metrics or {})
    except CorruptStoreError as e:  # they are counted again
        engine.damage.note("config/timermetrics", e.offset, e.reason)
        return None
    if metrics is None or not isinstance(metrics.get("timingCount"), dict):
        return None
    # Nobody knew of which topic a lost message was, or it is met again, and must not count twice.
    is_sure = not (metrics.get("unattributedCount") or metrics.get("damagedCount"))
    return metrics if is_sure else None


def take_stored(engine: Engine, counts: dict[str, Any]) -> None:
    """Take each topic's count from what a clean close stored."""
    for topic, entry in counts.items():
        row = engine.queues.row(os.fsencode(topic))
        engine.queues.table.pending[row] = int(entry["count"])
