"""Waiting: how a Python thread sleeps until a resident kernel has done something for it.

Who consumes waits for what dequeue-put fires, who puts for room that enqueue-get makes.

Each waiting thread has a word of its own, at which it sleeps while it is 1; a kernel sets it to 0
and wakes the thread. That costs it a third less than an eventfd, which only an event loop has, and
threads where the system has no such call. One word for all would lose wake-ups. Who waits asks
first (`arm`), then looks, then waits: what is done in between ends the wait at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from timerstore.jit.guards import RLock
from timerstore.jit.host import FUTEX, wake_event
from timerstore.jit.intrinsics import store_release
from timerstore.jit.kernel import INTERPRETED, caller_on, kernel_ahead, kernel_ahead_with_gil
from timerstore.jit.record import Words, record, record_at
from timerstore.jit.system import poll_words, sleep_while, wait_readable, wake_sleepers
from timerstore.services.world.world import NO_WAITER, SLEEPER, WAITER_COUNT_MAX, WAITER_LIMITS
from timerstore.timelog.files.folders import EventFile
from timerstore.values.blocked_loop import note_blocking

NO_PLACE: Final = -1
_NAP_NS: Final = 1_000_000
_SECOND_NS: Final = 1_000_000_000
_HAS_SLEEPERS: Final = FUTEX >= 0 and not INTERPRETED


@record
class Sleeper:
    """What a thread sleeps by."""

    words: Words  # int64[WAITER_WORDS], see `World.waiters`
    poll: Words  # int64[8], see `wait_readable`: of its eventfd, if it has one
    place: int = 0


_sleeper_at = record_at(Sleeper)


@kernel_ahead
def _sleep(address: int, timeout_ns: int) -> int:
    """Sleep until the thread is woken, or the time is over; it may end for no reason."""
    sleeper = _sleeper_at(address)
    words, place = sleeper.words, sleeper.place
    if words[2 * place] != SLEEPER:
        wait_readable(sleeper.poll, timeout_ns)
        return 0
    limit_at = WAITER_LIMITS + 2 * place
    words[limit_at] = timeout_ns // _SECOND_NS
    words[limit_at + 1] = timeout_ns % _SECOND_NS
    sleep_while(words, 2 * place + 1, 1, limit_at)
    return 0


@kernel_ahead_with_gil
def _wake(address: int) -> int:
    sleeper = _sleeper_at(address)
    store_release(sleeper.words, 2 * sleeper.place + 1, 0)
    wake_sleepers(sleeper.words, 2 * sleeper.place + 1)
    return 0


class Waiter:
    """One waiting thread, or one event loop; without a place it polls, every millisecond."""

    def __init__(self, words: Words, place: int) -> None:
        """Take a place among those whom the kernel wakes, or NO_PLACE."""
        self._words, self.place = words, place
        self.fd = -1
        """Its eventfd; -1: it has none."""
        self.sleep: Callable[[int], object] = _nap
        """Sleeps until something was done, or for so many nanoseconds; says nothing to a loop."""
        if place != NO_PLACE:
            self._sleeper = Sleeper(words, poll_words(self.fd), place=place)
            self.sleep = caller_on(_sleep, self._sleeper)
            self._wake = caller_on(_wake, self._sleeper)
            words[2 * place + 1] = 0
            words[2 * place] = SLEEPER
            if not _HAS_SLEEPERS:
                self.open_event()

    def open_event(self) -> None:
        """Be woken by an eventfd from now on, which a loop can watch."""
        if self.fd < 0 and self.place != NO_PLACE:
            self._event = EventFile()
            self.fd = self._event.fileno()
            self._sleeper.poll[:] = poll_words(self.fd)
            self._words[2 * self.place] = self.fd

    def arm(self) -> None:
        """Ask to be woken by what is done from now on."""
        if self.place != NO_PLACE:
            self._words[2 * self.place + 1] = 1

    def disarm(self) -> None:
        """Take the request back."""
        if self.place != NO_PLACE:
            self._words[2 * self.place + 1] = 0

    def wake(self) -> None:
        """End the wait of who has asked before; for any thread."""
        if self.fd >= 0:
            wake_event(self.fd)
        elif self.place != NO_PLACE:
            self._wake()

    def wait(self, timeout_ms: float) -> None:
        """Sleep until something was done, or the time is over."""
        note_blocking()
        self.sleep(round(timeout_ms * 1e6))

    def close(self) -> None:
        """Close the eventfd; twice does nothing."""
        if self.fd >= 0:
            self.fd = -1
            self._event.close()


def _nap(timeout_ns: int) -> None:
    time.sleep(min(timeout_ns, _NAP_NS) / _SECOND_NS)


class Waiters:
    """The waiters of a store."""

    def __init__(self, words: Words) -> None:
        """Use the kernel's array of places, see `World.waiters`."""
        self._words = words
        self._lock = RLock()  # a signal's handler may close the store meanwhile
        self.free = deque[Waiter]()  # lent and given back without the lock
        """Who takes one of these gives it back by `take_back`."""
        self._count = 0
        self._closed = False

    def take_back(self, waiter: Waiter) -> None:
        """Take a waiter back. It may be armed: that wakes nobody, or the next one too early."""
        if waiter.place != NO_PLACE:
            self.free.append(waiter)
            if self._closed:
                with self._lock.guard():
                    self._close_free()

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """Lend a waiter while the block runs."""
        try:
            waiter = self.free.pop()
        except IndexError:
            waiter = self.another()
        try:
            yield waiter
        finally:
            waiter.disarm()
            self.take_back(waiter)

    def another(self) -> Waiter:
        """Return one more."""
        with self._lock.guard():
            place = self._count if self._count < WAITER_COUNT_MAX else NO_PLACE
            waiter = Waiter(self._words, place)
            self._count += place != NO_PLACE
        return waiter

    def close(self) -> None:
        """Close all eventfds; only once no resident kernel runs."""
        with self._lock.guard():
            self._words[:WAITER_LIMITS:2] = NO_WAITER
            self._closed = True
            self._close_free()

    def _close_free(self) -> None:
        while self.free:
            self.free[-1].close()
            self.free.pop()
