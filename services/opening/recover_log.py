"""The scan of the commit log: where it ends, which copies it has, what the consume queues lack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.damage.pass_by import queue_rows_of
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES
from timerstore.services.opening.recover_damage import (
    NO_NEXT_MESSAGE,
    DamagedLog,
    torn_batch,
    torn_bytes,
)
from timerstore.services.opening.recover_levels import LevelDueTimes
from timerstore.services.opening.recover_pending import Recount
from timerstore.services.opening.recover_queues import (
    check_entries,
    check_queue_end,
    check_queue_files,
    extend_queue,
    find_queue_end,
    index_part,
)
from timerstore.services.opening.recover_settled import drop_before, level_deletes
from timerstore.services.opening.recovery_findings import OpeningProgress, RecoveryFindings
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import REASONS, MessageParts
from timerstore.timelog.files.checkpoint import TimerCheckpoint, sealed_from
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.copies import BrokerCopies
from timerstore.timelog.reading.pastdamage import NO_MESSAGE_REASON, NO_SOURCE
from timerstore.timelog.writing.compose import ACKS_TOPIC

CHUNK_ROWS: Final = 65_536


@dataclass
class ScannedLog:
    """What the scan found."""

    durable: int = 0  # what was flushed before
    floor: int = 0
    end: int = 0
    queue_ends: dict[int, int] = field(default_factory=dict)  # by row: what was flushed before
    last: scan.LoggedMessages | None = None  # the log's last message
    first_timer_index: int = -1
    origins: list[Words] = field(default_factory=list)
    broker_origins: Words = field(default_factory=lambda: np.zeros(0, np.int64))
    copies: list[Words] = field(default_factory=list)
    # Of copies that wait in the timer topic again: their sources, and when they are due
    # (TIMER_OUT_MS); int64[2, n] each.
    waiting: list[Words] = field(default_factory=lambda: [np.zeros((2, 0), np.int64)])
    level_deletes: list[Words] = field(default_factory=list)
    due_max_ms: int = 0
    is_checked: bool = False  # each message of the log was, by its CRC, and none is damaged


class LogScan:
    """Reads the commit log from the copies cursor on, or all of it, in chunks of rows."""

    def __init__(
        self,
        engine: Engine,
        checkpoint: TimerCheckpoint | None,
        findings: RecoveryFindings,
        *,
        crashed: bool,
    ) -> None:
        """Choose where to begin: nothing changes yet."""
        self.engine, self.checkpoint, self.findings = engine, checkpoint, findings
        self.recount, self.level_due_times = Recount(engine), LevelDueTimes(engine)
        self.log = log = ScannedLog()
        log.durable = self._scan_from = self._index_from = engine.commitlog.start
        is_ours = checkpoint is not None and not checkpoint.by_broker
        if is_ours and checkpoint is not None:
            log.durable = max(checkpoint.commitlog_flushed, engine.commitlog.start)
            log.floor = checkpoint.floor
            if not findings.rebuilt:
                self._scan_from = max(checkpoint.scan_from, engine.commitlog.start)
                self._scan_from = min(log.durable, self._scan_from)
            if QUEUES not in findings.rebuilt:
                self._index_from = log.durable
        self.damaged = DamagedLog(engine, log.durable if is_ours else None)
        self.broker = None if is_ours and not findings.rebuilt else BrokerCopies()
        self._rows = scan.LoggedMessages.room(CHUNK_ROWS)
        self._place = scan.LogPlace(MessageParts(), self._scan_from)
        self._place.sealed_from = sealed_from(checkpoint, crashed)
        self._reached = 0  # how far was read; a batch that is read again may be long
        self._is_live, self._is_ours = False, is_ours

    def run(self, *, is_live: bool) -> ScannedLog:
        """Read to the log's end, and bring the consume queues in line with it.

        `is_live`: another process writes to the store, so its queues are of no one moment.
        """
        self._is_live = is_live
        self._find_queue_ends()
        start = self._scan_from
        progress = OpeningProgress(self.engine.path, "messages are read again")
        while self._read_chunk():
            progress.tell(self._place.offset - start, self.engine.commitlog.files_end - start)
        self._end_log()
        is_whole = self._scan_from == self.engine.commitlog.start
        self.log.is_checked = is_whole and not self.damaged.ranges
        self._add_copies()
        self._end_queues()
        return self.log

    def _find_queue_ends(self) -> None:
        engine, index_from = self.engine, self._index_from
        is_checked, asked = index_from > engine.commitlog.start and not self._is_live, list[int]()
        for row, file in enumerate(engine.queues.files):
            find_queue_end(engine, row, index_from)
            is_unsaid = file.numbers and engine.counters.recorded_end(row, index_from) < 0
            if (is_checked and check_queue_end(engine, row, index_from)) or is_unsaid:
                asked.append(row)
            self.log.queue_ends[row] = end = engine.queues.next_index(row)
            if index_from > engine.commitlog.start:  # a checkpoint of ours flushed queues as well
                file.durable_end = file.files_end if self.findings.clean else end * fmt.ENTRY_BYTES
        if is_checked and self.checkpoint is not None:
            linked, is_clean = self.checkpoint.queue_index, self.findings.clean
            check_queue_files(engine, index_from, linked, asked, is_clean=is_clean)

    # --- chunk by chunk

    def _read_chunk(self) -> bool:
        """Scan some rows, and take what they say; return False at the log's end."""
        place = self._place
        part, is_more = self._scan()
        queue_rows = queue_rows_of(self.engine, scan.stored_in(part))
        records = np.flatnonzero(np.isin(queue_rows, self.engine.queues.rows(ACKS_TOPIC)))
        lacking, record = torn_batch(self.engine.commitlog, part, records)
        whole = record if lacking else len(part)
        self._take(part[:whole], queue_rows[:whole])
        bad = place.offset
        torn = int(part.offset[whole]) if whole < len(part) else bad
        if is_more:
            place.offset = torn
            return True
        reason = NO_MESSAGE_REASON
        if place.stopped == scan.STOP_BAD:
            reason = REASONS[int(self._rows.status[len(part)])]
        resume = self.damaged.resume(bad, reason)
        if resume == NO_NEXT_MESSAGE:
            place.offset = torn
            return False
        self._take(part[whole:], queue_rows[whole:])  # behind it is more: the batch was whole
        fired = self.damaged.fired_from(bad)
        if fired != NO_SOURCE:
            self.log.origins.append(np.array([fired], np.int64))
            self.log.copies.append(np.array([bad], np.int64))
        place.offset = resume
        return True

    def _scan(self) -> tuple[scan.LoggedMessages, bool]:
        """Return the next rows, and whether more follow without a bad message between."""
        engine, commitlog, place = self.engine, self.engine.commitlog, self._place
        start, longest = place.offset, self.engine.message_bytes_max
        readable = engine.disk.wait_for_log(max(start, self._reached) + longest)
        stop = max(self._reached, start) + 2 * commitlog.segment_bytes
        for number in commitlog.numbers:
            offset = number * commitlog.segment_bytes
            if offset + commitlog.segment_bytes > start and offset < stop:
                commitlog.ensure(number)
        place.stop = min(commitlog.files_end, readable - longest)
        how = scan.ReadAs(engine.store_tag, engine.precision_ms, engine.level_ms, True)
        with commitlog.reading() as table:
            count = scan.scan_commitlog(table, place, how, self._rows)
        self._reached = place.offset
        is_more = place.stopped == scan.STOP_COUNT and self._reached < commitlog.files_end
        if place.stopped == scan.STOP_UNMAPPED and self._reached < commitlog.files_end:
            is_more = self._reached // commitlog.segment_bytes in commitlog.numbers
        return self._rows[:count], is_more

    def _take(self, part: scan.LoggedMessages, queue_rows: Words) -> None:
        """Learn from messages what they say; write the entries that their queues lack."""
        if not len(part):
            return
        log, damaged = self.log, self.damaged
        log.last = part[-1]
        self.findings.scanned_count += len(part)
        level_rows = self.engine.queues.rows(fmt.LEVEL_TOPIC)
        is_timer = queue_rows == 0
        if log.first_timer_index < 0 and is_timer.any():
            log.first_timer_index = int(part.queue_index[np.argmax(is_timer)])
        self.level_due_times.keep(part, queue_rows)
        self.recount.take(part, queue_rows, level_rows)
        fillers = np.isin(queue_rows, self.engine.queues.rows(fmt.SALVAGED_TOPIC))
        damaged.take_fillers(part[fillers])
        if not self._is_live:
            check_entries(self.engine, part, queue_rows, self._index_from)
        lost = damaged.lost_bytes, damaged.starts
        index_part(self.engine, part, queue_rows, self._index_from, *lost)
        is_copy = part.origin >= 0
        log.origins.append(part.origin[is_copy].copy())
        log.copies.append(part.offset[is_copy].copy())
        waits = is_timer & is_copy
        log.waiting.append(np.stack([part.origin[waits], part.due_ms[waits]]))
        log.level_deletes.append(level_deletes(part))
        fired_due_ms = part.due_ms[~is_timer]  # −1 if there is none
        log.due_max_ms = max(log.due_max_ms, int(fired_due_ms.max(initial=0)))
        if self.broker is not None:
            self.broker.take(part, is_timer, np.isin(queue_rows, level_rows))

    # --- behind the last message

    def _end_log(self) -> None:
        """Cut off what was not written whole."""
        engine, log = self.engine, self.log
        log.end = self._place.offset
        if not (self.findings.clean and log.end == log.durable):
            self.findings.torn_bytes = torn_bytes(engine, log.end)
            if engine.disk.writes:
                engine.commitlog.cut_from(log.end)
            else:
                engine.commitlog.distrust(log.end)  # it would all be copied
        engine.commitlog.end = log.end
        log.first_timer_index = max(log.first_timer_index, 0)

    def _add_copies(self) -> None:
        """Add the copies that do not name their source, or cannot any more."""
        log = self.log
        if self.damaged.ranges:
            origins, copies = self.damaged.rolled_from(log.origins, log.copies)
            log.origins.append(origins)
            log.copies.append(copies)
        if self.broker is not None:
            log.broker_origins, copies = self.broker.match()
            log.copies.append(copies)
        log.origins, log.broker_origins, log.copies = drop_before(
            log.floor, log.origins, log.broker_origins, log.copies
        )

    def _end_queues(self) -> None:
        queues, is_checked = self.engine.queues, self._is_ours and not self._is_live
        for row, file in enumerate(queues.files):
            recorded = self.engine.counters.recorded_end(row, self.log.end) if is_checked else 0
            if queues.next_index(row) < recorded:
                if QUEUES not in self.findings.rebuilt:
                    raise CorruptStoreError(
                        file.name,
                        queues.next_index(row) * fmt.ENTRY_BYTES,
                        "entries are missing from this index on",
                    )
                extend_queue(self.engine, row, recorded, self.damaged.starts)
            if not self.findings.clean:
                queues.files[row].zero_from(queues.next_index(row) * fmt.ENTRY_BYTES)
            queues.set_end(row, queues.next_index(row))
