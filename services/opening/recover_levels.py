"""Recovering the delay levels: from which message each loop goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Words
from timerstore.services.damage.pass_by import leave_uncounted
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.read_pending import read_timers, reading_of
from timerstore.services.opening.recovery_findings import RecoveryFindings
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.files.checkpoint import LevelOffsetFile, TimerCheckpoint
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX, QueueTable
from timerstore.timelog.writing.tally import Counted, count_pending
from timerstore.wheel.judge import PENDING, PendingRead

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


def take_level_counts(engine: Engine, metrics: dict[str, Any]) -> None:
    """Take the counts that a clean close of ours stored; count if there are none."""
    counts = metrics.get("levelCount")
    if not isinstance(counts, dict):
        return count_waiting(engine)
    for topic, entry in counts.items():
        row = engine.queues.row(os.fsencode(topic))
        engine.queues.table.pending[QUEUE_COUNT_MAX + row] = int(entry["count"])
    return None


# --- When a broker's delay level messages are due: as its own queue entries say.
#
# Recovery writes queue entries anew from the log. A message that we put at a level says by its key
# when it is due; a broker's has only the level's number, and how long that level was stands in the
# broker's configuration, not in the store. The entry that the broker wrote says it.

log = logging.getLogger("timerstore")
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
