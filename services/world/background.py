"""Threads whose end is never silent.

Every thread that the package starts is a `BackgroundThread`. Every exception that ends it,
BaseException included, is told to `on_error`. There it is kept in a `Failure`, which the next
public call raises.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from timerstore.jit.guards import AtEnd, no_thread_error

_BEGIN_S: Final = 2.0
"""A thread that has not begun after so long was never made: a signal's exception came first."""


class Failure:
    """The first thing that went wrong for good; any thread may keep one, any may check."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.since_ms: int | None = None
        self._trace: TracebackType | None = None

    def keep(self, error: BaseException) -> None:
        """Remember an error; a second one is only a consequence."""
        if self.error is None:
            self.since_ms = time.time_ns() // 1_000_000
            self._trace, self.error = error.__traceback__, error

    def check(self) -> None:
        """Raise what is kept, if anything; its trace does not grow with each call."""
        if self.error is not None:
            raise self.error.with_traceback(self._trace)


class Flag:
    """An event for threads of which one may be ended by a signal's exception at any place.

    Such an exception can leave the lock inside a `threading.Event` held for ever: it is taken by a
    method in Python. Here nothing can be left half done but a wake-up, so wait with a time limit.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._closed = threading.Lock()  # held until it is set
        self._closed.acquire()

    def is_set(self) -> bool:
        """Tell whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake those who wait."""
        self._is_set = True
        self._open()

    def clear(self) -> None:
        """Take it back."""
        self._is_set = False
        self._closed.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, `timeout_s` at most; tell whether it is."""
        if not self._is_set and self._closed.acquire(timeout=timeout_s):
            self._open()  # for the next one who waits
        return self._is_set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open
            self._closed.release()


class BackgroundThread:
    """Runs a function in a daemon thread."""

    def __init__(
        self, name: str, body: Callable[[], None], on_error: Callable[[BaseException], None]
    ) -> None:
        """`on_error` is called in the thread, as the last thing that it does."""
        self._body, self._on_error = body, on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started_s = -1.0
        self._began, self._ended = False, Flag()

    def start(self) -> None:
        """Start; raises StoreFullError if the system has no thread left.

        Another thread does it: `Thread.start` does not survive an exception of a signal handler,
        which only the main thread gets.
        """
        begun, errors = Flag(), list[BaseException]()

        def start(at_end: AtEnd) -> None:
            del at_end  # the trace of an error would keep it
            try:
                self._thread.start()
            except (RuntimeError, MemoryError) as e:
                errors.append(e)

        self._started_s = time.monotonic()
        try:
            _thread.start_new_thread(start, (AtEnd(begun.set),))
            while not begun.wait(_BEGIN_S):
                pass
        except RuntimeError as e:
            errors.append(e)
        if self._thread.ident is None:
            self._started_s = -1.0
            raise no_thread_error(self._thread.name) from next(iter(errors), None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end; returns at once in the thread itself, or if it never started.

        An exception, a signal's say, may end the wait; then it can be called again. (After that,
        `Thread.join` takes a running thread for ended, up to Python 3.12.)
        """
        if self._started_s < 0 or self.is_current:
            return
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.wait(max(0.0, min(0.1, until_s - time.monotonic()))):
            late = time.monotonic() - self._started_s > _BEGIN_S
            if time.monotonic() >= until_s or (late and not self._began):
                return
        self._thread.join(timeout_s)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this one."""
        return self._thread is threading.current_thread()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._started_s >= 0 and not self._ended.is_set()

    def _run(self) -> None:
        try:
            self._began = True
            self._body()
        except BaseException as e:
            self._on_error(e)
        finally:
            del (
                self._body,
                self._on_error,
            )  # the object that keeps the thread is often kept by these
            self._ended.set()
