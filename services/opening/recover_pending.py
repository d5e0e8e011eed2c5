"""How many timers are pending: counted from the units, or as a clean close stored it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Flags, Words
from timerstore.services.damage.pass_by import leave_uncounted, pass_lost, queue_rows_of
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.read_units import live_units, read_timers, reading_of
from timerstore.services.opening.recovery_findings import OpeningProgress, RecoveryFindings
from timerstore.services.world.state import LOST_COUNT_MAX
from timerstore.services.world.world import World, note_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.checkpoint import LevelOffsetFile, TimerCheckpoint
from timerstore.timelog.files.jsonfile import read_json, understood, whole
from timerstore.timelog.files.names import INT64_MAX, is_topic
from timerstore.timelog.files.nonzero import nonzero_places
from timerstore.timelog.reading.scan import LoggedMessages, destined_for
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX, QueueTable
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


def take_stored(engine: Engine, counts: dict[str, Any], first_row: int = 0) -> None:
    """Take each topic's count from what a clean close stored, into `pending` from a row on."""
    for topic, entry in counts.items():
        row = first_row + engine.queues.row(os.fsencode(topic))
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


# --- Recovering the delay levels: from which message each loop goes on.

log = logging.getLogger("timerstore")
_CHUNK: Final = 65_536


def restore_offsets(
    engine: Engine, checkpoint: TimerCheckpoint | None, findings: RecoveryFindings
) -> None:
    """Set each level's offset: the checkpoint's, or a broker's; never outside its queue.

    Both hold, so the larger one does: see `checkpoint.py`. After a broker ours are gone. What lies
    between an offset and the first message that is kept was removed, undelivered.
    """
    ours = checkpoint is not None and not checkpoint.by_broker
    try:
        offsets = LevelOffsetFile(engine.path / "config" / "delayOffset.json").read(
            engine.disk.read
        )
    except CorruptStoreError as e:
        if not ours:
            raise
        engine.damage.note("config/delayOffset.json", e.offset, e.reason)
        offsets = [0] * fmt.LEVEL_COUNT_MAX
    if checkpoint is not None and ours:
        offsets = [max(pair) for pair in zip(offsets, checkpoint.level_offsets, strict=True)]
    queues, levels = engine.queues, engine.levels
    for level in range(levels.count):
        row, offset, first, end = int(levels.row[level]), offsets[level], 0, 0
        if row >= 0:
            first = queues.first_kept(row, engine.commitlog.start)
            end = queues.next_index(row)
        levels.offset[level] = min(max(offset, first), end)
        findings.removed_count += max(0, min(first, end) - max(offset, 0))
        if levels.offset[level] != offset:
            findings.corrected_levels.append(level + 1)
            log.warning(
                "%s: the offset of delay level %d was %d, outside its queue; it continues at %d",
                *(engine.path, level + 1, offset, levels.offset[level]),
            )


def pass_delivered(engine: Engine, ours: Words, brokers: Words) -> None:
    """Move each offset over the sources that have their copy.

    `ours`, `brokers`: the sources of copies that we made, and that a broker made. Our loops deliver
    in order, so all up to the last of ours was passed. A broker may have sent some again: the
    offset moves up to the first without a copy, and the loop skips those behind it.
    """
    levels, newest = engine.levels, int(max(ours.max(initial=-1), brokers.max(initial=-1)))
    if newest < 0:
        return
    for level in range(levels.count):
        passed, done = int(levels.offset[level]), []
        for first, entries in _waiting_entries(engine, level):
            mine = np.flatnonzero(np.isin(entries["offset"], ours))
            if len(mine):
                passed = first + int(mine[-1]) + 1
            done += (first + np.flatnonzero(np.isin(entries["offset"], brokers))).tolist()
            if int(entries["offset"][-1]) > newest:
                break
        for index in done:
            passed += index == passed
        levels.offset[level] = passed
        engine.recovered_until_level[level] = max(done, default=-1)


def _waiting_entries(engine: Engine, level: int) -> Iterator[tuple[int, Any]]:
    """Yield the entries of a level that are not delivered, in chunks: (first index, entries)."""
    queues, levels = engine.queues, engine.levels
    row, index = int(levels.row[level]), int(levels.offset[level])
    end = queues.next_index(row) if row >= 0 else 0
    while index < end:
        count = min(end - index, _CHUNK)
        yield index, queues.read(row, index, count)
        index += count


def count_waiting(engine: Engine) -> None:
    """Count what waits in the levels, by the topic that it goes to. O(waiting)."""
    table, counts = engine.queues.table, np.zeros(QUEUE_COUNT_MAX, np.int64)
    reading = reading_of(engine, engine.cancelled.table)._replace(needs_rows=True)
    for level in range(engine.levels.count):
        for _, entries in _waiting_entries(engine, level):
            entries = entries[entries["size"] != fmt.QUEUE_BLANK_SIZE]
            messages, due_ms = (entries[name].astype(np.int64) for name in ("offset", "tags_code"))
            found = read_timers(engine, messages, reading, due_ms)
            leave_uncounted(engine, messages[found.verdict < 0])
            found = found[found.verdict == PENDING]
            counts += np.bincount(found.row, minlength=QUEUE_COUNT_MAX)
            _tally(table, found, engine.clock.now_ms)
    table.pending[QUEUE_COUNT_MAX:] = counts


@kernel_later
def _tally(queues: QueueTable, found: PendingRead, now_ms: int) -> None:
    for i in range(len(found.row)):
        timer = Counted(found.due_ms[i], found.born_ms[i], found.body_bytes[i])
        count_pending(queues.tally, found.row[i], timer, now_ms)


# --- When a broker's delay level messages are due: as its own queue entries say.
#
# Recovery writes queue entries anew from the log. A message that we put at a level says by its key
# when it is due; a broker's has only the level's number, and how long that level was stands in the
# broker's configuration, not in the store. The entry that the broker wrote says it.

_LEVEL_MS_MAX: Final = 36_500 * 86_400_000
"""If an entry says a longer level, it is damaged."""


class LevelDueTimes:
    """What the entries say that were there before recovery; rows are given in the log's order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._level_ms: dict[int, int] = {}  # by queue row: how long the level was for the last one
        self._warned = False

    def keep(self, part: LoggedMessages, queue_rows: Words) -> None:
        """Replace the due times of scanned messages in levels by those of their entries.

        One without an entry, as a broker leaves that was killed, waits as long as the one before.
        """
        for row in self.engine.queues.rows(fmt.LEVEL_TOPIC):
            at = np.flatnonzero(queue_rows == row)
            ours = part.identity_high[at] == IDENTITY_OURS
            ours &= part.identity_low[at] == part.offset[at] | fmt.LEVEL_MARK
            at = at[~ours]
            if len(at):
                part.tags_code[at] = self._due_ms(row, part[at])

    def _due_ms(self, row: int, mine: LoggedMessages) -> Words:
        entries = self._entries(row, mine.queue_index)
        stored_ms = mine.stored_ms
        level_ms = entries["tags_code"].astype(np.int64) - stored_ms
        known = (entries["offset"] == mine.offset) & (level_ms > 0)
        known &= (entries["size"] == mine.size) & (level_ms <= _LEVEL_MS_MAX)
        before = self._level_ms.get(row)
        if before is None and not known[0]:
            if known.any():
                before = int(level_ms[np.argmax(known)])
            else:
                before = int(mine.tags_code[0] - stored_ms[0])
                self._warn()
        last = np.maximum.accumulate(np.where(known, np.arange(len(mine)), -1))
        level_ms = np.where(last >= 0, level_ms[last], before if before is not None else 0)
        if known.any():
            self._level_ms[row] = int(level_ms[-1])
        return stored_ms + level_ms

    def _entries(self, row: int, indexes: Words) -> np.ndarray[Any, Any]:
        """Return the entries at these indexes; zeros if there are none."""
        queues, found = self.engine.queues, np.zeros(len(indexes), fmt.QUEUE_ENTRY)
        numbers = indexes // queues.segment_entries
        for number in np.unique(numbers).tolist():
            if number in queues.files[row].numbers:
                here = numbers == number
                segment = queues.existing(row, number).view.view(fmt.QUEUE_ENTRY)
                found[here] = segment[indexes[here] % queues.segment_entries]
        return found

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s: messages of a delay level have no queue entries that say when they are due; "
                "they wait as long as Config.delay_levels says",
                self.engine.path,
            )
