"""The store: the public calls."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from timerstore.ahead import load_kernels
from timerstore.arguments import (
    Binaries,
    check_body,
    check_due_array,
    check_group,
    check_text,
    check_topic,
    check_topic_to_consume,
    encode_properties,
    resolve_due_ms,
)
from timerstore.cleannow import clean, clean_by_itself
from timerstore.closing import close as closing
from timerstore.closing.handover import handover
from timerstore.config import Config
from timerstore.consuming.blocks import Blocks
from timerstore.consuming.group import Batch, Delivery, Group
from timerstore.consuming.offsets import CommittedIndexes, ConsumerOffsets
from timerstore.consuming.retries import GroupRetries
from timerstore.consuming.sendback import send_back
from timerstore.consuming.waiting import Waiters, wait_for_batch
from timerstore.directory import lock_directory
from timerstore.errors import ForkedProcessError, ReadOnlyError, StoreClosedError
from timerstore.ids import TimerIds, format_id
from timerstore.inside import inside
from timerstore.kinds import check_int, check_kind, check_name, check_path, check_timeout
from timerstore.pending import cancel as cancelling
from timerstore.pending import look as reading
from timerstore.pending.byid import ById
from timerstore.pending.look import Horizon
from timerstore.pending.timers import Timer
from timerstore.putting.admission import Admission
from timerstore.putting.congestion import Congestion
from timerstore.putting.levels import check_level, stage_at_level
from timerstore.putting.putter import Putter
from timerstore.putting.short_way import FastPutter
from timerstore.services.background import Failure
from timerstore.services.clock import ManualClock, SystemClock
from timerstore.services.flush import Flusher
from timerstore.services.opening import open_engine
from timerstore.services.rebuild import remove_mark
from timerstore.services.runner import Runner
from timerstore.stats import Stats, read_stats
from timerstore.timelog.decode import Message
from timerstore.timelog.disk import Disk
from timerstore.timelog.format import LEVEL_MARK
from timerstore.timelog.lockfile import LockFile
from timerstore.timelog.locks import Gate

log = logging.getLogger("timerstore")

PULL_COUNT_MAX: Final = 1 << 16
"""Messages in one batch."""
_REPORTS_MAX: Final = 100
"""Damaged messages that are logged one by one; all are counted."""


class TimerStore:
    """An open store; made by `timerstore.open`. Any number of threads may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        config: Config | None = None,
        clock: ManualClock | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Open a directory; see `timerstore.open`."""
        self.path = check_path(path)
        if config is not None:
            check_kind(config, Config, "config")
        if clock is not None:
            check_kind(clock, ManualClock, "clock")
        self.closed, self.gate = True, Gate()
        self.closing, self.ended = threading.RLock(), False
        self.forked = False
        self._plain = False  # True: a plain put may take the short way
        self.failure = Failure()
        self._reported: set[tuple[str, int]] = set()
        self._refusal: str | None = None
        self.flushed = False
        self.disk = Disk() if disk is None else disk
        self.clock = SystemClock() if clock is None else clock
        self.lock_file = self._prepare(self.path, create)
        try:
            self._open(Config() if config is None else config)
            _open_stores.add(self)
        except BaseException:
            closing.give_up_opening(self)
            raise

    def _prepare(self, path: Path, create: bool) -> LockFile:
        """Check the directory, or make it; return its lock, held."""
        return lock_directory(self.disk, path, create)

    def _open(self, config: Config) -> None:
        load_kernels()
        started = time.monotonic()
        self.offsets = ConsumerOffsets(self.disk, self.path / "config" / "consumerOffset.json")
        self.engine, self.findings = open_engine(self.path, config, self.clock, self.disk)
        for row, topic in enumerate(self.engine.queues.topics):
            self.offsets.cut(topic, row, self.engine.queues)
        self.offsets.cut_missing(self.engine.queues)
        self.offsets.write()  # before anything fires, or the next crash would find the old ones
        self.flusher = Flusher(self.engine)
        self.flusher.flush()
        remove_mark(self.disk, self.path)
        self.admission, self.congestion = Admission(self), Congestion(self.engine)
        self._fast = FastPutter(self.engine, self.admission.count_max)
        self._putter, self.by_id = Putter(self), ById(self.engine)
        self._group_commit = self.engine.config.durability == "group"
        self._groups: dict[tuple[str, str], Group] = {}
        self._retries: dict[str, GroupRetries] = {}
        self.blocks, self._groups_lock = Blocks(), threading.Lock()
        self.waiters = Waiters(self.engine.world.waiters)
        self.runner = Runner(self.engine, self.flusher, self._stopped)
        self.flusher.on_failure = self._stopped
        self.cleaner, self.retention = clean_by_itself(self, self._committed_indexes)
        self.closed = False
        self.opened_s = time.monotonic()
        self.open_s = self.opened_s - started
        self._start()

    def _start(self) -> None:
        """Let time pass."""
        config = self.engine.config
        limits = config.max_bytes, config.max_delay_ms, config.congestion_slot_count
        self._plain = not self.clock.manual and not any(limits)
        if not self.findings.clean:
            log.warning("%s was not closed cleanly: %s", self.path, self.findings)
        if isinstance(self.clock, ManualClock):
            self.clock.listen(self.clock_moved)
            self.runner.play(self.clock.now_ms, self.clock.now_ms)
        else:
            self.runner.start()
            self.flusher.start()

    def end_short_way(self) -> None:
        """Let no put take the short way any more."""
        self._plain = False
        self.engine.world.callers.short_way_ended = 1

    def write_offsets(self) -> None:
        """Make durable how far all groups have come."""
        for group in list(self._groups.values()):
            for (topic, queue_id), index in group.committed().items():
                self.offsets.set(topic, group.name, queue_id, index)
        self.offsets.write()

    def _committed_indexes(self) -> CommittedIndexes:
        reading = [each for group in list(self._groups.values()) for each in group.reading()]
        return self.offsets.committed(reading)

    @inside
    def clock_moved(self, start_ms: int, stop_ms: int) -> None:
        """Play what happens while a manual clock moves."""
        self.check_open()
        self.runner.play(start_ms, stop_ms)

    def _stopped(self, error: BaseException) -> None:
        """Have the next call raise what ended a background thread, or made flushing impossible."""
        self.failure.keep(error)
        self.end_short_way()
        log.error("%s has stopped: %r", self.path, error, exc_info=error)

    # --- state

    def check_process(self) -> None:
        """Raise in a forked child, before any lock: a thread of the parent may have held it."""
        if self.forked:
            raise ForkedProcessError(
                "This store belongs to the parent process. Open it after the fork, in one process."
            )

    def check_open(self, *, stopped: bool = False) -> None:
        """Raise where the store cannot be used any more; `stopped`: one that has stopped can."""
        self.check_process()
        if self.closed:
            raise StoreClosedError(f"{self.path} was closed. Open it again.")
        if not stopped:
            self.failure.check()

    def refuse(self, reason: str | None) -> None:
        """Refuse everything that would append, for this reason; None: refuse no longer."""
        self._refusal = reason
        self.end_short_way()

    def check_writable(self) -> None:
        """Raise where nothing may be put, cancelled or sent back."""
        self.check_open()
        if self._refusal is not None:
            raise ReadOnlyError(self._refusal)

    def report_unreadable(self, file: str, offset: int, reason: str) -> None:
        """Log what cannot be read, and is not passed on."""
        if (file, offset) not in self._reported and len(self._reported) < _REPORTS_MAX:
            self._reported.add((file, offset))
            log.error("%s: %s, offset %d: %s; passed by", self.path, file, offset, reason)

    def __enter__(self) -> TimerStore:
        """Return the store; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the path."""
        return f"<TimerStore {str(self.path)!r}{', closed' if self.closed else ''}>"

    # --- putting

    def put(
        self,
        body: bytes,
        *,
        topic: str = "default",
        delay: timedelta | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int | None = None,
    ) -> str:
        """Put one timer and return its id.

        At most one of `delay`, `at` (aware), `at_ms` (epoch milliseconds) and `delay_level` says
        when it is due; none of them, or a time that has passed: now. Fractions of a millisecond
        round up. `delay_level` counts the durations of `Config.delay_levels` from 1; a higher one
        than there are means the highest.

        Durable on return as `Config.durability` says. O(size). Waits where `Config.admission` says
        so. Raises InvalidArgumentError, StoreFullError, StoreClosedError, FlushFailedError; then
        nothing was put.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5))
        """
        if self._plain:
            described = key is not None or tag is not None or properties is not None
            otherwise = delay is not None or at is not None or delay_level is not None
            if at_ms is not None and not described and not otherwise:
                id = self._fast.put(topic, body, at_ms)
            else:
                id = self._fast.put_described(
                    topic, body, delay, at, at_ms, key, tag, properties, delay_level
                )
            if id is not None:
                if self._group_commit:
                    with self.gate:
                        self.flusher.wait_durable(self.engine.commitlog.end)
                return id
        return self._put(body, topic, delay, at, at_ms, key, tag, properties, delay_level)

    @inside
    def _put(
        self,
        body: bytes,
        topic: str,
        delay: timedelta | None,
        at: datetime | None,
        at_ms: int | None,
        key: str | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        delay_level: int | None,
    ) -> str:
        """Put one timer the long way."""
        self.check_writable()
        if delay_level is not None:
            level = check_level(self.engine, delay_level, delay, at, at_ms)
            return self._put_at_level(body, topic, level, key, tag, properties)
        engine, putter = self.engine, self._putter
        now_ms, topic_bytes = self.clock.now_ms, check_topic(topic)
        due_ms = resolve_due_ms(now_ms, delay, at, at_ms, engine.config.max_delay_ms)
        encoded = encode_properties(key, tag, properties)
        body = check_body(body, len(encoded), engine.content_bytes_max)
        self.congestion.check(due_ms, now_ms)
        self.admission.enter()
        message, row = putter.one(topic_bytes, body, due_ms, encoded, tag)
        self._fast.add(topic)
        offset = putter.append_one(message, row, tag)
        self._after_put(due_ms, now_ms)
        return format_id(due_ms, offset, engine.store_tag)

    def _put_at_level(
        self,
        body: bytes,
        topic: str,
        level: int,
        key: str | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
    ) -> str:
        engine, now_ms, topic_bytes = self.engine, self.clock.now_ms, check_topic(topic)
        encoded = encode_properties(key, tag, properties)
        body = check_body(body, len(encoded), engine.content_bytes_max)
        entry = stage_at_level(engine, level, topic_bytes, body, encoded, now_ms)
        self._fast.add(topic, level)
        offset = self._putter.append_staged(entry, now_ms)
        self._after_put(entry[2], now_ms)
        return format_id(entry[2], offset | LEVEL_MARK, engine.store_tag)

    @inside
    def put_many(
        self,
        bodies: Any,
        *,
        topic: str = "default",
        at_ms: Any = None,
        delay_ms: Any = None,
        keys: Any = None,
        tag: str | None = None,
        delay_level: int | None = None,
    ) -> TimerIds:
        """Put many timers and return their ids.

        `bodies`: a sequence of bytes, an Arrow binary array, or a 2-D uint8 array of shape (n,
        length). `at_ms`, `delay_ms`: an int, or int64[n]; or `delay_level`, as for `put`; none of
        them: due now. `keys`: n texts.

        One fsync for all. Not a transaction: a crash half-way leaves a prefix; so does an error,
        whose `ids` name it, as durable as any. O(bytes), no object each. Errors as for `put`.

        >>> ids = store.put_many([b"a", b"b"], delay_ms=[1_000, 2_000])
        """
        self.check_writable()
        engine, now_ms, topic_bytes = self.engine, self.clock.now_ms, check_topic(topic)
        if tag is not None:
            check_text(tag, "tag")
        data = Binaries(bodies, "bodies")
        texts = None if keys is None else Binaries(keys, "keys")
        if texts is not None:
            cancelling.check_keys(texts, len(data))
        level = 0
        if delay_level is None:
            due_ms = check_due_array(len(data), now_ms, at_ms, delay_ms, engine.config.max_delay_ms)
        else:
            level = check_level(engine, delay_level, delay_ms, at_ms)
            due_ms = np.full(len(data), level, np.int64)
        if len(data) == 0:
            return TimerIds(due_ms, due_ms.copy(), engine.store_tag)
        cancelling.check_lengths(data, texts, tag, engine.content_bytes_max)
        self._putter.check_space()
        if not level:
            self.congestion.check(due_ms, now_ms)
        return self._putter.many(topic_bytes, tag, data, texts, due_ms, now_ms, level)

    def _after_put(self, due_ms: int, now_ms: int) -> None:
        """Wait until it is durable, and see that what is due soon is noticed."""
        engine = self.engine
        if self.clock.manual:
            if due_ms <= now_ms:
                self.runner.play(now_ms, now_ms)
        else:
            self.runner.wake_for(due_ms)
        if engine.config.durability == "group":
            self.flusher.wait_durable(engine.commitlog.end)

    @inside
    def cancel(self, id: str) -> bool:
        """Cancel a timer: True, it will not fire; False, it is too late.

        Durable like a put. O(1) for a timer that lies ahead. Raises UnknownTimerError for an id
        that is none of this store's.
        """
        self.check_writable()
        now_ms = self.clock.now_ms
        cancelled = self.by_id.cancel(id, now_ms)
        if cancelled is None:
            return bool(cancelling.cancel_many(self, [id])[0])
        self._after_put(now_ms + cancelling.NO_HURRY_MS, now_ms)
        return cancelled

    @inside
    def cancel_many(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Cancel many timers; bool[n] as from `cancel`. One fsync for all."""
        self.check_writable()
        return cancelling.cancel_many(self, ids)

    @inside
    def reschedule(
        self,
        id: str,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
    ) -> str:
        """Move a timer to another time and return its new id.

        Atomic also over a crash: either the old or the new time holds. Durable like a put. Raises
        TooLateError where the timer was fired or cancelled; then nothing changed.
        """
        self.check_writable()
        now_ms = self.clock.now_ms
        due_ms = resolve_due_ms(now_ms, delay, at, at_ms, self.engine.config.max_delay_ms)
        return cancelling.reschedule(self, id, due_ms)

    # --- looking

    @inside
    def get(self, id: str) -> Timer | None:
        """Return a pending timer, or None where it was fired or cancelled.

        O(1), and the length of a few slots' chains for a timer that may have rolled.
        """
        self.check_open()
        return self.by_id.get(id) or reading.get(self, id)

    def pending(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
    ) -> Iterator[Timer]:
        """Yield pending timers in the order of due time, those with start_ms <= due < end_ms.

        It shows the store as it is when iteration begins.
        """
        self.check_open()
        return reading.pending(self, topic, start_ms, end_ms, limit)

    @inside
    def count(self, topic: str | None = None) -> int:
        """Return how many timers are pending, exactly. O(1)."""
        self.check_open()
        return self.engine.pending_count(None if topic is None else check_name(topic))

    @inside
    def horizon(
        self, bucket_ms: int, *, start_ms: int | None = None, end_ms: int | None = None
    ) -> Horizon:
        """Return how many timers fall due when, in buckets of `bucket_ms`."""
        self.check_open()
        return reading.horizon(self, bucket_ms, start_ms, end_ms)

    @inside
    def stats(self) -> Stats:
        """Return counters, cursors, queue depths, lateness, and what recovery found.

        Also of a store that has stopped: then `stopped_by` says by what.
        """
        self.check_open(stopped=True)
        return read_stats(self)

    # --- consuming

    def group(self, topic: str, name: str) -> Group:
        """Return the group's reading of a topic, the same for all who ask."""
        self.check_process()
        if type(topic) is str and type(name) is str and (topic, name) in self._groups:
            return self._groups[topic, name]
        check_topic_to_consume(topic)
        check_group(name)
        with self._groups_lock:
            found = self._groups.get((topic, name))
            if found is None:
                found = self._groups[topic, name] = Group(self, topic, name)
            return found

    def retries(self, name: str) -> GroupRetries:
        """Return what all groups of one name share."""
        return self._retries.setdefault(name, GroupRetries(self, name))

    def consume(
        self, topic: str, *, group: str = "default", timeout: float | None = None
    ) -> Iterator[Delivery]:
        """Yield each message of a topic once it is due, to be acknowledged with `ack`.

        Blocks for the next one; ends after `timeout` seconds of nothing. Iterators of one group
        share the work. Under "group" durability only what is durable is handed out.
        """
        self.check_open()
        return self.group(topic, group).iterate(check_timeout(timeout))

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: float | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns; empty after `timeout` seconds.

        Without `timeout` it waits for the first.
        """
        self.check_open()
        check_int(max_count, "max_count", 1, PULL_COUNT_MAX)
        timeout = check_timeout(timeout)
        reader = self.group(topic, group)
        batch = self.wait_for_batch(reader, max_count, timeout)
        return reader.empty() if batch is None else batch

    @inside
    def play_now(self) -> None:
        """On a manual clock, do all that is due at its present time."""
        self.check_open()
        self.runner.play(self.clock.now_ms, self.clock.now_ms)

    def wait_for_batch(self, group: Group, count_max: int, timeout: float | None) -> Batch | None:
        """Return what a group can hand out, waiting for it; None when the time is over."""
        return wait_for_batch(self, group, count_max, timeout)

    @inside
    def make_visible(self, group: Group) -> None:
        """Under "group" durability, make durable what was fired for a waiting group."""
        self.check_open()
        if self.engine.config.durability == "group" and group.has_hidden():
            self.flusher.sync_log()

    @inside
    def send_back(self, group: Group, message: Message, delay: timedelta | None) -> None:
        """Put a delivered message again for its group's retry topic; durable like a put."""
        send_back(self, group.name, message, delay=delay)

    # --- the end

    @inside
    def flush(self) -> None:
        """Write a checkpoint; everything put before is durable on return."""
        self.check_open()
        self.flusher.flush()

    @inside
    def clean(self) -> int:
        """Copy what is pending out of all old segments, and remove them; return the bytes freed.

        What `Config.cleaning` does by itself where it is worth it. O(commit log + units); it waits
        some ten seconds until what is due meanwhile has fired, on a manual clock not at all: move
        it, and call again. Raises StoreFullError where there is no room for the copies.
        """
        self.check_writable()
        return clean(self)

    def handover(self) -> None:
        """Make the store fit for a RocketMQ broker, and close it.

        What is due goes on firing until the slot that has begun is finished, about one
        `precision_ms`. A broker has no memory of what was fired inside a slot; after a mere
        `close` it would fire that again. Raises TimerStoreError where R is ahead of the clock.
        """
        self.check_open()
        handover(self)

    def close(self) -> None:
        """Stop the services, flush, and let the directory go. Closing twice does nothing.

        Calls of other threads that are inside end first; those that come later, and those that
        wait for messages, raise StoreClosedError. Where an exception ends it on the way (Ctrl-C),
        call it again: it goes on. Raises what has stopped the store before, if anything; it is
        closed all the same.
        """
        closing.close(self, flush=True)

    def abandon(self) -> None:
        """Let everything go without flushing, as a crash of the process would. For tests."""
        closing.close(self, flush=False)


_open_stores: weakref.WeakSet[TimerStore] = weakref.WeakSet()


def _after_fork() -> None:
    """Let the parent's stores be closed to a child; what looks at `closed` alone asks no more."""
    for store in _open_stores:
        store.forked = store.closed = True
        store.end_short_way()


os.register_at_fork(after_in_child=_after_fork)
