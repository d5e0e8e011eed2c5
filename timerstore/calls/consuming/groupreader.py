"""Who reads a topic for a group: what its runs share with who hands them out."""

from __future__ import annotations

import itertools
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Final, Protocol

import numpy as np

from timerstore.calls.consuming.cursors import GroupRetries, QueueCursor
from timerstore.calls.consuming.delivery import AGAIN_MS, expired
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.calls.consuming.ready import Pace, ReadyCalls, new_ready
from timerstore.calls.consuming.sendback import send_to_dead
from timerstore.calls.putting.putting import Putting
from timerstore.core.core import Core
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    StoreClosedError,
    TimerStoreError,
    TooLateError,
)
from timerstore.jit.guards import RLock
from timerstore.jit.locks import TurnLock
from timerstore.jit.record import Bytes
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, decode_message, expires_ms, text
from timerstore.timelog.writing.compose import ACKS_GROUP, ACKS_TOPIC, read_record
from timerstore.values.ids import Int64s

# --- which acknowledgements that came with a put the offsets file knows of
#
# The log says them first, in records (`timelog/writing/compose.py`). The file's own offset in the
# records' topic says up to where all of them are in it: as committed indexes, or as what is done
# behind those. An `ack_and_put` that is under way keeps that offset back, from before its record
# is appended until its message is settled. What is behind it is applied when the store is opened;
# twice is as good as once, because an entry of a queue never becomes another one.


_AT_ONCE: Final = 256


def read_queued(core: Core, row: int, start: int, stop: int) -> Iterator[tuple[int, Message]]:
    """Yield the messages of entries [start, stop) that are kept, with their index; O(1) memory.

    Damage is reported; messages that retention removes meanwhile are skipped.
    """
    queues, commitlog = core.engine.queues, core.engine.commitlog
    if start < stop:
        start = max(start, queues.first_kept(row, commitlog.start))
    while start < stop:
        count = min(_AT_ONCE, stop - start)
        offsets = queues.read(row, start, count)["offset"].tolist()
        for index, offset in enumerate(offsets, start):
            try:
                yield index, decode_message(commitlog.view(offset), offset)
            except CorruptStoreError as e:
                if offset >= commitlog.start:
                    core.engine.damage.note(e.file, e.offset, e.reason)
        start += count


_TOPIC = text(ACKS_TOPIC)


class Keys(Protocol):
    """Who knows which timer is pending with a key."""

    @property
    def lock(self) -> TurnLock:
        """Held over a look and what is put for it."""

    def find(self, topic: str, key: str) -> str | None:
        """Return the id of a timer that is pending."""


class PutAcks:
    """The records of one store; any number of threads may use it."""

    def __init__(self, core: Core, keys: Keys) -> None:
        self._core, self.keys = core, keys
        self._under_way: dict[int, int] = {}  # by number, an index that the record's is not before
        self._numbers = itertools.count()
        self._lock = RLock()  # a signal's handler may acknowledge, too
        self.log_end = 0
        """Behind the last record's puts in the commit log."""

    def begin(self) -> int:
        """Say that a record will be appended; return what to say at its end."""
        queues = self._core.engine.queues
        row = queues.row(ACKS_TOPIC)
        with self._lock.guard():
            number = next(self._numbers)
            self._under_way[number] = queues.next_index(row)
        return number

    def end(self, number: int) -> None:
        """Say that its message is settled, or that nothing was appended."""
        with self._lock.guard():
            del self._under_way[number]

    def appended(self, log_end: int) -> None:
        """Say up to where the log must be durable before any file may know of the record."""
        with self._lock.guard():
            self.log_end = max(self.log_end, log_end)

    def covered(self) -> int | None:
        """Return the index of the first record that may not be settled; None if none ever was.

        If somebody reads the groups' offsets afterwards, all that is before it is in them.
        """
        queues = self._core.engine.queues
        rows = queues.rows(ACKS_TOPIC)
        if not rows:
            return None
        with self._lock.guard():
            return min(self._under_way.values(), default=queues.next_index(rows[0]))

    def wait_durable(self) -> None:
        """Return once all records that were appended are durable, with every `durability`."""
        if self.log_end > self._core.flusher.durable_end:
            self._core.flusher.wait_durable(self.log_end)

    def cover(self, index: int) -> None:
        """Have the next write of the offsets say that it knows the records before `index`."""
        self._core.offsets.set(_TOPIC, ACKS_GROUP, 0, index)

    def apply(self) -> None:
        """Settle what the log says behind what the offsets know. O(records since a checkpoint)."""
        core = self._core
        rows = core.engine.queues.rows(ACKS_TOPIC)
        if not rows:
            return
        start, end = core.offsets.get(_TOPIC, ACKS_GROUP, 0), core.engine.queues.next_index(rows[0])
        done: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
        for _, message in read_queued(core, rows[0], start, end):
            record = read_record(message.body)
            if record is not None:
                where = record.topic, record.group, record.queue_id
                done[where].append((record.queue_index, record.queue_index + 1))
        for where, ranges in done.items():
            core.offsets.add_ahead(*where, ranges)


# --- what a reading shares


log = logging.getLogger("timerstore")


Place = tuple[int, int]
"""A queue's row, and an index in it."""


class Reader:
    """A group at one topic; `Group` hands out for it."""

    def __init__(
        self,
        retries: GroupRetries,
        putting: Putting,
        put_acks: PutAcks,
        tally: GroupTally,
        topic: str,
    ) -> None:
        """`retries`: what all groups of its name share."""
        self.core, self.topic, self.name = retries.core, topic, retries.name
        self.gate, self.putting, self.put_acks = retries.core.gate, putting, put_acks
        self.retries, self.lock, self.tally = retries, retries.lock, tally
        tally.count_by_kernel()
        self.pace = Pace()
        topic_bytes = topic.encode("utf-8", "surrogateescape")
        durable = self.core.flusher.commit.words
        self.ready = new_ready(
            *(self.core.engine, durable, tally.counts, self.pace.words, topic_bytes),
            hides=self.core.is_group,  # what is not durable yet
        )
        self.ready_calls = ReadyCalls(self.core.engine, self.ready)
        clock = self.core.clock
        self.hand_clock = clock if isinstance(clock, ManualClock) else None
        """The clock, if it is moved by hand."""
        self.buries_expired = False
        """Whether what expired is to be a dead letter, as a consumer says."""
        self.claimed: set[Place] = set()
        """What is being appended again."""
        self._put_off: list[tuple[QueueCursor, int]] = []
        self._again_ms = inf
        self.unreadable_count = 0

    def claim(self, cursor: QueueCursor, place: Place) -> bool:
        """Take a message for who appends what comes in its place; False: it is too late for that.

        Of several that try only one may; to settle it ends that, or `release`.
        """
        self.core.check_process()
        with self.lock.guard():
            if cursor.state_of(place[1]) == "done" or place in self.claimed:
                return False
            self.claimed.add(place)
            return True

    def release(self, place: Place) -> None:
        """Say that nothing came in its place."""
        self.core.check_process()
        with self.lock.guard():
            self.claimed.discard(place)

    @contextmanager
    def claiming(self, cursor: QueueCursor, place: Place) -> Iterator[None]:
        """Claim a message; if an exception comes out, it is released."""
        if not self.claim(cursor, place):
            raise TooLateError("The message was acknowledged or sent back before.")
        try:
            yield
        except BaseException:
            self.release(place)
            raise

    def count_failed(self, failed: int, retried: int, dead: int, expired: int = 0) -> None:
        """Count what failed, and what became of it: sent back, given up, or expired."""
        self.core.check_process()
        with self.lock.guard():
            self.tally.counts.failed += failed
            self.tally.counts.retried += retried
            self.tally.counts.dead += dead
            self.tally.counts.expired += expired

    def expire(self, cursor: QueueCursor, indexes: Int64s, pins: list[Any]) -> None:
        """Settle what expired, and count it.

        If it is to be a dead letter it is appended as one, which need not be durable yet: it is
        before `write_offsets` lets any file know of it. What cannot be one now, as the disk is
        full, say, stays handed out until it is tried again.
        """
        self.core.check_process()
        try:
            if self.buries_expired:
                self._bury(cursor, indexes.tolist(), pins)
            else:
                self._settle_expired(cursor, indexes.tolist(), 0)
        except (StoreClosedError, CorruptStoreError):
            raise
        except (TimerStoreError, OSError) as e:
            with self.lock.guard():
                left = [(cursor, i) for i in indexes.tolist() if cursor.state_of(i) != "done"]
                is_known = bool(self._put_off)
                self._put_off += left
                self._again_ms = min(self._again_ms, self.core.steady_ms() + AGAIN_MS)
            if not is_known:
                log.warning(
                    "%s: messages that expired could not be made dead letters of the group %s; "
                    "this is tried again in %d s: %s",
                    *(self.topic, self.name, AGAIN_MS // 1000, e),
                )

    def again_ms(self) -> float:
        """Return how long it is until what could not be buried is tried again; or infinity."""
        return max(0.0, self._again_ms - self.core.steady_ms()) if self._put_off else inf

    def take_back_put_off(self, *, at_once: bool = False) -> None:
        """Let what could not be buried be found again, once its time has come."""
        with self.lock.guard():
            if at_once or self.again_ms() <= 0:
                left, self._put_off, self._again_ms = self._put_off, [], inf
                for cursor, index in left:
                    if cursor.state_of(index) != "done":
                        cursor.take_back(self.topic, index, index + 1)

    def _bury(self, cursor: QueueCursor, indexes: list[int], pins: list[Any]) -> None:
        """Make dead letters; what is refused is left, and what comes behind any other error."""
        core, refused = self.core, None
        for index in indexes:
            offset = int(core.engine.queues.read(cursor.row, index, 1)[0]["offset"])
            message = self.decode(offset, pins)
            failure = expired(expires_ms(message))
            try:
                send_to_dead(self.putting, self.name, message, failure, wait=False)
            except InvalidArgumentError as e:  # it is too large
                refused = e
                continue
            self.put_acks.appended(core.engine.commitlog.end)
            self._settle_expired(cursor, [index], 1)
        core.notice(core.clock.now_ms, core.clock.now_ms)
        if refused is not None:
            raise refused

    def _settle_expired(self, cursor: QueueCursor, indexes: list[int], dead_count: int) -> None:
        with self.lock.guard():
            for index in indexes:
                cursor.settle(index, index + 1)
        self.count_failed(0, 0, dead_count, len(indexes))

    def pass_by(self, cursor: QueueCursor, indexes: Int64s, reason: str | None) -> None:
        """Settle entries that cannot be handed out, and count them; with a `reason` name them."""
        self.core.check_process()
        if len(indexes) == 0:
            return
        queues = self.core.engine.queues
        with self.lock.guard():
            self.unreadable_count += len(indexes)
            for index in indexes.tolist():
                cursor.settle(index, index + 1)
        if reason is not None:
            for index in indexes.tolist():
                self.core.engine.damage.note(
                    queues.name(cursor.row), index * fmt.ENTRY_BYTES, reason
                )

    def decode(self, offset: int, pins: list[Any]) -> Message:
        """Decode a message whose segment is pinned."""
        segment_bytes = self.core.engine.commitlog.segment_bytes
        for file in pins:
            start = int(file.path.name)
            if start <= offset < start + segment_bytes:
                return decode_message(file.view[offset - start :], offset)
        raise CorruptStoreError("commitlog", offset, "its segment is gone")


# --- the memory that they lie in
#
# The block of the ready way is used again once nothing refers to it but a list of ours: a slice of
# an array, or an Arrow buffer over one, refers to the array that owns the memory. That asks
# CPython's reference counts, which are exact only under the GIL.


def _owner_references() -> int:
    """Return the reference count of an array to which only one list refers, 0 if unknown."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0
    kept = [np.empty(8, np.uint8)]
    alone = _references(kept)
    part = kept[0][:4].view(np.int32)[:1]
    seen = _references(kept)
    del part
    return alone if seen == alone + 1 and _references(kept) == alone else 0


def _references(kept: list[Bytes]) -> int:
    """Return the reference count of what a list holds; from 3.14 on a variable may not count."""
    return sys.getrefcount(kept[0])


UNSHARED_REFERENCES: Final = _owner_references()
