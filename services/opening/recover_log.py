"""The scan of the commit log: where it ends, which copies it has, what the consume queues lack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.damage.pass_by import is_sound, queue_rows_of, wrong_entries
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, WRONG_ENTRY_REASON
from timerstore.services.opening.recover_damage import (
    NO_NEXT_MESSAGE,
    DamagedLog,
    torn_batch,
    torn_bytes,
)
from timerstore.services.opening.recover_pending import LevelDueTimes, Recount
from timerstore.services.opening.recover_settled import drop_before, level_deletes
from timerstore.services.opening.recovery_findings import OpeningProgress, RecoveryFindings
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import REASONS, MessageParts
from timerstore.timelog.files.checkpoint import TimerCheckpoint, sealed_from
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.pastdamage import (
    NO_MESSAGE_REASON,
    NO_SOURCE,
    BrokerCopies,
    sound_messages,
)
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.writing.compose import ACKS_TOPIC
from timerstore.timelog.writing.consumequeue import is_gap
from timerstore.timelog.writing.tally import FIRED_COUNT, LOST_COUNT, PUT_COUNT, TALLY_WORDS

# --- Recovering the consume queues: where each one ends, what is missing behind that.

_NOWHERE: Final = np.zeros(0, np.int64)


def find_queue_end(engine: Engine, row: int, durable: int) -> None:
    """Set a queue's end behind its last entry whose message lies before `durable`.

    O(1) if it is where the counters of topics recorded it, else O(log entries).
    """
    queues, file = engine.queues, engine.queues.files[row]
    low, recorded = file.start // fmt.ENTRY_BYTES, engine.counters.recorded_end(row, durable)
    high = _used_stop(file)
    if low < recorded <= high and _lies_before(queues.read(row, recorded - 1, 1)[0], durable):
        if recorded == high or not _lies_before(queues.read(row, recorded, 1)[0], durable):
            queues.set_end(row, recorded)
            return
    while low < high:  # the entries before the end are sound, those behind it are not
        middle = (low + high) // 2
        if _lies_before(queues.read(row, middle, 1)[0], durable):
            low = middle + 1
        else:
            high = middle
    queues.set_end(row, low)


def _used_stop(file: SegmentedFile) -> int:
    """Return the index behind the last entry without a byte in a hole: a full tmpfs maps no hole.

    An entry that begins before a hole and ends in it was never written.
    """
    return file.used_end() // fmt.ENTRY_BYTES


def _lies_before(entry: Any, offset: int) -> bool:
    return bool(entry["size"] > 0 and 0 <= entry["offset"] < offset)


def check_queue_end(engine: Engine, row: int, durable: int) -> bool:
    """Raise CorruptStoreError if a damaged entry has hidden a queue's end. O(log entries).

    A search that was led astray ends beside the entry that did it: the last one before the end is
    no message's, or the first one behind it is not empty and points to nothing that came later.
    The latter is also what a power cut leaves, which may keep an entry and not its message. Then
    it returns True: `check_queue_files` looks for messages that lack their entries.
    """
    is_asked = False
    queues, file, end = engine.queues, engine.queues.files[row], engine.queues.next_index(row)
    first, stop = file.start // fmt.ENTRY_BYTES, _used_stop(file)
    for before, after in zip(file.numbers, file.numbers[1:], strict=False):
        if after != before + 1:
            offset = (before + 1) * file.segment_bytes
            raise CorruptStoreError(file.name, offset, "this segment is missing")
    if end > first and not is_sound(engine, row, end - 1, queues.read(row, end - 1, 1)):
        raise CorruptStoreError(
            file.name, (end - 1) * fmt.ENTRY_BYTES, "no message belongs to this entry"
        )
    step = 1
    while end + step - 1 < stop:
        index = end + step - 1
        entry = queues.read(row, index, 1)
        strange = _lies_before(entry[0], durable)
        # Behind the end of a store that another process writes to, an entry may be half written.
        if step == 1 and entry.tobytes().strip(b"\0") and not engine.disk.is_shared:
            is_asked = not strange and not is_sound(engine, row, index, entry)
        if strange:
            raise CorruptStoreError(
                file.name, index * fmt.ENTRY_BYTES, "it is behind the queue's end"
            )
        step *= 2
    return is_asked


def check_entries(engine: Engine, part: LoggedMessages, queue_rows: Words, index_from: int) -> None:
    """Raise CorruptStoreError if a scanned message before `index_from` lacks its entry. O(part).

    What a scan reads anyway is compared: zeros, and bytes of an older version, in a queue's file.
    """
    before = np.flatnonzero(part.offset < index_from)
    for row, index in wrong_entries(engine, part, queue_rows, before):
        place = index * fmt.ENTRY_BYTES
        raise CorruptStoreError(engine.queues.files[row].name, place, WRONG_ENTRY_REASON)


def extend_queue(engine: Engine, row: int, end: int, lost_starts: Words) -> None:
    """Let a queue that was made anew end at `end`: its last messages are not in the log any more.

    So no index is given twice. They were removed, if there is no other, or lost to damage.
    """
    queues, next_index = engine.queues, engine.queues.next_index(row)
    if not queues.files[row].numbers:
        queues.fill_blanks(row, end)
        queues.set_end(row, end)
    elif len(lost_starts):
        entries = np.zeros(end - next_index, fmt.QUEUE_ENTRY)
        entries["size"], entries["offset"] = fmt.QUEUE_LOST_SIZE, int(lost_starts[-1]) + 1
        _write(engine, row, next_index, entries)


def index_part(
    engine: Engine,
    part: LoggedMessages,
    queue_rows: Words,
    index_from: int,
    lost_bytes: int,
    lost_starts: Words = _NOWHERE,
) -> None:
    """Write the queue entries of scanned messages from `index_from` on.

    `lost_bytes`: what could not be read before them: as many messages as fit into it may be missing
    from a queue, and get entries that lead to none. `lost_starts`: the offsets of these places, in
    order.
    """
    fresh = part.offset >= index_from
    for row in np.flatnonzero(np.bincount(queue_rows[fresh])).tolist():
        mine = np.flatnonzero(fresh & (queue_rows == row))
        _index_queue(engine, row, part, mine, lost_bytes, lost_starts)


def _index_queue(
    engine: Engine,
    row: int,
    part: LoggedMessages,
    mine: Words,
    lost_bytes: int,
    lost_starts: Words,
) -> None:
    """Write the entries of the messages at the places `mine`."""
    queues, file = engine.queues, engine.queues.files[row]
    indexes, offsets = part.queue_index[mine], part.offset[mine]
    if not file.numbers:
        queues.fill_blanks(row, int(indexes[0]))
        queues.set_end(row, int(indexes[0]))
    first = min(queues.next_index(row), int(indexes[0]))
    steps = np.diff(indexes, prepend=first - 1)
    gaps = is_gap(indexes, steps, queues.segment_entries)
    lost_count = int(steps.sum()) - len(steps)
    unexplained = (lost_count - int(gaps.sum())) * fmt.MESSAGE_BYTES_MIN > lost_bytes
    if (steps < 1).any() or first < 0 or unexplained:
        at = int(np.argmax(((steps != 1) & ~gaps) | (first < 0)))
        offset = int(offsets[at])
        if at == 0 and not lost_bytes and file.numbers:
            raise CorruptStoreError(
                file.name, first * fmt.ENTRY_BYTES, "entries are missing from this index on"
            )
        raise CorruptStoreError("commitlog", offset, "queue offsets are not consecutive")
    entries = np.zeros(len(mine) + lost_count, fmt.QUEUE_ENTRY)
    entries["size"] = fmt.QUEUE_LOST_SIZE
    place = indexes - first
    entries["offset"][place], entries["size"][place] = offsets, part.size[mine]
    entries["tags_code"][place] = part.tags_code[mine]
    if lost_count:
        lost = np.ones(len(entries), np.bool_)
        lost[place] = False
        entries["offset"][lost] = _places_lost(entries["offset"], place, lost_starts)[lost]
    _write(engine, row, first, entries)


def _places_lost(offsets: Words, place: Words, lost_starts: Words) -> Words:
    """Return the latest offset at which each entry's message was lost: offsets go up by index.

    It is a byte behind that place, because a copy may name what stood there as its source. `place`:
    which entries are those of messages.
    """
    following = np.full(len(offsets), np.iinfo(np.int64).max)
    before = np.full(len(offsets), -1)
    following[place] = before[place] = offsets[place]
    following = np.minimum.accumulate(following[::-1])[::-1]
    before_it = np.searchsorted(lost_starts, following) - 1
    last = np.full(len(offsets), offsets[place[0]])
    known = before_it >= 0
    last[known] = lost_starts[before_it[known]] + 1
    return np.maximum(np.maximum.accumulate(before), last)


def _write(engine: Engine, row: int, first: int, entries: fmt.Entries) -> None:
    """Write entries from index `first` on; the queue ends behind them."""
    queues, done = engine.queues, 0
    while done < len(entries):
        number, position = divmod(first + done, queues.segment_entries)
        room = min(queues.segment_entries - position, len(entries) - done)
        file = queues.files[row]
        file.reserve((first + done) * fmt.ENTRY_BYTES, (first + done + room) * fmt.ENTRY_BYTES)
        view = file.existing(number).view
        data = entries[done : done + room].view(np.uint8)
        at = position * fmt.ENTRY_BYTES
        view[at : at + len(data)] = data
        done += room
    queues.set_end(row, first + len(entries))


# --- Queue files that are gone from either end: what nothing but the commit log can tell
#
# Retention keeps what points to kept messages, and the segment of the last entry; the next segment
# is made before one is full. So a queue is asked about only if it has no file, ends with a full
# one, or begins with an entry of a message that is not the log's first: seldom, because it takes a
# scan. A topic of which nothing has fired yet has no file either. After a clean close its counters
# say so.


def check_queue_files(
    engine: Engine, durable: int, linked: int, asked: list[int], *, is_clean: bool
) -> None:
    """Raise CorruptStoreError if a queue lacks entries of messages that it was written for.

    `durable`: where the flushed part of the commit log ends; `linked`: the queue cursor, the timer
    queue's entries that were flushed; `asked`: rows that are asked about in any case. `is_clean`:
    we closed the store cleanly, so the counters of topics are whole. O(log) if any is asked about.
    """
    queues, log = engine.queues, engine.commitlog
    every_row = range(len(queues.files))
    asked = asked + [row for row in every_row if _may_be_cut(engine, row, linked, is_clean)]
    if not asked:
        return
    reader = engine.open_reader()
    for rows in sound_messages(reader, log.start, durable):
        index = rows.queue_index
        for row in asked:
            topic, first, end = queues.topics[row], queues.first_index(row), queues.next_index(row)
            strange = (index < first) | (index >= end)
            strange &= rows.queue_id == queues.table.queue_id[row]
            strange &= rows.topic_bytes == len(topic)
            for i in np.flatnonzero(strange).tolist():
                if reader.commitlog.read(int(rows.topic_at[i]), len(topic)) == topic:
                    at = int(index[i]) * fmt.ENTRY_BYTES
                    reason = "the segment of this entry is missing"
                    raise CorruptStoreError(queues.files[row].name, at, reason)


def _may_be_cut(engine: Engine, row: int, linked: int, is_clean: bool) -> bool:
    """Tell whether files may be missing at either end of a queue."""
    queues, file = engine.queues, engine.queues.files[row]
    first, end = queues.first_index(row), queues.next_index(row)
    if not file.numbers and is_clean:
        words = queues.table.tally.words[row * TALLY_WORDS :]
        if words[PUT_COUNT] > 0 and words[FIRED_COUNT] == 0 and words[LOST_COUNT] == 0:
            return False
    if not file.numbers or end * fmt.ENTRY_BYTES == file.files_end or (row == 0 and end < linked):
        return True
    if first == 0:
        return False
    return end <= first or int(queues.read(row, first, 1)[0]["offset"]) > engine.commitlog.start


# --- The scan of the commit log.

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
