"""Retention: removes the segments that nobody will need again, the oldest first.

A commit log segment goes when all of this holds: its last message is older than `retention_ms`;
the durable R is past the latest slot of every unit that points into it, so no pending timer, roll
or delete is in it; it lies below the durable L (what recovery scans for copies) and below the first
timer message without a durable unit; and every queue with messages in it was consumed past them by
all its groups, durably. A topic that no group ever read keeps its messages: a program that puts
without consuming fills the disk up to `max_bytes`, and is then refused.

A timer log segment goes when R is past all its slots, a consume queue segment when the messages of
all its entries are gone. Each removal is durable before the next, the oldest first, and the commit
log's come before those of the queues, so a crash at any point leaves a store that only begins
somewhat earlier.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine import Engine
from timerstore.services.flush import Flusher
from timerstore.timelog.checkpoint import Checkpoint
from timerstore.timelog.format import (
    HOST_V6_EXTRA_BYTES,
    LEVEL_TOPIC,
    MESSAGE_HEADER,
    MESSAGE_HEADER_BYTES,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_LONG_TOPIC,
    MESSAGE_STORED_AT,
    SYSTEM_FLAG_BORN_V6,
    TIMER_TOPIC,
)
from timerstore.timelog.reader import ReadSegments
from timerstore.timelog.record import Words
from timerstore.timelog.segments import TABLE_LENGTH, Detached, SegmentedFile
from timerstore.wheel import chain

log = logging.getLogger("timerstore")

AHEAD_MAX: Final = 4
"""Segments that are kept for use again, at most; of small ones so many bytes."""
AHEAD_BYTES_MAX: Final = 256 << 20
_RUNS_MAX: Final = 8
"""So many runs, a few seconds, say how fast segments are filled."""
_CHUNK_UNITS: Final = 65_536
_NO_LIMIT: Final = 1 << 62


class Committed(Protocol):
    """What groups have consumed, as one moment's durable offsets."""

    def smallest(self, topic: bytes, queue_id: int) -> int | None:
        """Return the smallest index that a group still needs; None where no group reads it."""


class Retention:
    """Removes segments of one engine. `run` may be called by any thread, but by one at a time."""

    def __init__(
        self,
        engine: Engine,
        flusher: Flusher,
        committed: Callable[[], Committed],
    ) -> None:
        """Ask `committed` for the groups' offsets."""
        self.engine, self._flusher = engine, flusher
        self._committed = committed
        self.removed_count = 0
        self.error: CorruptStoreError | None = None
        """Damage that kept it from knowing what is needed; nothing is removed since."""
        self._lock = threading.Lock()
        self._leaving: list[tuple[SegmentedFile, Detached]] = []
        """Files that are to go; those that a full disk kept go before any other."""
        self._ends: deque[int] = deque(maxlen=_RUNS_MAX)  # number of the log's last segment, then
        self._knows_latest_slots = False
        self._queues_cut_to = -1
        self._stored_ms: dict[int, int] = {}  # of the first message of a commit log segment
        self._latest_of_units: dict[int, int] = {}  # slot, by timer log segment

    def run(self) -> int:
        """Remove what can go; return how many files. O(queues), and the timer log's once."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            checkpoint = self._flusher.last
            if checkpoint is None or self.error is not None or self.engine.rebuild_wanted:
                return 0
            self.engine.commitlog.ahead_max = self._wanted_ahead()
            self._remove_leaving()
            commitlog_limit = self._commitlog_limit(checkpoint)
            return self._remove(commitlog_limit, self._timerlog_limit(checkpoint))
        except CorruptStoreError as e:
            self.error = e
            log.error("%s: nothing is removed any more: %s", self.engine.path, e)
            return 0
        finally:
            self._lock.release()

    def _remove(self, commitlog_limit: int, timerlog_limit: int) -> int:
        engine = self.engine
        limits: list[tuple[SegmentedFile, int]] = []
        if commitlog_limit > engine.commitlog.start:
            limits.append((engine.commitlog, commitlog_limit))
        if timerlog_limit > engine.timerlog.start:
            limits.append((engine.timerlog, timerlog_limit))
        start = max(commitlog_limit, engine.commitlog.start)
        if start != self._queues_cut_to:
            limits += self._queue_limits(start)
            self._queues_cut_to = start
        if not limits:
            return 0
        first = engine.commitlog.start // engine.commitlog.segment_bytes
        # Under the locks, so that a verdict on a timer and what is read for it agree.
        with engine.locks:
            for file, limit in limits:
                self._leaving.append((file, file.detach_before(limit)))
        for file, _ in limits:
            engine.let_go(file)
        engine.trim(engine.commitlog)
        engine.trim(engine.timerlog)
        for number in range(first, commitlog_limit // engine.commitlog.segment_bytes):
            self._stored_ms.pop(number, None)
            engine.world.latest_slot[number % TABLE_LENGTH] = -1  # for whoever has it next
        return self._remove_leaving()

    def _wanted_ahead(self) -> int:
        """Return how many segments behind the log's end are of use: what is filled in seconds.

        None where they may take room from what is put.
        """
        engine, log = self.engine, self.engine.commitlog
        number, position = divmod(log.end, log.segment_bytes)
        self._ends.append(number)
        most = engine.config.max_bytes
        if most is not None and 2 * engine.disk_bytes > most:
            return 0
        is_half_full = 2 * position >= log.segment_bytes
        ahead_max = max(AHEAD_MAX, AHEAD_BYTES_MAX // log.segment_bytes)
        return min(ahead_max, number - self._ends[0] + int(is_half_full))

    def _remove_leaving(self) -> int:
        """Remove what is to go; where a full disk keeps some, they are the first next time."""
        count = 0
        while self._leaving:
            file, segments = self._leaving[0]
            before = len(segments)
            try:
                file.remove(segments)
            finally:
                count += before - len(segments)
                self.removed_count += before - len(segments)
            self._leaving.pop(0)
        return count

    # --- the commit log

    def _commitlog_limit(self, checkpoint: Checkpoint) -> int:
        """Return the offset below which commit log segments can go."""
        engine, log = self.engine, self.engine.commitlog
        first, segment_bytes = log.start // log.segment_bytes, log.segment_bytes
        limit = min(checkpoint.scan_from, checkpoint.commitlog_flushed)
        old_before = engine.clock.now_ms - engine.config.retention_ms
        number = first
        while (number + 1) * segment_bytes <= limit and self._last_stored_ms(number) < old_before:
            number += 1
        if number == first:
            return log.start
        limit = min(number * segment_bytes, self._first_unlinked(checkpoint))
        if limit >= (first + 1) * segment_bytes:
            limit = min(limit, self._first_unconsumed(checkpoint))
        if limit < (first + 1) * segment_bytes:
            return log.start
        self._learn_latest_slots()
        read_slot = checkpoint.read_ms // engine.precision_ms
        number = first
        while (number + 1) * segment_bytes <= limit:
            if engine.world.latest_slot[number % TABLE_LENGTH] >= read_slot:
                break
            number += 1
        return number * segment_bytes

    def _last_stored_ms(self, number: int) -> int:
        """Return when the message behind a segment's last was stored: that never falls."""
        if number not in self._stored_ms:
            stored_ms = self._read_stored_ms(number + 1)
            if stored_ms is None:
                return _NO_LIMIT
            self._stored_ms[number] = stored_ms
        return self._stored_ms[number]

    def _read_stored_ms(self, number: int) -> int | None:
        try:
            with open(self.engine.commitlog.path(number), "rb") as file:
                data = file.read(MESSAGE_HEADER_BYTES + HOST_V6_EXTRA_BYTES)
        except FileNotFoundError:
            return None
        if len(data) < MESSAGE_HEADER_BYTES + HOST_V6_EXTRA_BYTES:
            return None
        header = np.frombuffer(data[:MESSAGE_HEADER_BYTES], MESSAGE_HEADER)[0]
        if int(header["magic"]) not in (MESSAGE_MAGIC, MESSAGE_MAGIC_LONG_TOPIC):
            return None
        moved = bool(header["system_flag"] & SYSTEM_FLAG_BORN_V6)
        at = MESSAGE_STORED_AT + (HOST_V6_EXTRA_BYTES if moved else 0)
        return int.from_bytes(data[at : at + 8], "big", signed=True)

    def _first_unlinked(self, checkpoint: Checkpoint) -> int:
        """Return the offset of the first timer message that recovery would link again."""
        queues, index = self.engine.queues, checkpoint.queue_index
        if index >= queues.next_index(0):
            return _NO_LIMIT
        return int(queues.read(0, index, 1)[0]["offset"])

    def _first_unconsumed(self, checkpoint: Checkpoint) -> int:
        """Return the offset of the oldest message that a group, or a delay level, still needs."""
        queues, committed = self.engine.queues, self._committed()
        limit = _NO_LIMIT
        for row in range(1, len(queues.files)):
            topic, queue_id = queues.topics[row], int(queues.table.queue_id[row])
            if topic == TIMER_TOPIC or not queues.files[row].numbers:
                continue
            index: int | None = 0
            if topic != LEVEL_TOPIC:
                index = committed.smallest(topic, queue_id)
            elif queue_id < len(checkpoint.level_offsets):
                index = checkpoint.level_offsets[queue_id]
            first = queues.first_kept(row, self.engine.commitlog.start)
            index = first if index is None else max(first, index)
            if index < queues.next_index(row):
                limit = min(limit, int(queues.read(row, index, 1)[0]["offset"]))
        return limit

    def _learn_latest_slots(self) -> None:
        """Complete the latest slot of each commit log segment, once after opening.

        Enqueue-put keeps it for the units that it links; those of an earlier life are read here.
        """
        if self._knows_latest_slots:
            return
        engine = self.engine
        with engine.locks.wheel:
            stop = engine.timerlog.end
        latest = np.full(TABLE_LENGTH, -1, np.int64)
        for units in self._units(engine.timerlog.start, stop, engine.read_slot):
            slots = units[:, chain.WALK_UNIT_MS] // engine.precision_ms
            segments = units[:, chain.WALK_MESSAGE] // engine.commitlog.segment_bytes
            np.maximum.at(latest, segments % TABLE_LENGTH, slots)
        with engine.locks.wheel:
            np.maximum(engine.world.latest_slot, latest, out=engine.world.latest_slot)
        self._knows_latest_slots = True

    # --- the timer log

    def _timerlog_limit(self, checkpoint: Checkpoint) -> int:
        """Return the offset below which timer log segments can go."""
        log, segment_bytes = self.engine.timerlog, self.engine.timerlog.segment_bytes
        read_slot = checkpoint.read_ms // self.engine.precision_ms
        number = log.start // segment_bytes
        while (number + 1) * segment_bytes <= checkpoint.timerlog_flushed:
            if self._latest_slot_of_units(number) >= read_slot:
                break
            number += 1
        for each in [each for each in self._latest_of_units if each < number]:
            del self._latest_of_units[each]
        return number * segment_bytes

    def _latest_slot_of_units(self, number: int) -> int:
        """Return the latest slot of a full segment's units; read once."""
        if number not in self._latest_of_units:
            start = number * self.engine.timerlog.segment_bytes
            latest_ms = -1
            for units in self._units(start, start + self.engine.timerlog.segment_bytes, -1):
                latest_ms = max(latest_ms, int(units[:, chain.WALK_UNIT_MS].max()))
            self._latest_of_units[number] = latest_ms // self.engine.precision_ms
        return self._latest_of_units[number]

    def _units(self, start: int, stop: int, from_slot: int) -> Iterator[Words]:
        """Yield the units in [start, stop) of slots from `from_slot` on; overwritten by the next.

        They are read through maps of their own, so that those of the services stay as they are.
        """
        log = self.engine.timerlog
        reader = ReadSegments(log.folder, "timerlog", log.segment_bytes, open_count_max=4)
        units = np.zeros((_CHUNK_UNITS, chain.WALK_COLUMNS), np.int64)
        where, scratch = np.array([start, 0], np.int64), np.zeros(64, np.uint8)
        while True:
            before = int(where[0])
            reader.map_from(before)
            count = chain.scan_units(
                reader.table, stop, from_slot, self.engine.precision_ms, units, scratch, where
            )
            if count:
                yield units[:count]
            stuck = where[1] == chain.WALK_UNMAPPED and where[0] == before
            if where[1] == chain.WALK_DAMAGED or stuck:
                raise CorruptStoreError("timerlog", int(where[0]), "this is no unit")
            if where[1] == chain.WALK_DONE:
                return

    # --- the consume queues

    def _queue_limits(self, commitlog_limit: int) -> list[tuple[SegmentedFile, int]]:
        """Return the queues whose first segments go with the messages before `commitlog_limit`.

        The segment of a queue's last entry stays: it says what the next index is.
        """
        queues, limits = self.engine.queues, []
        for row, file in enumerate(queues.files):
            if len(file.numbers) < 2:
                continue
            last = max(0, queues.next_index(row) - 1)
            first = min(queues.first_kept(row, commitlog_limit), last)
            limit = first // queues.segment_entries * file.segment_bytes
            if limit > file.start:
                limits.append((file, limit))
        return limits
