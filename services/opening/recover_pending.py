"""How many timers are pending: counted from the units, or as a clean close stored it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Flags, Words
from timerstore.services.damage.pass_by import pass_lost, queue_rows_of
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.read_pending import read_timers, reading_of
from timerstore.services.looking.read_units import live_units
from timerstore.services.opening.recovery_findings import OpeningProgress
from timerstore.services.world.state import LOST_COUNT_MAX
from timerstore.services.world.world import World, note_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.jsonfile import read_json, understood, whole
from timerstore.timelog.files.names import INT64_MAX, is_topic
from timerstore.timelog.files.nonzero import nonzero_places
from timerstore.timelog.reading.scan import LoggedMessages, destined_for
from timerstore.timelog.writing.tally import (
    CANCELLED_COUNT,
    FIRED_COUNT,
    LOST_COUNT,
    PUT_COUNT,
    TALLY_WORDS,
    Counted,
    Tally,
    count_fired,
    count_pending,
    count_put,
)
from timerstore.wheel.judge import CANCELLED, DONE, PENDING, PendingRead


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
        columns, done = read_timers(engine, messages, reading), 0
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


# --- Recovering the counters of topics: those that were written, with what the log says since.


@kernel_later
def _count(
    tally: Tally,
    rows: LoggedMessages,
    queue_rows: Words,
    until: Words,
    waits: Flags,
    in_level: Flags,
) -> None:
    """Count what scanned messages did, each if it stands behind what its row has counted.

    `queue_rows`: of each timer's real topic, −1 if a message is neither. `waits`: it is in the
    timer topic or, `in_level`, in a delay level.
    """
    for i in range(len(rows.offset)):
        row = queue_rows[i]
        if row < 0 or rows.offset[i] < until[row]:
            continue
        stored_ms = rows.stored_ms[i]
        due_ms = rows.exact_due_ms[i]
        if in_level[i]:
            due_ms = rows.tags_code[i]
        if not waits[i]:
            count_fired(tally, row, stored_ms - due_ms)
        elif rows.is_delete[i] != 0:
            tally.words[row * TALLY_WORDS + CANCELLED_COUNT] += 1
        else:
            count_put(tally, row, due_ms - stored_ms)


class Recount:
    """What was written of an engine's counters, and how recovery counts on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._all_until, self._until = engine.counters.read()

    def take(
        self,
        part: LoggedMessages,
        queue_rows: Words,
        level_rows: list[int],
    ) -> None:
        """Count what scanned messages did."""
        behind = part.offset >= self._all_until
        part, queue_rows = part[behind], queue_rows[behind]
        in_level = np.isin(queue_rows, level_rows)
        waits = (queue_rows == 0) | in_level
        is_copy = part.origin >= 0
        is_first = waits & ~is_copy & (part.roll_times == 0)
        is_first &= part.real_topic_bytes > 0
        is_first &= in_level | (part.exact_due_ms >= 0)
        is_fired = ~waits & is_copy & (part.exact_due_ms >= 0)
        rows = np.where(is_fired, queue_rows, -1)
        if is_first.any():
            try:
                rows[is_first] = queue_rows_of(self._engine, destined_for(part[is_first]))
            except TimerStoreError:
                return  # a broker's message, whose topic has a name that cannot be
        tally = self._engine.queues.table.tally
        _count(tally, part, rows, self._until, waits, in_level)

    def settle(self, log_end: int, *, by_broker: bool) -> None:
        """Make put − fired − cancelled − lost what is pending, now that this is known.

        They differ by what a broker did, by what was lost to damage, and by what was put before
        anybody counted. No counter falls.
        """
        queues = self._engine.queues
        count = len(queues.files)
        if max(self._all_until, int(self._until.max())) > log_end:  # it was cut there since
            self._engine.counters.write_again(nonzero_places(self._until))
        words = queues.table.tally.words.reshape(-1, TALLY_WORDS)[:count]
        timers, levels = queues.table.pending.reshape(2, -1)
        missing = timers[:count] + levels[:count] - words[:, PUT_COUNT]
        missing += words[:, FIRED_COUNT] + words[:, CANCELLED_COUNT] + words[:, LOST_COUNT]
        for topic in {queues.topics[row] for row in nonzero_places(missing).tolist()}:
            rows = queues.rows(topic)
            change = int(missing[rows].sum())
            words[rows[0], PUT_COUNT] += max(0, change)
            words[rows[0], FIRED_COUNT if by_broker else LOST_COUNT] += max(0, -change)
