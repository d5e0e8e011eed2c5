"""The runner: the one place that knows threads.

On the wall clock one thread stays in the resident kernel and answers its needs. On a manual clock
there is no thread: `play` runs the same steps when the clock moves.

Ground rules: `_inside` is held while the kernel runs, by whoever runs it. `parked` makes it return
and takes `_inside`, so that maps can be dropped; `_go_on` keeps the thread from running into the
kernel again before whoever parks it has its turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from timerstore.errors import StoreFullError
from timerstore.services.engine import Engine
from timerstore.services.flush import Flusher
from timerstore.services.levels import LEVEL_FAILED
from timerstore.services.steps import DEQUEUE_PUT, ENQUEUE_GET, WAKE_COUNT, WALL_CLOCK, run
from timerstore.timelog.system import set_timer_slack_us
from timerstore.wheel import state


class Runner:
    """Runs the services of one engine."""

    def __init__(self, engine: Engine, flusher: Flusher, on_stop: Callable[[], None]) -> None:
        """`on_stop` is called when the thread ends by an error; see `error`."""
        self.engine, self.flusher, self._on_stop = engine, flusher, on_stop
        self.error: BaseException | None = None
        self.waiting_for_space: StoreFullError | None = None
        self._thread: threading.Thread | None = None
        self._inside, self._parking = threading.Lock(), threading.Lock()
        self._go_on = threading.Event()
        self._go_on.set()
        self._stopping = False

    # --- on the wall clock

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="timerstore-timer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        set_timer_slack_us(1)
        words = self.engine.words
        try:
            while not self._stopping:
                self._go_on.wait()
                with self._inside:
                    run(self.engine.world, ENQUEUE_GET, DEQUEUE_PUT, 0, WALL_CLOCK)
                if words[state.NEED] != state.NOTHING:
                    self._meet()
        except BaseException as e:
            self.error = e
            self._on_stop()

    def _meet(self) -> None:
        """Answer a need; where there is no space, try again every half precision.

        A delay level waits longer each time, and nothing else waits for it.
        """
        need, offset = int(self.engine.words[state.NEED]), int(self.engine.words[state.NEED_OFFSET])
        level = int(self.engine.levels.words[LEVEL_FAILED])
        try:
            self.engine.meet()
            self.waiting_for_space = None
        except StoreFullError as e:
            if need == state.NEAR_FULL:
                raise
            self.waiting_for_space = e
            if level >= 0:
                self.engine.postpone_level(level, self.engine.clock.now_ms)
                return
            self.engine.words[state.NEED], self.engine.words[state.NEED_OFFSET] = need, offset
            time.sleep(self.engine.precision_ms / 2000)
            self.engine.words[state.NEED] = state.NOTHING

    def wake_for(self, due_ms: int) -> None:
        """Wake the thread if it sleeps too long for what was put, due at `due_ms`."""
        words = self.engine.words
        until_ms = words[state.SLEEPING]
        behind = self.engine.queues.table.next_index[0] - words[state.GOT]
        if until_ms and (due_ms < until_ms or behind >= WAKE_COUNT) and self.engine.eventfd >= 0:
            words[state.SLEEPING] = 0
            os.eventfd_write(self.engine.eventfd, 1)

    def stop(self) -> None:
        """Stop the thread; returns when it has."""
        with self._parking:
            self._stopping = True
            self._ask_to_return()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _ask_to_return(self) -> None:
        self.engine.words[state.STOP] = 1
        if self._thread is not None and self.engine.eventfd >= 0:
            os.eventfd_write(self.engine.eventfd, 1)

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Keep the kernel outside while the body runs; keep the body short.

        Timers that fall due meanwhile are late by that much. Not from within `play`'s kernel.
        """
        with self._parking:
            self._go_on.clear()
            self._ask_to_return()
            try:
                with self._inside:
                    yield
            finally:
                if not self._stopping:
                    self.engine.words[state.STOP] = 0
                self._go_on.set()

    # --- on a manual clock

    def play(self, start_ms: int, stop_ms: int) -> None:
        """Play all that happens in (start_ms, stop_ms], each event at its own time."""
        words, now_ms = self.engine.words, start_ms
        while True:
            if stop_ms < now_ms:
                now_ms = stop_ms  # the clock was moved back
            with self._inside:
                now_ms = run(self.engine.world, ENQUEUE_GET, DEQUEUE_PUT, now_ms, stop_ms)
            need = int(words[state.NEED])
            if need == state.NOTHING:
                if now_ms >= stop_ms:
                    return
            elif need == state.FLUSHED:
                words[state.NEED] = state.NOTHING
                self.flusher.flush()
            else:
                self.engine.meet()
