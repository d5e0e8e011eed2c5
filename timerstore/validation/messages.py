"""Looking at a range of the commit log: messages, their entries, what they say of timers."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from timerstore.jit.record import Flags, Words
from timerstore.tables.records import queue_name
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.bytes.message import GOOD, IDENTITY_OURS, MessageParts
from timerstore.timelog.reading.audit import (
    MARK_NOT_INDEXED,
    MARK_OURS,
    identify_copies,
    mark_messages,
)
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage, used_behind_blank
from timerstore.timelog.reading.reader import Fault, ReadSegments
from timerstore.timelog.reading.scan import (
    LoggedMessages,
    QueueNames,
    destined_for,
    stored_in,
)
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX, new_queue_table
from timerstore.timelog.writing.consumequeue import enter_queue, find_rows, is_gap
from timerstore.validation import facts
from timerstore.validation.entries import compare_entries, is_level, lost_count
from timerstore.validation.facts import Findings, lateness_told
from timerstore.values.amounts import HOUR_MS

_LOG: Final = "commitlog"
_TIMER_ROW: Final = 0
NO_QUEUE: Final = -1


class _Queues:
    """The queues that messages of a range name, numbered as they are met."""

    def __init__(self, view: StoreView) -> None:
        self._log = view.reader.commitlog
        self._table = new_queue_table(1)
        self.names: list[tuple[bytes, int]] = []
        self.topics: list[int] = []
        """Numbers that stand for the topics in facts."""
        self._enter(fmt.TIMER_TOPIC, 0)

    def _enter(self, topic: bytes, queue_id: int) -> None:
        enter_queue(self._table, len(self.names), topic, queue_id)
        self.names.append((topic, queue_id))
        self.topics.append(zlib.crc32(topic))

    def numbers(self, named: QueueNames) -> Words:
        """Return the number of each message's queue; their segments are mapped.

        NO_QUEUE: the store has more queues than it can have.
        """
        count = len(named.queue_id)
        numbers = np.full(count, NO_QUEUE, np.int64)
        left, found = np.arange(count), np.zeros(count, np.int64)
        while (lost := find_rows(self._table, self._log.table, named, found)) >= 0:
            at, topic_bytes, queue_id = (int(column[lost]) for column in named)
            if len(self.names) < QUEUE_COUNT_MAX:
                self._enter(self._log.read(at, topic_bytes), queue_id)
            else:
                named = QueueNames(*(np.delete(column, lost) for column in named))
                left, found = np.delete(left, lost), found[:-1]
        numbers[left] = found
        return numbers

    def are_of(self, topic: bytes, numbers: Words) -> Flags:
        """Tell which numbers are of queues of a topic: bool[n]."""
        found: Flags = np.isin(
            numbers, [i for i, each in enumerate(self.names) if each[0] == topic]
        )
        return found


def look_at_messages(findings: Findings, start: int, stop: int) -> None:
    """Look at the messages that begin in [start, stop) of the commit log. O(bytes)."""
    _Look(findings).run(start, stop)


class _Look:
    """One pass over a range."""

    def __init__(self, findings: Findings) -> None:
        self.findings, self.tally = findings, findings.tally
        self.view = findings.scope.view
        self.log = self.view.reader.commitlog
        self.queues = _Queues(self.view)
        self.found = MessageParts()
        self.last: dict[int, int] = {}
        """By queue: the index of its last message in the range."""
        self.end = 0
        """Behind the last message, or the damage behind it."""

    def run(self, start: int, stop: int) -> None:
        """Look at all messages of the range."""
        self.end = start
        for item in read_past_damage(self.view.reader, start, stop):
            if isinstance(item, Damage):
                self._judge_blanks(np.array([item.offset]), np.array([item.resume]))
                self._judge_damage(item)
            else:
                offsets = item.offset
                self._judge_blanks(offsets, offsets + item.size)
                self._take(item)
        self._judge_blanks(np.array([stop]), np.array([stop]))
        self.tally.check("closed", int(stop >= self.view.log_stop))

    # --- between messages

    def _judge_damage(self, damage: Damage) -> None:
        """Judge what is no sound message; go on with one of which only the checksum is wrong."""
        view, at = self.view, damage.offset
        self._lost(np.array([at]), np.array([damage.resume]))
        is_last = damage.end >= view.log_stop
        if damage.is_empty and is_last:
            if at < view.durable:
                reason = f"the log ends at {at}, but was flushed up to {view.durable}"
                self.findings.fault("closed", Fault(_LOG, at, reason))
            return
        is_tail = is_last and damage.following < 0
        torn = bool(self.findings.scope.torn_in_log(np.array([at]))[0])
        torn &= is_tail or not self.findings.scope.by_broker
        used = self.log.next_used(at, damage.end)
        self.tally.check("message_sound", 1)
        if is_tail and not damage.is_message and used >= at + fmt.BLANK_BYTES:
            self.findings.fault("closed", Fault(_LOG, used, damage.reason), torn=torn)
            return
        fault = Fault(_LOG, at, damage.told(view.log_stop))
        self.findings.fault("message_sound", fault, torn=torn)
        if len(damage.framed) and not torn:
            self._take(damage.framed)

    def _judge_blanks(self, starts: Words, ends: Words) -> None:
        """Judge what closes the segments that end before one of these starts."""
        before = np.append(self.end, ends[:-1])
        segment_bytes = self.log.segment_bytes
        crossed = (starts // segment_bytes > before // segment_bytes) & (before % segment_bytes > 0)
        self.tally.check("closed", int(crossed.sum()))
        for end in before[crossed].tolist():
            used, stop = used_behind_blank(self.log, end)
            if used < stop:
                reason = "the rest of the segment is not empty"
                self.findings.fault("closed", Fault(_LOG, used, reason))
        self.end = int(ends[-1])

    # --- messages

    def _take(self, rows: LoggedMessages) -> None:
        self._map(rows)
        marks = np.zeros(len(rows), np.int64)
        tag = self.view.reader.store_tag
        mark_messages(self.log.table, rows, tag, self.found, marks)
        sound = rows.status == GOOD  # the others came with their fault
        self.tally.check("message_sound", int(sound.sum()))
        self.tally.counts["messages"] += len(rows)
        numbers = self.queues.numbers(stored_in(rows))
        nameless = numbers == NO_QUEUE
        reason = f"its queue would be one more than the {QUEUE_COUNT_MAX} that a store can have"
        torn = self.findings.scope.torn_in_log(rows.offset)
        offsets = rows.offset[sound & nameless]
        self.findings.fail("message_sound", _LOG, offsets, reason, torn[sound & nameless])
        indexed = sound & ~nameless & (marks & MARK_NOT_INDEXED == 0)
        for number in np.flatnonzero(np.bincount(numbers[indexed])).tolist():
            topic, queue_id = self.queues.names[number]
            if (text(topic), queue_id) not in self.view.batch_queues:
                self._compare(number, rows[indexed & (numbers == number)])
        if self.findings.scope.has_indexes:
            self._map(rows)  # who looks for what is lost may have let go of it
            self._take_timers(rows, numbers, marks)

    def _map(self, rows: LoggedMessages) -> None:
        segment_bytes = self.log.segment_bytes
        first, last = rows.offset[[0, -1]] // segment_bytes
        for number in range(int(first), int(last) + 1):
            if number in self.log.numbers:
                self.log.map(number)

    # --- queues

    def _compare(self, number: int, rows: LoggedMessages) -> None:
        """Compare messages of one queue with its entries, and with each other."""
        topic, queue_id = self.queues.names[number]
        name, file = queue_name(text(topic), queue_id), self._file(number)
        indexes, judge = rows.queue_index, self.findings.judge
        torn = self.findings.scope.torn_in_log(rows.offset)
        if self.findings.scope.has_indexes:
            entries, wrong, other_tags = compare_entries(file, rows)
            at = indexes * fmt.ENTRY_BYTES
            reason = "the entry is not that of the message with this index"
            judge("entry", wrong, name, at, reason, torn)
            rule, reason = "entry_tags", "the tags code is not the hash of the message's tag"
            if topic == fmt.LEVEL_TOPIC:
                rule, reason = "level_due", "the entry's time is not stored plus a level's delay"
                other_tags &= ~is_level(entries["tags_code"] - rows.stored_ms)
            judge(rule, other_tags, name, at, reason, torn)

        before = self.last.get(number, int(indexes[0]) - 1)
        steps = np.diff(indexes, prepend=before)
        jumps = steps != 1
        count = len(rows)
        for i in np.flatnonzero(steps > 1).tolist():
            if file is not None:
                between = int(indexes[i] - steps[i]) + 1, int(indexes[i])
                lost = lost_count(self.view, file, *between, damaged=True)
                jumps[i] = lost != steps[i] - 1
        if file is not None:
            left_out = is_gap(indexes, steps, file.segment_bytes // fmt.ENTRY_BYTES)
            jumps, count = jumps & ~left_out, count + int(left_out.sum())
        self.last[number] = int(indexes[-1])
        reason = f"its queue offset does not follow the one before it in {name}"
        judge("queue_order", jumps, _LOG, rows.offset, reason, torn)
        low, high, before_count = self.tally.queues.get(name, (1 << 62, -1, 0))
        low, high = min(low, int(indexes.min())), max(high, int(indexes.max()))
        self.tally.queues[name] = low, high, before_count + count

    def _file(self, number: int) -> ReadSegments | None:
        topic, queue_id = self.queues.names[number]
        return self.view.reader.queues.get((text(topic), queue_id))

    # --- timers

    def _take_timers(self, rows: LoggedMessages, numbers: Words, marks: Words) -> None:
        """Note what messages say of timers, and judge when they were fired."""
        has_due = rows.due_ms >= 0
        destined = has_due & (rows.real_topic_bytes >= 0)
        waits = numbers == _TIMER_ROW
        is_level = self.queues.are_of(fmt.LEVEL_TOPIC, numbers)
        named = rows.real_topic_bytes
        is_timer = waits & destined
        is_copy = ~waits & ~is_level
        is_level &= named > 0
        # Halves of transactions are dropped when they are due.
        is_level[is_level] = ~self.queues.are_of(
            fmt.HALF_TOPIC, self.queues.numbers(destined_for(rows[is_level]))
        )
        is_fired = is_copy & ((rows.origin >= 0) | destined)
        without_due = is_copy & ~is_fired & ~has_due & (named >= 0)
        if not self.findings.scope.only_bytes:
            self._judge_times(rows[is_fired & has_due])
        if self.findings.scope.measures:
            late = is_fired & has_due
            self._measure_lateness(rows[late], numbers[late])
        kinds = np.full(len(rows), facts.NO_TIMER)
        kinds[is_timer] = np.where(rows.is_delete == 1, facts.DELETE, facts.TIMER)[is_timer]
        kinds[is_fired | without_due] = facts.FIRED
        kinds[is_level] = facts.IN_LEVEL
        if self.findings.scope.measures:
            self._measure_growth(rows, kinds)
        covers = self.queues.are_of(fmt.SALVAGED_TOPIC, numbers)
        self._lost(rows.offset[covers], rows.offset[covers] + rows.size[covers])
        noted = kinds != facts.NO_TIMER
        if noted.any() and not self.findings.scope.only_bytes:
            flags = without_due[noted], (is_fired & covers)[noted], marks[noted] & MARK_OURS != 0
            self._tell(rows[noted], kinds[noted], *flags)

    def _judge_times(self, fired: LoggedMessages) -> None:
        late_ms = fired.stored_ms - fired.exact_due_ms
        offsets, reason = fired.offset, "it was fired before it was due"
        torn = np.zeros(len(offsets), np.bool_)
        self.findings.judge("early", late_ms < 0, _LOG, offsets, reason, torn)

    def _measure_lateness(self, fired: LoggedMessages, numbers: Words) -> None:
        """Count how late what was fired was, by topic and hour."""
        known = numbers != NO_QUEUE
        fired, stored_ms = fired[known], fired.stored_ms[known]
        self.findings.tell(
            facts.LATE,
            topic=self._topics(numbers[known]),
            hour=stored_ms // HOUR_MS,
            late_ms=lateness_told(stored_ms - fired.exact_due_ms),
            fired=np.ones(len(fired), np.int64),
        )

    def _measure_growth(self, rows: LoggedMessages, kinds: Words) -> None:
        """Count messages and bytes by the hour in which they were appended, and by their kind."""
        kind = np.where((kinds == facts.TIMER) & (rows.roll_times > 0), facts.MOVED, kinds)
        hours, each = rows.stored_ms // HOUR_MS, np.ones(len(rows), np.int64)
        self.findings.tell(facts.GROWN, hour=hours, kind=kind, messages=each, bytes=rows.size)

    def _topics(self, numbers: Words) -> Words:
        """Return what stands for the topics of queues in facts, and note their names."""
        for number in np.unique(numbers).tolist():
            self.tally.topics[self.queues.topics[number]] = text(self.queues.names[number][0])
        return np.array(self.queues.topics, np.int64)[numbers]

    def _tell(
        self, rows: LoggedMessages, kinds: Words, without_due: Flags, filler: Flags, ours: Flags
    ) -> None:
        index, waits, levels = rows.queue_index, kinds <= facts.DELETE, kinds == facts.IN_LEVEL
        who, due_ms = self._identities(rows, kinds, filler), rows.exact_due_ms.copy()
        due_ms[levels] = rows.tags_code[levels]
        due_ms[without_due] = rows.stored_ms[without_due]
        offsets = np.array(self.view.cut.level_offsets, np.int64)
        passed = offsets[np.clip(rows.queue_id, 0, len(offsets) - 1)]
        unlinked = (waits & (index >= self.view.queue_index)) | (levels & (index >= passed))
        rolls = np.maximum(rows.roll_times, 0)
        is_copy = (kinds == facts.FIRED) | (waits & (rolls > 0))
        self.tally.counts["nameless_copies"] += int((is_copy & (rows.origin < 0)).sum())
        topics, timers = np.zeros(len(rows), np.int64), (kinds == facts.TIMER) | levels
        if timers.any():
            numbers = np.maximum(self.queues.numbers(destined_for(rows[timers])), 0)
            topics[timers] = self._topics(numbers)
        self.findings.tell(
            facts.MESSAGES,
            message=rows.offset,
            who=who,
            kind=kinds,
            due_ms=due_ms,
            rolls=rolls,
            topic=topics,
            origin=rows.origin,
            is_copy=is_copy,
            is_unlinked=unlinked,
            is_old=waits & (index < self.findings.scope.first_index),
            is_ours=ours,
            is_without_due=without_due,
            is_first=levels & ours & (who == rows.offset | fmt.LEVEL_MARK),
            is_filler=filler,
        )

    def _lost(self, start: Words, stop: Words) -> None:
        if len(start):
            self.findings.tell(facts.LOST, start_at=start, stop_at=stop)

    def _identities(self, rows: LoggedMessages, kinds: Words, filler: Flags) -> Words:
        """Return what tells each timer, also from a copy that no longer names its destination."""
        high, low = rows.identity_high.copy(), rows.identity_low.copy()
        nameless: Flags = (kinds == facts.FIRED) & (high != IDENTITY_OURS)
        nameless &= rows.real_topic_bytes < 0
        for i in np.flatnonzero(filler).tolist():
            origin = int(rows.origin[i])
            for source in self.view.reader.scan(origin, origin + 1):
                high[i], low[i] = source.identity_high[0], source.identity_low[0]
            self._map(rows)  # the scan may have let go of it
        if nameless.any():
            part = rows[nameless]
            both = np.zeros((2, len(part)), np.int64)
            tag = self.view.reader.store_tag
            identify_copies(self.log.table, part, tag, self.found, both[0], both[1])
            high[nameless], low[nameless] = both
        return facts.fold_identity(high, low)
