"""Flushing: makes what was written durable.

The order of a checkpoint is what recovery relies on. Under the step lock the cursors are captured
together with copies of the wheel's dirty pages. Then, without it: commit log, consume queues and
timer log are made durable; then the wheel's copies; then the checkpoint. So a wheel on disk never
points past the timer log, nor a unit past the commit log.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from timerstore.errors import FlushFailedError
from timerstore.services.capture import capture
from timerstore.services.engine import Engine
from timerstore.services.level_file import LevelOffsetFile
from timerstore.timelog.append import STORED_MS
from timerstore.timelog.checkpoint import Checkpoint, write_checkpoint, write_store_checkpoint
from timerstore.timelog.decode import text
from timerstore.timelog.disk import Disk
from timerstore.timelog.format import ENTRY_BYTES
from timerstore.timelog.jsonfile import write_json
from timerstore.timelog.record import Bytes, Words
from timerstore.wheel import state


class Flusher:
    """Makes an engine's bytes durable.

    Ground rules: `durable_end` is written under `_sync_lock` alone, and only grows. `flush` and
    `sync_log` may be called by any thread; each takes `_sync_lock`, so fsyncs never overlap.
    """

    def __init__(self, engine: Engine) -> None:
        """Take the engine's present state for durable: recovery has flushed it."""
        self.engine = engine
        self.durable_end = engine.commitlog.end
        self.before: Callable[[], None] | None = None
        """Called at the start of a checkpoint, outside all locks: groups write their offsets."""
        self.after: Callable[[], object] | None = None
        """Called after a checkpoint while open, outside all locks: what is not needed goes."""
        self.last: Checkpoint | None = None  # the last durable checkpoint of this life
        self.on_failure: Callable[[], None] | None = None
        self.error: FlushFailedError | None = None
        self.sync_count = 0
        self.checkpoint_count = 0
        self._sync_lock = threading.Lock()
        self._flushed_timerlog = engine.timerlog.end
        self._flushed_index = engine.queues.table.next_index.copy()
        self._sequence = 0
        self._level_file = LevelOffsetFile(engine.path / "config" / "delayOffset.json")
        self._condition = threading.Condition()
        self._wanted = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._waiters = 0

    # --- group commit

    def wait_durable(self, offset: int) -> None:
        """Return once the commit log is durable up to `offset`; one fsync serves all who wait.

        Whoever comes first does the fsync itself, for everything that stands in the log by then;
        those who come meanwhile wait for the next one.
        """
        while self.durable_end < offset:
            self.sync_log()

    def sync_log(self) -> None:
        """Make the commit log durable up to its present end."""
        asked = self.engine.commitlog.end
        with self._sync_lock:
            if self.durable_end >= asked:
                return
            self._check()
            try:
                end = self.engine.commitlog.end
                self.engine.commitlog.flush(self.durable_end, end)
                self.durable_end = end
                self.sync_count += 1
            except FlushFailedError as e:
                self._fail(e)
                raise

    def _fail(self, error: FlushFailedError) -> None:
        """Remember a failed fsync; it is final, for the kernel may have dropped the pages."""
        self.error = error
        if self.on_failure is not None:
            self.on_failure()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    # --- checkpoint

    def flush(self, *, clean: bool = False) -> None:
        """Write a checkpoint; everything put before the call is durable on return."""
        if self.before is not None:
            self.before()
        with self._sync_lock:
            self._check()
            engine, words = self.engine, self.engine.words
            captured = capture(engine.world)
            checkpoint = Checkpoint(
                read_ms=captured.read_slot * engine.precision_ms,
                timerlog_flushed=captured.timerlog_end,
                queue_index=captured.linked,
                scan_from=engine.scan_from(
                    captured.read_slot, captured.level_offsets, captured.scan_from
                ),
                commitlog_flushed=captured.commitlog_end,
                claimed_slot=captured.claimed_slot,
                frontier_ms=captured.frontier_ms,
                cancelled_count=captured.cancelled_count,
                level_offsets=captured.level_offsets.tolist(),
                store_tag=engine.store_tag,
                clean=clean,
            )
            try:
                self._write(checkpoint, captured.next_index, captured.runs)
            except BaseException as e:
                with engine.step_lock:
                    engine.wheel.mark_dirty(captured.runs)
                if isinstance(e, FlushFailedError):
                    self._fail(e)
                raise
            # One word each, which the services only read: the step lock is not needed.
            words[state.READ_CHECKPOINTED] = captured.read_slot
            words[state.WANT_FLUSH] = 0
            self.checkpoint_count += 1
            self.last = checkpoint
        if self.after is not None and not clean:
            self.after()

    def _write(
        self,
        checkpoint: Checkpoint,
        next_index: np.ndarray[Any, Any],
        runs: list[tuple[int, Bytes]],
    ) -> None:
        engine, config = self.engine, self.engine.path / "config"
        engine.commitlog.flush(self.durable_end, checkpoint.commitlog_flushed)
        self.durable_end = max(self.durable_end, checkpoint.commitlog_flushed)
        before = self._flushed_index[: len(next_index)]
        for row in np.flatnonzero(next_index != before).tolist():
            file = engine.queues.files[row]
            file.flush(int(before[row]) * ENTRY_BYTES, int(next_index[row]) * ENTRY_BYTES)
            self._flushed_index[row] = next_index[row]
        engine.timerlog.flush(self._flushed_timerlog, checkpoint.timerlog_flushed)
        self._flushed_timerlog = checkpoint.timerlog_flushed
        engine.wheel.write(runs)
        self._sequence += 1
        checkpoint.sequence = self._sequence
        checkpoint.state_timestamp = int(engine.queues.table.words[STORED_MS])
        checkpoint.state_counter = self._sequence
        if checkpoint.clean:
            self._write_for_brokers(config)
        self._level_file.write(engine.disk, checkpoint)
        write_checkpoint(engine.disk, config / "timercheck", checkpoint)

    def _write_for_brokers(self, config: Path) -> None:
        """Write what a clean close leaves behind besides the cursors."""
        engine = self.engine
        stored_ms = int(engine.queues.table.words[STORED_MS])
        timers, levels = engine.queues.table.pending.reshape(2, -1)
        version = {"counter": self._sequence, "stateVersion": 0, "timestamp": stored_ms}
        metrics = {
            "dataVersion": version,
            "timingCount": self._counts(timers, stored_ms),
            "levelCount": self._counts(levels, stored_ms),  # a broker leaves it alone
        }
        write_json(engine.disk, config / "timermetrics", metrics)
        write_store_checkpoint(
            engine.disk, engine.path / "checkpoint", stored_ms, engine.commitlog.end
        )

    def _counts(self, pending: Words, stored_ms: int) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for row, topic in enumerate(self.engine.queues.topics):
            if pending[row]:
                entry = counts.setdefault(text(topic), {"count": 0, "timeStamp": stored_ms})
                entry["count"] += int(pending[row])
        return counts

    # --- the thread

    def start(self) -> None:
        """Start the thread that makes checkpoints."""
        self._thread = threading.Thread(target=self._run, name="timerstore-flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, without a last flush."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        interval_s = self.engine.config.flush_interval_ms / 1000
        tick_s = min(0.05, interval_s)
        last = time.monotonic()
        while not self._stopping:
            with self._condition:
                if not self._stopping:
                    self._condition.wait(tick_s)
            if self._stopping:
                return  # type: ignore[unreachable]
            try:
                self.engine.prepare_ahead()
                due = time.monotonic() - last >= interval_s
                if due or self.engine.words[state.WANT_FLUSH]:
                    last = time.monotonic()
                    if self._changed():
                        self.flush()
                    elif self.after is not None:
                        self.after()
            except FlushFailedError:
                return  # kept in `error`, and raised by the next call
            except OSError as e:
                self._fail(FlushFailedError(f"{e}. Check the disk, then reopen the store."))
                return

    def _changed(self) -> bool:
        engine = self.engine
        if (
            engine.words[state.WANT_FLUSH]
            or engine.words[state.READ] != engine.words[state.READ_CHECKPOINTED]
        ):
            return True
        if self.last is None or self.engine.levels.offset.tolist() != self.last.level_offsets:
            return True
        moved = engine.commitlog.end != self.durable_end
        return moved or engine.timerlog.end != self._flushed_timerlog


def remove_abort(path: Path) -> None:
    """Say that a store was closed cleanly."""
    (path / "abort").unlink(missing_ok=True)


def write_abort(disk: Disk, path: Path) -> None:
    """Say that a store is open, with this process's id as RocketMQ does; durable on return."""
    disk.replace(path / "abort", str(os.getpid()).encode())
