"""How many timers are pending: counted from the units, or as a clean close stored it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Words
from timerstore.services.damage.pass_lost import pass_lost
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import live_units
from timerstore.services.looking.read_pending import map_alone, read_timers, reading_of
from timerstore.services.opening.progress import OpeningProgress
from timerstore.services.world.state import LOST_COUNT_MAX
from timerstore.services.world.world import World, note_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.jsonfile import check_seal, read_json, understood, whole
from timerstore.timelog.files.names import INT64_MAX, is_topic
from timerstore.timelog.writing.tally import Counted, count_pending
from timerstore.wheel.judge import (
    CANCELLED,
    DONE,
    PENDING,
    PendingRead,
)


def count_units(engine: Engine, *, verify: bool) -> int:
    """Count the pending timers of each topic from the units; return how many are gone.

    `verify`: whether each message is checked by its CRC.
    """
    engine.queues.table.pending[:] = 0
    reading = reading_of(engine, engine.cancelled.table, verify=verify)._replace(needs_rows=True)
    removed_count, timerlog = 0, engine.timerlog
    thread = engine.world.dequeue_put.thread
    progress = OpeningProgress(engine.path, "all that is pending is counted again")
    for units in live_units(engine):
        progress.tell(int(units.offset[0]) - timerlog.start, timerlog.end - timerlog.start)
        removed_count += count_removed(engine, units)
        magic = units.magic
        timers = np.flatnonzero(magic & fmt.UNIT_DELETE == 0)
        messages, magic = units.message[timers], magic[timers]
        columns, done = read_timers(engine, messages, reading, locate=map_alone), 0
        while done < len(timers):
            now_ms = engine.clock.now_ms
            done = _count_timers(engine.world, magic, columns, done, now_ms)
            pass_lost(engine, thread)
    return removed_count


def first_kept_index(engine: Engine, queue_index: int) -> tuple[int, int]:
    """Move the queue cursor over entries whose messages are gone; return it and their count."""
    kept = engine.queues.first_kept(0, engine.commitlog.start)
    return max(queue_index, kept), max(0, kept - queue_index)


def count_removed(engine: Engine, units: Units) -> int:
    """Return how many units of timers point to messages that are gone.

    A broker's own clean-up removes segments by their age, also if timers in them wait; when one is
    due, it drops it. So do we: that is no damage. What is gone is passed by, counted, told once.
    """
    gone = units.message < engine.commitlog.start
    gone &= units.magic & fmt.UNIT_DELETE == 0
    return int(np.count_nonzero(gone))


@kernel_later
def _count_timers(world: World, magic: Words, columns: PendingRead, start: int, now_ms: int) -> int:
    """Count timers from `start` on, and note what is lost; return how many it did, from the first.

    `magic`: of their units; `columns`: see `read_pending`.
    """
    thread = world.dequeue_put.thread
    for i in range(start, len(magic)):
        verdict = columns.verdict[i]
        if verdict == PENDING:
            row = columns.row[i]
            world.queues.pending[row] += 1
            timer = Counted(columns.due_ms[i], columns.born_ms[i], columns.body_bytes[i])
            count_pending(world.queues.tally, row, timer, now_ms)
        elif verdict != CANCELLED and verdict != DONE:
            if thread.lost_count == LOST_COUNT_MAX:
                return i
            note_lost(thread, columns.message[i], magic[i])
    return len(magic)


def stored_counts(engine: Engine) -> dict[str, Any] | None:
    """Return the counts that a clean close stored."""
    path = engine.path / "config" / "timermetrics"
    try:
        metrics = read_json(path, engine.disk.read)
        check_seal(path, metrics or {})
        if metrics is None or not isinstance(metrics.get("timingCount"), dict):
            return None
        levels = metrics.get("levelCount")
        with understood("config/timermetrics"):
            for table in (metrics["timingCount"], levels if isinstance(levels, dict) else {}):
                for topic, entry in table.items():
                    if not is_topic(os.fsencode(topic)):
                        raise ValueError(f"{topic!r} is no topic")
                    whole(entry["count"])
    except CorruptStoreError as e:  # they are counted again
        engine.damage.note("config/timermetrics", e.offset, e.reason)
        return None
    return metrics


def are_sure(metrics: dict[str, Any]) -> bool:
    """Tell whether stored counts hold: else nobody knew of which topic a lost message was, or it is
    met again, and must not count twice.
    """
    return not (metrics.get("unattributedCount") or metrics.get("damagedCount"))


def name_stored(engine: Engine, metrics: dict[str, Any]) -> None:
    """Name the damage that was known when the store was closed, where it still is."""
    try:
        places = metrics.get("damage", [])
        starts = {file.name: file.start for file in engine.queues.files} if places else {}
        with understood("config/timermetrics"):
            for each in places:
                file, offset = each["file"], whole(each["offset"])
                if file == "commitlog" or offset >= starts.get(file, INT64_MAX):
                    engine.damage.note(file, offset, str(each["reason"]))
    except CorruptStoreError as e:
        engine.damage.note("config/timermetrics", e.offset, e.reason)


def take_stored(engine: Engine, counts: dict[str, Any]) -> None:
    """Take each topic's count from what a clean close stored."""
    for topic, entry in counts.items():
        row = engine.queues.row(os.fsencode(topic))
        engine.queues.table.pending[row] = int(entry["count"])
