"""Auditing the commit log with its consume queues, each against the other."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.offline.report import Audit
from timerstore.timelog import scan
from timerstore.timelog.append import QUEUE_COUNT_MAX, new_queue_table
from timerstore.timelog.audit import (
    MARK_NOT_INDEXED,
    find_rows,
    mark_messages,
)
from timerstore.timelog.consumequeue import enter_queue
from timerstore.timelog.decode import decode_message, text
from timerstore.timelog.filler import SALVAGED_TOPIC
from timerstore.timelog.format import (
    BLANK_BYTES,
    ENTRY_BYTES,
    QUEUE_BLANK_SIZE,
    QUEUE_ENTRY,
    TAGS_HASH_MAX,
    TIMER_TOPIC,
    TOPIC_BYTES_READ_MAX,
)
from timerstore.timelog.jit.record import Words
from timerstore.timelog.logend import log_used_end
from timerstore.timelog.logranges import LogRanges
from timerstore.timelog.message import FOUND_WORDS
from timerstore.timelog.pastdamage import Damage, read_past_damage, used_behind_blank
from timerstore.timelog.reader import ReadSegments

Flags = np.ndarray[Any, np.dtype[np.bool_]]
_NAMED_MAX: Final = 100
"""Entries of one queue that are named one by one in one step."""


def is_level(delay_ms: Any) -> Any:
    """Tell whether a delay, or each of an array, can be that of a level: whole seconds.

    What the levels were when a message was put is written nowhere, and they may change.
    """
    return (delay_ms > 0) & (delay_ms % 1000 == 0)


class _Queue:
    """What is known of one consume queue."""

    def __init__(self, topic: str, queue_id: int, file: ReadSegments | None) -> None:
        self.topic, self.queue_id, self.file = topic, queue_id, file
        self.name = f"consumequeue/{topic}/{queue_id}"
        self.first = -1  # index of the first message that was seen
        self.begins = 0  # its commit log offset
        self.next = -1

    def read(self, index: int, count: int) -> np.ndarray[Any, Any]:
        """Return entries from `index` on; fewer where the files end."""
        return read_entries(self.file, index, count)


def read_entries(file: ReadSegments | None, index: int, count: int) -> np.ndarray[Any, Any]:
    """Return entries from `index` on; fewer where the files end."""
    if file is None or count <= 0:
        return np.zeros(0, QUEUE_ENTRY)
    data = file.read(index * ENTRY_BYTES, count * ENTRY_BYTES)
    return np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], QUEUE_ENTRY)


def compare_entries(
    file: ReadSegments | None, rows: Words
) -> tuple[np.ndarray[Any, Any], Flags, Flags]:
    """Compare scanned messages of one queue with their entries.

    Return the entries, whether each is another message's, whether its tags code alone is wrong.
    """
    indexes = rows[:, scan.ROW_QUEUE_INDEX]
    mine = np.zeros(len(rows), QUEUE_ENTRY)
    low, high = int(indexes.min()), int(indexes.max())
    if low >= 0 and high - low <= 2 * len(rows) + (1 << 20):  # else the indexes are damaged
        read = read_entries(file, low, high - low + 1)
        there = indexes - low < len(read)
        mine[there] = read[indexes[there] - low]
    wrong = (mine["offset"] != rows[:, scan.ROW_OFFSET]) | (mine["size"] != rows[:, scan.ROW_SIZE])
    other_tags = ~wrong & (mine["tags_code"] != rows[:, scan.ROW_TAGS_CODE])
    return mine, wrong, other_tags


class LogAudit:
    """Reads the commit log once, past damage, and compares every queue with it."""

    def __init__(self, audit: Audit) -> None:
        """Begin at the log's start."""
        self.audit, self.reader = audit, audit.reader
        self.log = audit.reader.commitlog
        self.end = self.log.start
        self.message_count = self.entry_count = 0
        self.damaged = LogRanges()
        self.salvaged = LogRanges()  # fillers, where something was lost once
        self.has_unread = False  # nothing is known of some message
        self._resumed = -1  # where it can be read again behind the last damage
        self.queue_ends: dict[tuple[str, int], int] = {}
        self._table = new_queue_table(1)
        self._queues: list[_Queue] = []
        for (topic, queue_id), file in self.reader.queues.items():
            self._enter(topic, queue_id, file)
        self._found = np.zeros(FOUND_WORDS, np.int64)
        self._closed: set[int] = set()  # segments whose end was looked at

    def _enter(self, topic: str, queue_id: int, file: ReadSegments | None) -> int:
        row = len(self._queues)
        if row < QUEUE_COUNT_MAX:
            self._queues.append(_Queue(topic, queue_id, file))
            enter_queue(self._table, row, topic.encode("utf-8", "surrogateescape"), queue_id)
        return row

    @property
    def timer_queue_end(self) -> int:
        """The index behind the timer topic's last entry."""
        return self.queue_ends.get((text(TIMER_TOPIC), 0), 0)

    def has_timer(self, index: int) -> bool:
        """Tell whether an entry of the timer topic's queue leads to a timer that can be read."""
        for queue in self._queues:
            if (queue.topic, queue.queue_id) == (text(TIMER_TOPIC), 0):
                for entry in queue.read(index, 1):
                    try:
                        view = self.log.view(int(entry["offset"]))
                        message = decode_message(view, int(entry["offset"]))
                    except CorruptStoreError:
                        return False
                    is_timer = "TIMER_OUT_MS" in message.properties
                    is_timer &= "REAL_TOPIC" in message.properties
                    return is_timer and message.queue_index == index
        return False

    def run(self) -> None:
        """Audit the commit log, then what is left of the queues."""
        self.audit.faults(self.log.faults)
        self._read_log()
        for queue in self._queues:
            if queue.file is not None:
                self.audit.faults(queue.file.faults)
            self._finish(queue)

    # --- the commit log

    def _read_log(self) -> None:
        used_end = log_used_end(self.reader)
        for item in read_past_damage(self.reader, self.log.start, used_end):
            if isinstance(item, Damage):
                if item.offset // self.log.segment_bytes > self.end // self.log.segment_bytes:
                    self._check_blank(self.end)
                if self._ends(item, used_end):
                    break
                continue
            self._take(item)
            self.end = int(item[-1, scan.ROW_OFFSET] + item[-1, scan.ROW_SIZE])
            self.audit.step(self.end - self.log.start)
        if used_end // self.log.segment_bytes > self.end // self.log.segment_bytes:
            self._check_blank(self.end)
        if self.audit.durable > self.end and not self.damaged:
            reason = f"the log ends at {self.end}, and {self.audit.durable} was flushed"
            if self.log.next_used(self.end, self.audit.durable) == self.audit.durable:
                # Only a blank may lie between the last message and what was flushed.
                self.audit.problem("commitlog", self.end, reason)
        self.end = max(self.end, min(self.audit.durable, self.log.files_end))

    def _ends(self, damage: Damage, used_end: int) -> bool:
        """Note damage; tell whether the log ends there."""
        offset, reason = damage.offset, damage.reason
        behind = offset >= self.audit.durable
        self.has_unread |= len(damage.framed) == 0
        if damage.end >= used_end and damage.following < 0:
            # Nothing sound follows: a torn tail, where it was not flushed.
            at = self.log.next_used(offset, used_end)
            if damage.is_message or at < offset + BLANK_BYTES:
                at = offset  # it was a message once
            self.damaged.add(offset, self.log.files_end)
            self.audit.torn("commitlog", at, reason, behind=behind)
            return True
        self.damaged.add(offset, damage.resume)
        self._resumed = damage.resume
        reason = f"{reason}; {damage.resume - offset} bytes up to the next message are lost"
        self.audit.torn("commitlog", offset, reason, behind=behind and not self.audit.by_broker)
        return False

    # --- messages

    def _take(self, rows: Words) -> None:
        """Check scanned messages, and their entries."""
        count = len(rows)
        self.message_count += count
        marks, queue_rows = np.zeros(count, np.int64), np.zeros(count, np.int64)
        first = int(rows[0, scan.ROW_OFFSET]) // self.log.segment_bytes
        last = int(rows[-1, scan.ROW_OFFSET]) // self.log.segment_bytes
        for number in range(first, last + 1):
            if number in self.log.numbers:
                self.log.map(number)
        mark_messages(self.log.table, rows, self.reader.store_tag, self._found, marks)
        self._check_blanks(rows)
        rows = rows[marks & MARK_NOT_INDEXED == 0]
        if not len(rows):
            return
        queue_rows = queue_rows[: len(rows)]
        while True:
            lost = find_rows(self._table, self.log.table, rows, queue_rows)
            if lost < 0:
                break
            row = rows[lost]
            count = int(row[scan.ROW_TOPIC_BYTES])
            topic = self.log.read(int(row[scan.ROW_TOPIC]), count)
            if not 0 < count <= TOPIC_BYTES_READ_MAX or len(self._queues) >= QUEUE_COUNT_MAX:
                self.audit.problem("commitlog", int(row[scan.ROW_OFFSET]), "it has no topic")
                rows = np.delete(rows, lost, axis=0)
                queue_rows = queue_rows[: len(rows)]
                continue
            self._enter(text(topic), int(row[scan.ROW_QUEUE_ID]), None)
        for each in np.unique(queue_rows).tolist():
            if self._queues[each].topic == text(SALVAGED_TOPIC):
                starts = rows[queue_rows == each, scan.ROW_OFFSET]
                stops = starts + rows[queue_rows == each, scan.ROW_SIZE]
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                    self.salvaged.add(start, stop)
        for each in np.unique(queue_rows).tolist():
            self._compare(self._queues[each], rows[queue_rows == each])

    def _check_blanks(self, rows: Words) -> None:
        """Check that nothing follows the eight bytes that close a segment."""
        segment_bytes = self.log.segment_bytes
        starts = rows[:, scan.ROW_OFFSET]
        ends = np.append(self.end, starts[:-1] + rows[:-1, scan.ROW_SIZE])
        crossed = starts // segment_bytes > ends // segment_bytes
        if self._resumed == starts[0]:
            crossed[0] = False
        for end in ends[crossed].tolist():
            self._check_blank(end)

    def _check_blank(self, end: int) -> None:
        if end % self.log.segment_bytes == 0 or end // self.log.segment_bytes in self._closed:
            return
        self._closed.add(end // self.log.segment_bytes)
        used, stop = used_behind_blank(self.log, end)
        if used < stop:
            self.audit.problem("commitlog", used, "the rest of the segment is not empty")

    # --- entries

    def _compare(self, queue: _Queue, rows: Words) -> None:
        """Compare messages of one queue, in the order of the log, with their entries."""
        indexes = rows[:, scan.ROW_QUEUE_INDEX]
        before = np.append(queue.next - 1 if queue.next >= 0 else indexes[0] - 1, indexes[:-1])
        for i in np.flatnonzero(indexes != before + 1).tolist():
            self._check_gap(queue, int(before[i]) + 1, int(indexes[i]), int(rows[i, 0]))
        if queue.first < 0:
            queue.first, queue.begins = int(indexes[0]), int(rows[0, scan.ROW_OFFSET])
            self._check_old(queue, queue.first)
        queue.next = int(indexes[-1]) + 1
        if self.audit.of_backup:
            return
        self.entry_count += len(rows)
        mine, wrong, other_tags = compare_entries(queue.file, rows)
        for i in np.flatnonzero(wrong | other_tags)[:_NAMED_MAX].tolist():
            offset, size = int(rows[i, scan.ROW_OFFSET]), int(rows[i, scan.ROW_SIZE])
            reason = f"the entry is not that of the message at {offset}, of {size} bytes"
            if other_tags[i]:
                code = int(rows[i, scan.ROW_TAGS_CODE])
                reason = f"the tags code is {int(mine[i]['tags_code'])}; the message's is {code}"
                waited_ms = int(mine[i]["tags_code"]) - int(rows[i, scan.ROW_STORED_MS])
                if rows[i, scan.ROW_LEVEL] > 0 and code > TAGS_HASH_MAX and is_level(waited_ms):
                    reason += ", unless delay_levels were other ones then"
                    self.audit.warning(queue.name, int(indexes[i]) * ENTRY_BYTES, reason)
                    continue
            behind = offset >= self.audit.durable
            self.audit.torn(queue.name, int(indexes[i]) * ENTRY_BYTES, reason, behind=behind)

    def _is_lost(self, offsets: Words) -> Flags:
        """Tell which offsets lie where a message is damaged, or was lost before a salvage."""
        lost: Flags = self.damaged.contains(offsets) | self.salvaged.contains(offsets)
        return lost

    def _check_gap(self, queue: _Queue, low: int, high: int, message: int) -> None:
        """Check a jump of the index: its entries must point to messages that are damaged."""
        if queue.file is not None and high == low + 1 and low > 0:
            if low * ENTRY_BYTES % queue.file.segment_bytes == 0:
                reason = "a broker has left out the first entry of this file"
                self.audit.warning(queue.name, low * ENTRY_BYTES, reason)
                return
        lost = queue.read(low, min(high - low, 1 << 20)) if high > low else queue.read(0, 0)
        explained = len(lost) == high - low and len(lost) > 0
        explained = explained and bool(self._is_lost(lost["offset"]).all())
        if not explained:
            reason = f"its queue offset is {high} where {low} was expected in {queue.name}"
            self.audit.torn("commitlog", message, reason, behind=message >= self.audit.durable)

    def _check_old(self, queue: _Queue, stop: int) -> None:
        """Check the entries before the first message that is kept: blanks, and removed messages."""
        if queue.file is None:
            return
        first = queue.file.start // ENTRY_BYTES
        if first > stop:
            self.audit.problem(queue.name, first * ENTRY_BYTES, f"entries from {stop} are missing")
        old = queue.read(first, stop - first)
        blank = (old["offset"] == 0) & (old["size"] == QUEUE_BLANK_SIZE) & (old["tags_code"] == 0)
        gone = (old["offset"] < self.log.start) & (old["offset"] >= 0) & (old["size"] > 0) & ~blank
        lost = self._is_lost(old["offset"])
        wrong = ~(blank | gone | lost)
        wrong[1:] |= gone[1:] & gone[:-1] & (old["offset"][1:] <= old["offset"][:-1])
        for i in np.flatnonzero(wrong)[:_NAMED_MAX].tolist():
            reason = "the entry points to no message"
            self.audit.problem(queue.name, (first + i) * ENTRY_BYTES, reason)
        self.entry_count += len(old)

    def _finish(self, queue: _Queue) -> None:
        """Check what stands behind the last entry of a queue: nothing."""
        end = queue.next
        if queue.next < 0 and queue.file is not None:
            end = -(-queue.file.used_end() // ENTRY_BYTES)
            self._check_old(queue, end)
        self.queue_ends[queue.topic, queue.queue_id] = max(end, 0)
        if queue.file is None:
            if queue.next > 0 and not self.audit.of_backup:
                reason = f"the queue of {queue.next - queue.first} messages is missing"
                behind = queue.begins >= self.audit.durable
                self.audit.torn(queue.name, 0, reason, behind=behind)
            return
        at = queue.file.next_used(end * ENTRY_BYTES, queue.file.files_end)
        if at < queue.file.files_end:
            entry = queue.read(at // ENTRY_BYTES, 1)
            points = int(entry[0]["offset"]) if len(entry) else -1
            if points in self.damaged or points in self.salvaged:
                used = -(-queue.file.used_end() // ENTRY_BYTES)
                self.queue_ends[queue.topic, queue.queue_id] = used
                return  # its message is damaged, and named
            behind = points >= self.audit.durable
            self.audit.torn(queue.name, at, "an entry points to no message", behind=behind)
