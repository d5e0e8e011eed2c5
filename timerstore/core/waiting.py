"""Waiting: how a Python thread sleeps until a resident kernel has done something for it.

Who consumes waits for what dequeue-put fires, who puts for room that enqueue-get makes.

Each waiting thread has an eventfd of its own, which the kernel writes once after the thread asked
for it. One for all would lose wake-ups: who drains it hides the write from the others. They are
kept for the next wait, and closed with the store, when no kernel runs any more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from timerstore.jit.entrypoint import entry_ahead, entry_on
from timerstore.jit.guards import RLock
from timerstore.jit.host import wake_event
from timerstore.jit.record import Words, record, record_at
from timerstore.jit.system import poll_words, wait_readable
from timerstore.services.world.world import WAITER_COUNT_MAX
from timerstore.timelog.files.ownedfile import EventFile
from timerstore.values.inloop import note_blocking

NO_PLACE: Final = -1


@record
class Sleeper:
    """What a thread sleeps by."""

    poll: Words  # int64[8], see `wait_readable`


_sleeper_at = record_at(Sleeper)


def _sleep(address: int, timeout_ns: int) -> int:
    wait_readable(_sleeper_at(address).poll, timeout_ns)
    return 0


entry_ahead(_sleep)


class Waiter:
    """One waiting thread; without a place it polls, every millisecond."""

    def __init__(self, words: Words, place: int) -> None:
        """Take a place among those whom the kernel wakes, or NO_PLACE."""
        self._words, self.place = words, place
        self.fd = -1
        if place != NO_PLACE:
            self._event = EventFile()
            self.fd = self._event.fileno()
            self._sleeper = Sleeper(poll_words(self.fd))
            self._sleep = entry_on(_sleep, self._sleeper)
            words[2 * place + 1] = 0
            words[2 * place] = self.fd

    def arm(self) -> None:
        """Ask to be woken by what is done from now on."""
        if self.place != NO_PLACE:
            self._words[2 * self.place + 1] = 1

    def disarm(self) -> None:
        """Take the request back."""
        if self.place != NO_PLACE:
            self._words[2 * self.place + 1] = 0

    def wake(self) -> None:
        """End a wait, the present one or else the next; for any thread."""
        if self.fd >= 0:
            wake_event(self.fd)

    def wait(self, timeout_ms: float) -> None:
        """Sleep until something was done, or the time is over."""
        note_blocking()
        if self.place == NO_PLACE:
            time.sleep(min(timeout_ms, 1.0) / 1000)
        else:
            self._sleep(round(timeout_ms * 1e6))

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

    def lend(self) -> Waiter:
        """Lend a waiter to the calling thread, which gives it back."""
        try:
            return self._free.pop()
        except IndexError:
            return self._another()

    def take_back(self, waiter: Waiter) -> None:
        """Take a waiter back."""
        waiter.disarm()
        if waiter.fd >= 0:
            self._free.append(waiter)
            if self._closed:
                with self._lock.guard():
                    self._close_free()

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """Lend a waiter while the block runs."""
        waiter = self.lend()
        try:
            yield waiter
        finally:
            self.take_back(waiter)

    def _another(self) -> Waiter:
        with self._lock.guard():
            place = self._count if self._count < WAITER_COUNT_MAX else NO_PLACE
            waiter = Waiter(self._words, place)
            self._count += place != NO_PLACE
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
