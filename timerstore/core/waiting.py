"""Waiting: how a Python thread sleeps until a resident kernel has done something for it.

Who consumes waits for what dequeue-put fires, who puts for room that enqueue-get makes.

Each waiting thread has an eventfd of its own, which the kernel writes once after the thread asked
for it. One for all would lose wake-ups: who drains it hides the write from the others. They are
kept for the next wait, and closed with the store, when no kernel runs any more.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from timerstore.jit.guards import RLock
from timerstore.jit.host import drain_event, wake_event
from timerstore.jit.record import Words
from timerstore.services.world.world import WAITER_COUNT_MAX
from timerstore.timelog.files.ownedfile import EventFile
from timerstore.values.inloop import note_blocking


class Waiter:
    """One waiting thread; without a place it polls, every millisecond."""

    def __init__(self, words: Words, place: int | None) -> None:
        """Take a place among those whom the kernel wakes."""
        self._words, self._place = words, place
        self.fd = -1
        if place is not None:
            self._event = EventFile()
            self.fd = self._event.fileno()
            self._poll = select.poll()
            self._poll.register(self.fd, select.POLLIN)
            words[2 * place + 1] = 0
            words[2 * place] = self.fd

    def arm(self) -> None:
        """Ask to be woken by what is done from now on."""
        if self._place is not None:
            self._words[2 * self._place + 1] = 1

    def disarm(self) -> None:
        """Take the request back."""
        if self._place is not None:
            self._words[2 * self._place + 1] = 0

    def wake(self) -> None:
        """End a wait, the present one or else the next; for any thread."""
        if self.fd >= 0:
            wake_event(self.fd)

    def wait(self, timeout_ms: float) -> None:
        """Sleep until something was done, or the time is over."""
        note_blocking()
        if self._place is None:
            time.sleep(min(timeout_ms, 1.0) / 1000)
        elif self._poll.poll(timeout_ms):
            drain_event(self.fd)

    def close(self) -> None:
        """Close the eventfd; twice does nothing."""
        self.fd = -1
        self._event.close()


class Waiters:
    """The waiters of a store."""

    def __init__(self, words: Words) -> None:
        """Use the kernel's array of places: eventfd, then 1 if its thread wants to be woken."""
        self._words = words
        self._lock = RLock()  # a signal's handler may close the store meanwhile
        self._free = deque[Waiter]()  # lent and given back without the lock
        self._count = 0
        self._closed = False

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """Lend a waiter to the calling thread."""
        try:
            waiter = self._free.pop()
        except IndexError:
            waiter = self._another()
        try:
            yield waiter
        finally:
            waiter.disarm()
            if waiter.fd >= 0:
                self._free.append(waiter)
                if self._closed:
                    with self._lock.guard():
                        self._close_free()

    def _another(self) -> Waiter:
        with self._lock.guard():
            place = self._count if self._count < WAITER_COUNT_MAX else None
            waiter = Waiter(self._words, place)
            self._count += place is not None
        return waiter

    def close(self) -> None:
        """Close all eventfds; only once no kernel runs."""
        with self._lock.guard():
            self._words[::2] = -1
            self._closed = True
            self._close_free()

    def _close_free(self) -> None:
        while self._free:
            self._free[-1].close()
            self._free.pop()
