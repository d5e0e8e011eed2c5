"""The threads of a consumer: a thread that has nothing to do pulls.

There is no thread that only pulls. A thread that finds no task takes the lead: it pulls what is
there, or sleeps until something is fired; then it wakes another one to lead, while it handles
what it pulled. Messages that need no time are so pulled and handled by one thread, which hands
nothing over; handlers that wait occupy as many threads as they need.

Ground rules: `_ready` and `_idle` are deques, whose appends and pops are atomic. `_leading` is
held by the one that pulls. A thread that rests puts its gate, a lock that it holds, into
`_idle`; who takes a gate out opens it. It looks for work once more after it put its gate there,
so that no wake-up is lost between the two. At most one woken thread is on its way at a time
(`_waking`): it wakes the next one itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from timerstore.consumer.handling import Handling
from timerstore.consumer.subscription import PullWaiter, Source, Task
from timerstore.core.waiting import Waiter
from timerstore.errors import StoreClosedError
from timerstore.jit.guards import Lock
from timerstore.services.world.background import BackgroundThread, Flag

log = logging.getLogger("timerstore")

_POLL_MS: Final = 50.0
"""The thread that leads looks up at least this often."""
_TEND_S: Final = 1.0
"""Handlers that take too long are looked for at least this often; more often if the time that they
have is short."""


class Threads:
    """Runs tasks in threads."""

    def __init__(self, source: Source, handling: Handling) -> None:
        self._source, self._handling = source, handling
        self._pull_count = source.settings.pull_count
        self.failure = source.failure
        self._ready: deque[Task] = deque()
        self._idle: deque[threading.Lock] = deque()
        self._leading = Lock()
        self._waking = False
        self._waits_for_room = False
        self._waiter: Waiter | PullWaiter | None = None
        self.stopping = False
        """Whether its threads end, or have ended: it was asked to, or one of them has failed."""
        self._stop = Flag()
        self._threads: list[BackgroundThread] = []
        self._tending: list[BackgroundThread] = []  # the one that looks at the time
        handling.on_room, handling.on_next = self._room_was_made, self._ready.append

    def start(self, count: int, name: str) -> None:
        """Start `count` threads for handlers, and one that looks at the time."""
        for i in range(count):
            self._threads.append(BackgroundThread(f"{name}-{i}", self._run, self._fail))
        self._tending.append(BackgroundThread(f"{name}-time", self._tend, self._fail))
        try:
            for thread in (*self._threads, *self._tending):
                if not self.stopping:  # a handler may close the consumer before all have begun
                    thread.start()
        except BaseException:
            self.stop(None)
            raise

    def stop(self, timeout_s: float | None) -> bool:
        """Let handlers finish; return whether all did within `timeout_s`. Nothing new begins."""
        self._end()
        if timeout_s is not None:  # the longest that Python can wait is 292 years
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX / 2)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in (*self._threads, *self._tending):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._handling.shut()
        self._handling.give_back_all(self._take_ready())
        return not any(each.is_alive and not each.is_current for each in self._threads)

    def _end(self) -> None:
        self.stopping = True
        self._stop.set()
        self._wake_all()

    def _take_ready(self) -> list[Task]:
        tasks: list[Task] = []
        while True:
            try:
                tasks.append(self._ready.popleft())
            except IndexError:
                return tasks

    # --- a thread's life

    def _run(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        ready, idle, leading, handle = self._ready, self._idle, self._leading, self._handling.run
        while not self.stopping:
            try:
                task = ready.popleft()
            except IndexError:
                with leading.if_free.guard() as leads:
                    if leads:
                        self._lead()
                if not leads:
                    self._rest(gate)
                continue
            try:
                if idle and not self._waking and (ready or not leading.locked()):
                    self._wake_one()
            except BaseException:
                ready.append(task)  # it has not begun
                raise
            handle(task)
        self._wake_all()  # a signal may have ended the call that stops us

    def _lead(self) -> None:
        """Pull tasks; return once there are any."""
        tasks: list[Task] = []
        with self._source.waiter() as waiter:
            self._waiter = waiter
            try:
                while not tasks:
                    waiter.arm()  # before it looks: who wakes it later ends the wait
                    if self._ready or self.stopping:
                        break
                    self._waits_for_room = True  # likewise
                    tasks, limited = self._source.pull(self._count_max())
                    self._waits_for_room &= limited
                    if not tasks:
                        waiter.wait(min(_POLL_MS, self._source.turn_ms()))
            finally:
                self._waiter, self._waits_for_room = None, False
        self._ready.extend(tasks)

    def _count_max(self) -> int:
        """Return how many to pull: at a rate no more than can begin at once."""
        told = self._source.settings
        if told.turns is None:
            return self._pull_count
        return min(self._pull_count, (len(self._idle) + 1) * told.batch_count)

    def _rest(self, gate: threading.Lock) -> None:
        """Sleep until another thread has something for this one."""
        self._idle.append(gate)
        if self.stopping or self._ready or not self._leading.locked():
            try:
                self._idle.remove(gate)
            except ValueError:
                gate.acquire()  # somebody took it: it is open, or will be at once
                self._waking = False
            return
        gate.acquire()
        self._waking = False

    def _wake_one(self) -> None:
        self._waking = True
        try:
            self._idle.pop().release()  # the one that rests for the shortest time is the warmest
        except IndexError:
            self._waking = False

    def _wake_all(self) -> None:
        self._wake_leader()
        while self._idle:
            self._wake_one()

    def _wake_leader(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            waiter.wake()

    def _room_was_made(self) -> None:
        if self._waits_for_room:
            self._waits_for_room = False
            self._wake_leader()

    # --- time

    def _tend(self) -> None:
        """Find handlers that take too long, and hand in again what waits for that."""
        while not self.stopping:
            left_ms = self._handling.next_ms() - self._handling.now_ms()
            at_most_ms = min(1_000 * _TEND_S, self._handling.timeout_ms / 4)
            wait_s = max(10.0, min(at_most_ms, left_ms)) / 1000
            if self._stop.wait(wait_s):
                return
            self.hand_in(self._handling.tend())

    def hand_in(self, tasks: Sequence[Task]) -> None:
        """Give tasks to the threads."""
        if tasks:
            self._ready.extend(tasks)
            self._wake_leader()
            self._wake_one()

    def _fail(self, error: BaseException) -> None:
        """Stop all threads; the error is raised by the consumer's next call."""
        try:
            if isinstance(error, StoreClosedError) or self._source.store.closed:
                log.debug("the consumer stops, because its store failed: %s", error)
            else:
                self.failure.keep(error)
                log.error("the consumer has stopped", exc_info=error)
        finally:
            self._end()
