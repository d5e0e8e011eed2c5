"""Slow, obvious twins of the services that append: dequeue-put or deliver-levels."""

from collections import Counter
from dataclasses import dataclass, field

from tests import naive
from tests.naive_services import (
    FAR,
    LEVEL_MARK,
    MARKS_DELETE,
    NO_NEED,
    PLACES,
    Log,
    Taken,
)

# --------------------------------------------------------------------- dequeue-put

FIRED, DROPPED, LOST, FORGOTTEN = "fired", "dropped", "lost", "forgotten"


@dataclass
class Appended:
    """What both services that append know of the log that they append to."""

    log: Log
    queues: dict[tuple[str, int], int]  # the next index of each that is known
    segments: set[int]  # of the commit log that can be appended to, of a page each
    queue_segments: set[tuple[str, int, int]]  # topic, queue, number
    segment_entries: int
    stored_ms: int = 0
    copies: list[naive.Message] = field(default_factory=list)
    missing_queue: tuple[str, int] = ("", 0)
    missing_offset: int = 0

    def append(self, copy: naive.Message, now_ms: int) -> tuple[str, int] | None:
        """Append a copy; or return what is missing: a segment, or one of a queue."""
        self.stored_ms = max(self.stored_ms, now_ms)
        name = copy.topic, copy.queue_id
        index = self.queues[name]
        offset = naive.place_behind(self.log.segment_bytes, self.log.end, copy.size_bytes)
        if offset // self.log.segment_bytes not in self.segments:
            self.missing_offset = offset
            return "commitlog segment", 0
        if (*name, index // self.segment_entries) not in self.queue_segments:
            self.missing_queue = name
            return "queue segment", 0
        self.queues[name] = index + 1
        copy.offset, copy.queue_offset, copy.stored_ms = offset, index, self.stored_ms
        self.log.take(copy)
        self.copies.append(copy)
        return None

    def answer(self, need: str, message: int) -> None:
        """Have what was needed, as the engine makes it."""
        if need == "commitlog segment":
            first = self.log.end // self.log.segment_bytes
            self.segments |= set(range(first, self.missing_offset // self.log.segment_bytes + 1))
        elif need == "queue segment":
            number = self.queues[self.missing_queue] // self.segment_entries
            self.queue_segments.add((*self.missing_queue, number))
        elif need == "commitlog read":
            self.log.unmapped.discard(message // self.log.segment_bytes)
        elif need == "topic":
            properties = self.log.messages[message].properties
            queue = max(0, naive.number(properties.get("REAL_QID")))
            self.queues[properties["REAL_TOPIC"], queue] = 0


@dataclass
class DequeuePut:
    """From the dequeue ring to the log: fired or rolled copies; then the read cursor."""

    to: Appended
    read: int
    walked: int
    frontier: int
    came: Counter[int] = field(default_factory=Counter)  # units that came, by the slot's place
    cancelled: set[tuple[int, int]] = field(default_factory=set)
    held_from: int = FAR
    settled: Counter[int] = field(default_factory=Counter)
    first_copy: dict[int, int] = field(default_factory=dict)  # by the slot's place
    counts: Counter[str] = field(default_factory=Counter)
    pending: Counter[str] = field(default_factory=Counter)  # by topic, as it changed
    late_ms: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    need: tuple[str, int] = NO_NEED

    def step(self, waiting: list[Taken], now_ms: int) -> int:
        """Append what was taken, then pass slots; return the work done."""
        done = 0
        if self.lost:
            self.need = "lost", 0
        else:
            done = self._append(waiting, now_ms)
        while self._passes(now_ms):
            self.read += 1
            done += 1
        return done

    def _append(self, waiting: list[Taken], now_ms: int) -> int:
        decided: list[tuple[Taken, str]] = []
        for each in waiting:
            kind = self._decide(each, now_ms)
            if kind is None:
                break
            decided.append((each, kind))
        fired = [self.to.log.due_ms(each.message) for each, kind in decided if kind == FIRED]
        stamp_ms, batch, done = max([now_ms, *fired]), list[int](), 0
        for each, kind in decided:
            until_ms = each.at
            if kind == FIRED:
                source = self.to.log.messages[each.message]
                copy = naive.fired_copy(source, source.stored_ms, now_ms)
                copy.queue_id = max(0, copy.queue_id)
                missing = self.to.append(copy, stamp_ms)
                if missing:
                    self.need = missing
                    break
                first = self.first_copy.get(each.place, FAR)
                self.first_copy[each.place] = min(first, copy.offset)
                due_ms = self.to.log.due_ms(each.message)
                until_ms = max(until_ms, due_ms)
                self.pending[copy.topic] -= 1
                batch.append(due_ms)
            elif kind == LOST:
                self.lost.append(each.message)
            elif kind == FORGOTTEN:
                until_ms = (each.at + 1) * self.to.log.precision_ms - 1
                self._forget(each.message)
            self.counts[kind] += 1
            self.frontier = max(self.frontier, until_ms)
            self.settled[each.place] += 1
            done += 1
        self.late_ms += [max(0, self.to.stored_ms - due_ms) for due_ms in batch]
        return done

    def _decide(self, each: Taken, now_ms: int) -> str | None:
        log = self.to.log
        if not 0 <= each.message < log.end:
            return LOST
        if log.is_unmapped(each.message):
            self.need = "commitlog read", each.message
            return None
        if each.magic & MARKS_DELETE:
            return FORGOTTEN if each.message in log.messages else LOST
        if not log.is_sound(each.message, each.size, verify=True):
            return LOST
        properties = log.messages[each.message].properties
        if "TIMER_OUT_MS" not in properties:
            return LOST
        if log.identity(each.message) in self.cancelled:
            return DROPPED
        queue = properties["REAL_TOPIC"], max(0, naive.number(properties.get("REAL_QID")))
        if queue not in self.to.queues:
            self.need = "topic", each.message
            return None
        return FIRED

    def _forget(self, message: int) -> None:
        high, low = self.to.log.identity(message)
        if high == -1 and low >= LEVEL_MARK:
            if (high, low) in self.cancelled:  # its loop has yet to pass it
                self.cancelled = self.cancelled - {(high, low)} | {(-2, low)}
                self.held_from = min(self.held_from, message)
        else:
            self.cancelled.discard((high, low))

    def _passes(self, now_ms: int) -> bool:
        slot = self.read
        if now_ms // self.to.log.precision_ms <= slot or self.walked <= slot:
            return False
        return self.came[slot % PLACES] == self.settled[slot % PLACES]


# ------------------------------------------------------------------- deliver-levels


@dataclass
class Level:
    """One delay level's loop."""

    delay_ms: int
    entries: list[naive.Entry] = field(default_factory=list)
    offset: int = 0
    mapped: int = -1  # the segment of its queue that can be read
    head: int = -1  # the index of the entry that was looked at
    said: int = -1  # the index of the entry that led to no message, when Python said what it is


@dataclass
class DeliverLevels:
    """From the queues of the delay levels to the log."""

    to: Appended
    levels: list[Level]
    batch_max: int
    turn: int = 0
    stopped: bool = False
    done: set[int] = field(default_factory=set)
    cancelled: set[tuple[int, int]] = field(default_factory=set)
    held_from: int = FAR
    counts: Counter[str] = field(default_factory=Counter)
    pending: Counter[str] = field(default_factory=Counter)
    late_ms: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    need: tuple[str, int] = NO_NEED

    def step(self, now_ms: int) -> int:
        """Deliver a batch of the first level, from its turn on, that has something to do."""
        if self.stopped:
            return 0
        if self.lost:
            self.need = "lost", 0
            return 0
        for i in range(len(self.levels)):
            number = (self.turn + i) % len(self.levels)
            level = self.levels[number]
            if level.offset == len(level.entries) or not self._is_time(level, now_ms):
                continue
            done = self._deliver(number, now_ms)
            if done or self.need != NO_NEED:
                self.turn = (number + 1) % len(self.levels)
                return done
        return 0

    def _is_time(self, level: Level, now_ms: int) -> bool:
        if level.head != level.offset:
            if level.mapped != level.offset // self.to.segment_entries:
                return True  # it has to be looked at
            level.head = level.offset
        return self._due_ms(level, level.entries[level.offset], now_ms) in (None, now_ms)

    def _due_ms(self, level: Level, entry: naive.Entry, now_ms: int) -> int | None:
        """When an entry is due, `now_ms` at the earliest; None where its message is not mapped."""
        due_ms, log = entry.tags_code, self.to.log
        if due_ms > now_ms + level.delay_ms + naive.LEVEL_SLACK_MS:
            if not 0 <= entry.message_offset < log.end:
                return now_ms  # it will be passed by
            if log.is_unmapped(entry.message_offset):
                return None
            message = log.messages.get(entry.message_offset)
            if message is None or message.stored_ms > now_ms + naive.LEVEL_SLACK_MS:
                return now_ms
            if self._says_otherwise(entry):
                return now_ms
        return max(now_ms, due_ms)

    def _deliver(self, number: int, now_ms: int) -> int:
        level = self.levels[number]
        decided: list[tuple[naive.Entry, int, str]] = []
        for i in range(level.offset, min(len(level.entries), level.offset + self.batch_max)):
            entry = level.entries[i]
            if level.mapped != i // self.to.segment_entries:
                if i == level.offset:
                    self.need = "level read", number
                break
            due_ms = self._due_ms(level, entry, now_ms)
            if due_ms is None and i == level.offset:
                self.need = "commitlog read", entry.message_offset
            if due_ms != now_ms:
                break
            outcome = self._decide(entry)
            if outcome == LOST and level.said != i:
                if i == level.offset:
                    self.need = "bad level entry", number
                break
            if outcome is None:
                break
            decided.append((entry, min(entry.tags_code, now_ms), outcome))
        done = self._append(decided, now_ms)
        level.offset += done
        return done

    def _says_otherwise(self, entry: naive.Entry) -> bool:
        """Tell whether the key that we gave a message says another due time than its entry."""
        key = self.to.log.messages[entry.message_offset].properties.get("UNIQ_KEY", "")
        ours = naive.decode_unique_key(key, self.to.log.tag)
        own = entry.message_offset | LEVEL_MARK
        return ours is not None and ours.message_offset == own and ours.due_ms != entry.tags_code

    def _decide(self, entry: naive.Entry) -> str | None:
        log, offset = self.to.log, entry.message_offset
        if entry.message_bytes == naive.INT32_MAX or offset in self.done:
            return "skipped"
        if not 0 <= offset < log.end:
            return LOST
        if log.is_unmapped(offset):
            self.need = "commitlog read", offset
            return None
        if not log.is_sound(offset, entry.message_bytes, verify=True):
            return LOST
        if self._says_otherwise(entry):
            return LOST
        low = offset | LEVEL_MARK
        if log.identity(offset) == (-1, low) and self.cancelled & {(-1, low), (-2, low)}:
            return DROPPED
        properties = log.messages[offset].properties
        queue = properties["REAL_TOPIC"], max(0, naive.number(properties.get("REAL_QID")))
        if queue not in self.to.queues:
            self.need = "topic", offset
            return None
        return FIRED

    def _append(self, decided: list[tuple[naive.Entry, int, str]], now_ms: int) -> int:
        done, batch = 0, list[int]()
        for entry, due_ms, outcome in decided:
            offset = entry.message_offset
            if outcome == FIRED:
                source = self.to.log.messages[offset]
                key = source.properties.get("UNIQ_KEY", "")
                ours = naive.decode_unique_key(key, self.to.log.tag) is not None
                copy = naive.delivered_copy(source, due_ms, asked=not ours)
                copy.queue_id = max(0, copy.queue_id)
                missing = self.to.append(copy, now_ms)
                if missing:
                    self.need = missing
                    break
                self.counts["clamped"] += due_ms != entry.tags_code
                self.pending[copy.topic] -= 1
                batch.append(due_ms)
            elif outcome == DROPPED:
                low = offset | LEVEL_MARK
                held = (-1, low) not in self.cancelled
                self.cancelled = self.cancelled - {(-2 if held else -1, low)}
                if held and not any(high == -2 for high, _ in self.cancelled):
                    self.held_from = FAR
            elif outcome == LOST:
                self.lost.append(offset)
            self.counts[outcome] += 1
            done += 1
        self.late_ms += [max(0, self.to.stored_ms - due_ms) for due_ms in batch]
        return done
