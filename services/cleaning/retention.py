"""Retention: removes the segments that nobody will need again, the oldest first.

A commit log segment goes when it lies below the durable floor, which cleaning moves
(`cleaning.py`), and below the durable copies cursor, from which recovery scans for copies, and if
no listing holds it (`services/engine/holds.py`). A timer log segment goes when each of
its units is superseded, its message being below the durable floor, or settled, its slot being
before the durable read cursor, and a durable checkpoint says that the log may begin behind it; a
consume queue segment when the messages of all its entries are
gone. Each removal is durable before the next, the oldest first, and the commit log's come before
those of the queues, so a crash at any point leaves a store that only begins somewhat earlier.

A commit log segment that goes becomes the next one if that is of use: as many as are filled within
three checkpoints, at most four or 512 MiB, none if the store takes half of `max_bytes`. The rules,
each of which `tests/models/reuse_model.py` shows to be needed:

1. Only a file with one name, which nobody of this process has mapped and no other process reads
   (they share a lock on the folder, `timelog/files/folders.py`). A broker's file is not used again,
   because its blanks do not say at which offset they are.
2. It is renamed, never over another, to the next number, the folder is synced, and only then a byte
   is written into it. One at a time, the oldest first, by the flush thread.
3. Before a message is copied, the *apron* behind its end is zeros: 64 KiB, an eighth of a small
   segment. So after a kill the log ends in zeros, at which a broker stops as well.
4. A message counts only at its own offset, with its CRC; behind the durable offset a blank counts
   only with its seal, unless a broker may have written it.
5. Before anything is appended, recovery zeroes what is behind the log's end, and removes later
   segments that hold anything, the last first. A clean close does the same.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from timerstore.errors import (
    CorruptStoreError,
    MissingFileError,
)
from timerstore.jit.locks import TurnLock
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.jit.record import acting_as
from timerstore.services.durable.flush import Flusher
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.read_units import all_units, unit_reader
from timerstore.services.world.state import CLEANING
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import get_field, said_stored_ms, text
from timerstore.timelog.files.checkpoint import TimerCheckpoint
from timerstore.timelog.files.segments import PinnedLog, SegmentedFile
from timerstore.timelog.files.segmenttable import TABLE_LENGTH, apron_bytes
from timerstore.timelog.files.smallfile import read_head
from timerstore.timelog.reading.reader import ReadSegments
from timerstore.timelog.writing.append import BATCH_BYTES, STAGE_BYTES

log = logging.getLogger("timerstore")

AHEAD_MAX: Final = 4
"""Segments that are kept for use again, at most; of small ones so many bytes."""
AHEAD_BYTES_MAX: Final = 512 << 20
_RUNS_MAX: Final = 3
"""So many runs, some two seconds, say how fast segments fill: slots pass once a second."""


class Retention:
    """Removes segments of one engine. `run` may be called by any thread, but by one at a time."""

    def __init__(self, engine: Engine, flusher: Flusher) -> None:
        self.engine, self._flusher = engine, flusher
        self.removed_count = 0
        self.error: CorruptStoreError | None = None
        """Damage that kept it from knowing what is needed; nothing is removed since."""
        self._lock = TurnLock()
        self._leaving: list[SegmentedFile] = []
        """Logs with segments that are to go; what a full disk kept goes before any other."""
        self._ends: deque[int] = deque(maxlen=_RUNS_MAX)  # number of the log's last segment, then
        self._queues_cut_to = -1
        self._needed_unit = (-1, -1, -1)  # its timer log segment, message and slot
        self._needed_from = 0  # the first timer log segment that may be needed

    def run(self) -> int:
        """Remove what can go; return how many files. O(queues), and a timer log segment once."""
        with self._lock.if_free.guard() as taken:
            try:
                return self._run() if taken else 0
            except CorruptStoreError as e:
                self.error = e
                fields = {"store": str(self.engine.path), "file": e.file, "offset": e.offset}
                text = "%s: retention has stopped, so no file is removed any more: %s"
                log.error(text, self.engine.path, e, extra=fields)
                return 0

    def _run(self) -> int:
        self.engine.let_go()
        checkpoint = self._flusher.last
        if checkpoint is None or self.error is not None or self.engine.wanted.keep_from == 0:
            return 0
        self.engine.commitlog.ahead_max = self._wanted_ahead()
        self._drop_ahead()
        self._remove_leaving()
        commitlog_limit = self._commitlog_limit(checkpoint)
        self._flusher.timerlog_from = self._timerlog_limit(checkpoint)
        limits = commitlog_limit, checkpoint.timerlog_from
        return self._remove(*self.engine.holds.heed(*limits, full=self._is_full()))

    def _is_full(self) -> bool:
        """Tell whether what goes makes room that is needed, or soon will be."""
        engine, most = self.engine, self.engine.config.max_bytes
        is_waiting = self._flusher.waiting_for_space is not None
        return is_waiting or (most is not None and 4 * engine.disk_bytes > 3 * most)

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
        if not limits:
            self._queues_cut_to = start
            return 0
        first = engine.commitlog.start // engine.commitlog.segment_bytes
        for file, limit in limits:
            if file is engine.timerlog:  # first: whenever this ends, its units are superseded
                with acting_as(CLEANING):
                    engine.world.cleaning.timerlog_start = limit
            self._leaving.append(file)
            file.detach_before(limit)
        self._queues_cut_to = start
        engine.let_go()
        for number in range(first, commitlog_limit // engine.commitlog.segment_bytes):
            engine.world.latest_slot[number % TABLE_LENGTH] = -1  # for the segment's next use
        return self._remove_leaving()

    def _wanted_ahead(self) -> int:
        """Return how many segments behind the log's end are of use: what is filled in seconds.

        None if they may take room from what is put.
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

    def _drop_ahead(self) -> None:
        """Remove one segment behind the log's end, if more are left than are of use.

        One at a run, so that a pause of a few seconds leaves some.
        """
        log = self.engine.commitlog
        reach_bytes = min(STAGE_BYTES, BATCH_BYTES + 2 * log.segment_bytes) + PAGE_BYTES
        reach_bytes += apron_bytes(log.segment_bytes)
        if log.drop_last(max(1, log.ahead_max), self.engine.world.append_lock, reach_bytes):
            self.engine.let_go()
            self.removed_count += 1

    def _remove_leaving(self) -> int:
        """Remove what is to go; if a full disk keeps some, they are the first next time."""
        count = 0
        while self._leaving:
            file = self._leaving[0]
            before = file.detached_count
            try:
                file.remove_detached()
            finally:
                count += before - file.detached_count
                self.removed_count += before - file.detached_count
            self._leaving.pop(0)
        return count

    # --- the commit log and the timer log

    def _commitlog_limit(self, checkpoint: TimerCheckpoint) -> int:
        """Return the offset below which commit log segments can go."""
        log = self.engine.commitlog
        limit = min(checkpoint.needed_offset, self.engine.wanted.keep_from)
        return max(log.start, limit // log.segment_bytes * log.segment_bytes)

    def _timerlog_limit(self, checkpoint: TimerCheckpoint) -> int:
        """Return the offset below which timer log segments can go."""
        log, segment_bytes = self.engine.timerlog, self.engine.timerlog.segment_bytes
        read_slot = checkpoint.read_ms // self.engine.precision_ms
        number = max(self._needed_from, log.start // segment_bytes)
        stop, floor = checkpoint.timerlog_flushed // segment_bytes, checkpoint.floor
        if number < stop and not self._is_known(number, floor, read_slot):
            reader = unit_reader(self.engine)
            while number < stop and not self._is_needed(number, floor, read_slot, reader):
                number += 1
        # Read cursor and floor only grow, so those before it are never needed again.
        self._needed_from = number
        return number * segment_bytes

    def _is_known(self, number: int, floor: int, read_slot: int) -> bool:
        """Tell whether a segment has the unit that was kept in mind, and that is not passed yet."""
        kept, message, slot = self._needed_unit
        return kept == number and message >= floor and slot >= read_slot

    def _is_needed(
        self, number: int, floor: int, read_slot: int, reader: ReadSegments | PinnedLog
    ) -> bool:
        """Tell whether a full segment has a unit from floor and read cursor on.

        The one of the latest slot is kept in mind: until it is passed nothing is read again.
        """
        start = number * self.engine.timerlog.segment_bytes
        stop = start + self.engine.timerlog.segment_bytes
        found = False
        for units in all_units(self.engine, start, stop, read_slot, reader):
            units = units[units.message >= floor]
            if len(units):
                i = int(units.ms.argmax())
                message, unit_ms = int(units.message[i]), int(units.ms[i])
                slot = unit_ms // self.engine.precision_ms
                if not found or slot > self._needed_unit[2]:
                    self._needed_unit = number, message, slot
                found = True
        return found

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


# --- The reach: the offset up to which only pending timers keep the commit log.
#
# Before it every segment is full, and its last message older than `retention_ms`; every timer
# message has its unit; what was fired was consumed by all groups of its topic, durably; and the
# delay levels have delivered what waited there. A topic that no group ever read keeps its messages:
# a program that puts without consuming fills the disk up to `max_bytes`, and is then refused.

_NO_LIMIT: Final = 1 << 62
CLOCK: Final = "the clock, which was set back: nothing goes until it has caught up"


class Committed(Protocol):
    """What groups have consumed, as one moment's durable offsets."""

    def smallest(self, topic: bytes, queue_id: int) -> tuple[int, str] | None:
        """Return the smallest index that a group still needs, with the group; None if no one."""


class Reach:
    """Finds one engine's reach. Used by one thread at a time."""

    def __init__(self, engine: Engine, committed: Callable[[], Committed]) -> None:
        """Ask `committed` for the groups' offsets."""
        self.engine, self._committed = engine, committed
        self.kept_by = "nothing"
        """What kept the first segment behind the reach, when it was looked at last."""
        self._stored_ms: dict[int, int] = {}  # of the first message of a commit log segment
        self.found = 0
        """The reach as it was found last."""
        self._keeper = 0  # row of the queue that kept it last: it is asked first

    def find(self, start: int) -> int:
        """Return the reach, a segment's end; `start` if it is not past the segment there.

        What was found stays, and is only looked beyond. O(segments that came since), and O(queues)
        if there is one.
        """
        log, segment_bytes = self.engine.commitlog, self.engine.commitlog.segment_bytes
        start = max(start, self.found)
        first = number = start // segment_bytes
        old_ms = self.engine.clock.now_ms - self.engine.config.retention_ms
        while (number + 1) * segment_bytes < log.end and self._last_stored_ms(number) <= old_ms:
            number += 1
        for each in [each for each in self._stored_ms if each < first]:
            del self._stored_ms[each]
        self.kept_by = "nothing"
        if (number + 1) * segment_bytes < log.end:
            self.kept_by = CLOCK if self.engine.set_back_ms else "retention_ms"
        if number == first:
            return start
        limit = min(number * segment_bytes, self._first_unlinked())
        if limit >= (first + 1) * segment_bytes:
            limit = self._first_unconsumed((first + 1) * segment_bytes, limit)
        if limit < (first + 1) * segment_bytes:
            return start
        self.found = limit // segment_bytes * segment_bytes
        return self.found

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
            path, at = self.engine.commitlog.path(number), self.engine.disk.at
            data = read_head(path, fmt.MESSAGE_HEADER_BYTES + fmt.HOST_V6_EXTRA_BYTES, at)
        except MissingFileError:
            return None
        view = np.frombuffer(data, np.uint8)
        if len(view) < fmt.MESSAGE_HEADER_BYTES + fmt.HOST_V6_EXTRA_BYTES:
            return None
        magic = get_field(view, fmt.MESSAGE_MAGIC_AT, 4) & 0xFFFFFFFF
        is_there = magic in (fmt.MESSAGE_MAGIC, fmt.MESSAGE_MAGIC_LONG_TOPIC)
        return said_stored_ms(view) if is_there else None

    def _first_unlinked(self) -> int:
        """Return the offset of the first timer message that has no unit yet."""
        offset = self._unlinked_at()
        if offset < _NO_LIMIT:
            self.kept_by = f"timers that have no unit yet, from offset {offset:,} on"
        return offset

    def _unlinked_at(self) -> int:
        queues, index = self.engine.queues, self.engine.world.enqueue_put.linked_index
        if index >= queues.next_index(0):
            return _NO_LIMIT
        return int(queues.read(0, index, 1)[0]["offset"])

    def unlinked_bytes(self) -> int:
        """Return the bytes behind the first timer message that has no unit yet. O(1)."""
        return max(0, self.engine.commitlog.end - self._unlinked_at())

    def _first_unconsumed(self, least: int, limit: int) -> int:
        """Return the offset of the oldest message that a group, or a delay level, still needs.

        Return `limit` if it lies behind that. If it lies before `least`, any such offset may be
        returned.
        """
        queues, committed = self.engine.queues, self._committed()
        for row in (self._keeper, *range(1, len(queues.files))):
            topic, queue_id = queues.topics[row], int(queues.table.queue_id[row])
            if topic == fmt.TIMER_TOPIC or not queues.files[row].numbers:
                continue
            index, who = 0, f"delay level {queue_id + 1}"
            if topic != fmt.LEVEL_TOPIC:
                found = committed.smallest(topic, queue_id)
                who = f"topic {text(topic)!r}, which no group has read"
                if found is not None:
                    index, group = found
                    who = f"group {group!r}, which is behind in topic {text(topic)!r}"
                    if topic == fmt.DEAD_PREFIX + group.encode("utf-8", "surrogateescape"):
                        who = f"dead letters of group {group!r}"
            else:
                index = int(self.engine.levels.offset[queue_id])
            index = max(queues.first_kept(row, self.engine.commitlog.start), index)
            end = queues.next_index(row)
            if index < end:
                needed = int(queues.read(row, index, 1)[0]["offset"])
                if needed < limit:
                    limit, self._keeper = needed, row
                    many = "1 message" if end - index == 1 else f"{end - index:,} messages"
                    self.kept_by = f"{who}: {many} from offset {needed:,} on"
                if needed < least:
                    break
        return limit
