"""What an open store consists of: its engine, clock, threads, files.

The rooms (`putting/`, `pending/`, `consuming/`, `closing/`) work on it; it knows none of them, nor
the store, which is the face before them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from timerstore.core.directory import lock_directory, note_clock
from timerstore.core.gate import inside
from timerstore.core.load_kernels import load_kernels
from timerstore.core.offsets import ConsumerOffsets, take_back_popped
from timerstore.core.switches import SWITCHES_FILE, Switches
from timerstore.core.waiting import Waiters
from timerstore.errors import (
    ForkedProcessError,
    PausedError,
    ReadOnlyError,
    StoreClosedError,
    StoreFullError,
    TimerStoreError,
)
from timerstore.jit.guards import RLock
from timerstore.jit.locks import Gate
from timerstore.services.broker.for_broker import remove_index
from timerstore.services.cleaning.upkeep import Upkeep
from timerstore.services.durable.flush import Flusher
from timerstore.services.engine.rebuild import TIMERS, remove_mark, write_mark
from timerstore.services.opening.recovery import open_engine
from timerstore.services.running.runner import Runner
from timerstore.services.world.clock import ManualClock, SystemClock, listen
from timerstore.services.world.world import NO_HURRY_MS, WAITER_WORDS
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.lockfile import LockFile
from timerstore.timelog.writing.append import STAGE_COUNT_MAX, Stage, new_stage
from timerstore.values.config import Config

log = logging.getLogger("timerstore")

OFFSETS_FILE: Final = "config/consumerOffset.json"


class Core:
    """An open store without its calls; any number of threads may use it."""

    upkeep: Upkeep  # made by store.py

    def __init__(self, path: Path, disk: Disk, clock: ManualClock | None) -> None:
        self.path, self.disk = path, disk
        self.clock = SystemClock() if clock is None else clock
        self.closed, self.gate = True, Gate()
        self.closing, self.ended, self.flushed = RLock(), False, False
        self.forked = False
        self.at_close: list[Callable[[], None]] = []
        """Called while the store is closed, once nobody gets in any more; each may be twice."""
        self.deferring: set[int] = set()
        """Threads in the midst of a call that waits for nothing: an event loop's (`aio/`), which
        waits elsewhere for room before it, for durability after it."""
        self._refusal: str | None = None
        self._stages: list[Stage] = []

    def lock(self, create: bool) -> None:
        """Check the directory, or make it; hold its lock."""
        self.lock_file: LockFile = lock_directory(self.disk, self.path, create)
        if self.disk.writes:
            self.disk.find_spare(self.path / "config" / "spare")

    def open(self, config: Config) -> None:
        """Open the files, and recover what the last life left."""
        load_kernels()
        self.disk.is_opening = True
        try:
            self._open(config)
        finally:
            self.disk.is_opening = False

    def _open(self, config: Config) -> None:
        started = time.monotonic()
        if self.disk.writes:
            remove_index(self.disk, self.path)  # a handover may have been killed
        self.offsets = ConsumerOffsets(self.disk, self.path / OFFSETS_FILE)
        self.engine, self.findings = open_engine(self.path, config, self.clock, self.disk)
        self.opened_end = self.engine.commitlog.end
        self.findings.corrected_groups = self.offsets.correct(self.engine.queues)
        if self.findings.by_broker:
            self.findings.taken_back_count = take_back_popped(self.engine, self.offsets)
        self.offsets.write()  # before anything fires, or the next crash would find the old ones
        self.switches = Switches(self.disk, self.path / SWITCHES_FILE)
        if self.switches.damage is not None:
            damage = self.switches.damage
            self.engine.damage.note(SWITCHES_FILE, damage.offset, damage.reason)
        if self.engine.keeps_mark:  # before the checkpoint, which says that no broker wrote last
            write_mark(self.disk, self.path, frozenset((TIMERS,)))
        self.flusher = Flusher(self.engine)
        with suppress(StoreFullError):  # the flush thread tries again: to consume makes room
            self.flusher.flush()
            note_clock(self.engine)
            if not self.engine.keeps_mark:
                remove_mark(self.disk, self.path)
        self.is_group = self.engine.config.durability == "group"
        self.waiters = Waiters(self.engine.world.waiters)
        self.putters = Waiters(self.engine.world.putters[:WAITER_WORDS])
        self.runner = Runner(self.engine)
        self.opened_s, self.opened_ms = time.monotonic(), self.clock.now_ms
        self.open_s = self.opened_s - started

    def start(self) -> None:
        """Let time pass; from now on a fork is seen."""
        self.closed = False
        self.obey_switches()
        _open_cores.add(self)
        self._tell_recovery()
        self._start_services()

    def _tell_recovery(self) -> None:
        """Log what happened in one sentence; a warning if bytes were cut, or made anew."""
        found = self.findings
        if not found.clean or found.rebuilt:
            level = logging.WARNING if found.torn_bytes or found.rebuilt else logging.INFO
            text = found.sentence(self.engine.damage.count)
            fields = {"store": str(self.path), "recovery": asdict(found)}
            log.log(level, "%s: %s", self.path, text, extra=fields)

    def _start_services(self) -> None:
        if isinstance(self.clock, ManualClock):
            listen(self.clock, self.clock_moved)
            self.runner.play(self.clock.now_ms, self.clock.now_ms)
        else:
            self.runner.start()
            self.upkeep.start()

    @inside
    def clock_moved(self, start_ms: int, stop_ms: int) -> None:
        """Play what happens while a manual clock moves."""
        self.check_open()
        self.runner.play(start_ms, stop_ms)

    def play_now(self) -> None:
        """On a manual clock, do all that is due at its present time."""
        self.clock_moved(self.clock.now_ms, self.clock.now_ms)

    def give_up_opening(self) -> None:
        """Let go of what `open` had begun."""
        self.closed = self.ended = True
        if hasattr(self, "runner"):
            self.runner.stop()
        if hasattr(self, "upkeep"):
            self.upkeep.stop()
        if hasattr(self, "engine"):
            self.engine.close_files()
        if hasattr(self, "lock_file"):
            self.lock_file.release()
        self.disk.folder = None

    def let_go(self) -> None:
        """Close the files, then release the lock; the services have stopped."""
        self.waiters.close()
        self.putters.close()
        self.engine.close_files()
        self.lock_file.release()
        self.disk.folder = None
        self.ended = True
        # Who knows this core is let go: so maps and memory of a closed store go with the last
        # reference to it, and not whenever Python looks for cycles. A program that opens many, one
        # after the other, would keep dozens.
        self.at_close.clear()
        del self.upkeep

    # --- who may call

    def check_process(self) -> None:
        """Raise in a forked child, before any lock: a thread of the parent may have held it."""
        if self.forked:
            raise ForkedProcessError(
                "This store belongs to the parent process, and a forked child cannot use it. "
                "Open the store after the fork, in one process."
            )

    def check_open(self, *, stopped: bool = False) -> None:
        """Raise if the store cannot be used any more; `stopped`: one that has stopped can."""
        if self.forked:
            self.check_process()
        if self.closed:
            raise StoreClosedError(f"{self.path} was closed. Open it again.")
        if not stopped:
            self.engine.failure.check()

    def check_writable(self) -> None:
        """Raise if nothing may be put, cancelled or sent back."""
        self.check_open()
        if self._refusal is not None:
            raise ReadOnlyError(self._refusal)

    def check_putting(self) -> None:
        """Raise if nothing may be put."""
        self.check_writable()
        if self.switches.pauses:
            if self.switches.find("putting", self.clock.now_ms):
                raise PausedError(
                    'Putting is paused. Put again later, or call resume("putting") first.'
                )
            self.obey_switches()  # it may be over

    def obey_switches(self) -> None:
        """Have the services, and the short ways of calls, do what the switches say."""
        callers = self.engine.world.callers
        with self.switches.lock.guard():
            now_ms = self.clock.now_ms
            firing, putting = (self.switches.find(each, now_ms) for each in ("firing", "putting"))
            callers.fire_from_ms = 0 if firing is None else firing.end_ms
            callers.puts_paused = int(putting is not None)
            pauses = self.switches.list(now_ms)
            callers.pulls_paused = int(any(each.what == "consuming" for each in pauses))

    def check_unlocked(self) -> None:
        """Raise if this thread holds the key index's lock: the call would wait for ever."""
        if self.engine.keys.lock.is_mine():
            raise TimerStoreError(
                "This method was called inside another call of the same thread, for example in a "
                "signal handler. In a signal handler put a timer or set a flag, and call this "
                "method when the other call has returned."
            )

    def refuse(self, reason: str | None) -> None:
        """Refuse everything that would append, for this reason; None: accept it again."""
        self._refusal = reason
        self.engine.end_short_way()

    # --- appending

    def steady_ms(self) -> float:
        """Return the time by which what is done is judged: one that is never set, or the manual."""
        return float(self.clock.now_ms) if self.clock.manual else time.monotonic() * 1000

    def take_stage(self) -> Stage:
        """Return a stage for one call; give it back with `free_stage`."""
        try:
            return self._stages.pop()
        except IndexError:
            return new_stage(STAGE_COUNT_MAX)

    def free_stage(self, stage: Stage) -> None:
        """Take a stage back."""
        self._stages.append(stage)

    def after_append(self, now_ms: int, due_ms: int | None = None) -> None:
        """Have what was appended noticed, see `notice`, then wait until it is durable."""
        self.notice(now_ms, due_ms)
        if self.is_group and not self.is_deferring:
            self.flusher.wait_durable(self.engine.commitlog.end)

    def notice(self, now_ms: int, due_ms: int | None = None) -> None:
        """Have what was appended noticed by the services.

        `due_ms`: of the earliest timer in it; None if there is none.
        """
        if not self.clock.manual:
            self.engine.wake_for(now_ms + NO_HURRY_MS if due_ms is None else due_ms)
        elif due_ms is not None and due_ms <= now_ms:
            self.runner.play(now_ms, now_ms)

    @inside
    def wait_durable(self) -> None:
        """Return once all that was appended is durable."""
        if not self.is_deferring:
            self.flusher.wait_durable(self.engine.commitlog.end)

    @property
    def is_deferring(self) -> bool:
        """Whether the calling thread's call may not wait."""
        return bool(self.deferring) and threading.get_ident() in self.deferring

    @inside
    def flush(self) -> None:
        """Write a checkpoint; see `TimerStore.flush`."""
        self.check_open()
        self.check_unlocked()
        self.upkeep.flush()


_open_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork() -> None:
    """Let the parent's stores be closed to a child, also for code that only looks at `closed`."""
    for core in _open_cores:
        core.forked = core.closed = True
        core.engine.end_short_way()


os.register_at_fork(after_in_child=_after_fork)
