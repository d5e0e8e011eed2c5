"""Clocks: the wall clock, or one that a test moves by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from timerstore.errors import InvalidArgumentError
from timerstore.jit.guards import RLock
from timerstore.values.kinds import as_int, check_duration

CLOCK_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999


class SystemClock:
    """The wall clock, in UTC epoch milliseconds."""

    manual = False

    @property
    def now_ms(self) -> int:
        """Return the time, rounded down."""
        return time.time_ns() // 1_000_000


class Attendant(Protocol):
    """Who acts between two events of a manual clock: it may put timers, or move the clock."""

    def next_ms(self, start_ms: int, stop_ms: int) -> int:
        """Return the first time in (start_ms, stop_ms] at which it may have something to do."""

    def arrived(self) -> None:
        """Act; the clock has come to such a time, or was moved."""


class ManualClock:
    """A clock that stands still until it is moved; for tests of programs that use timers.

    A store that is opened with it runs no threads. `advance` fires what falls due on the way, each
    timer at its own millisecond, before it returns, without sleeping. `timerstore.open` refuses it
    for a store with pending timers that were put under the system's clock: each of them would count
    as fired once this clock was moved past its time. With `force` it does not refuse.

    >>> clock = ManualClock(1_800_000_000_000)
    >>> clock.advance(timedelta(seconds=2))
    >>> clock.now_ms
    1800000002000
    """

    manual = True

    def __init__(self, start_ms: int = 1_800_000_000_000, *, force: bool = False) -> None:
        """Start at `start_ms`, UTC epoch milliseconds; `force`: real timers may be moved by it."""
        if not isinstance(force, bool):
            raise InvalidArgumentError(f"force is {force!r}. Pass True or False.")
        self.force = force
        found_ms = as_int(start_ms)
        if found_ms is None:
            raise InvalidArgumentError(f"start_ms is {start_ms!r}. Pass epoch milliseconds.")
        if not 10**11 <= found_ms <= CLOCK_MS_MAX:
            raise InvalidArgumentError(
                "start_ms is before 1973 or after 9999. Pass epoch milliseconds, such as "
                "1_800_000_000_000."
            )
        self._now_ms = found_ms
        self._lock = RLock()
        self._listeners: list[Callable[[int, int], None]] = []
        self._attendants: list[Attendant] = []

    @property
    def now_ms(self) -> int:
        """Return the time."""
        return self._now_ms

    def advance(self, by: timedelta | float) -> None:
        """Move the clock by a timedelta, or by seconds; fire what falls due on the way."""
        length = check_duration(by, "by")
        with self._lock.guard():
            stop_ms = self._now_ms + length // timedelta(milliseconds=1)
            if not 10**11 <= stop_ms <= CLOCK_MS_MAX:
                raise InvalidArgumentError(
                    f"by is {by!r}, which leads to {stop_ms} (epoch ms). Stay between the years "
                    "1973 and 9999."
                )
            if self._now_ms >= stop_ms:
                self._move(stop_ms)
                return
            for each in list(self._attendants):
                each.arrived()
            while self._now_ms < stop_ms:  # an attendant may have moved it further
                self._move(stop_ms)

    def _move(self, stop_ms: int) -> None:
        """Move to `stop_ms`, or to the time at which an attendant has something to do before."""
        start_ms, attendants = self._now_ms, list(self._attendants)
        if stop_ms > start_ms:
            stop_ms = min([each.next_ms(start_ms, stop_ms) for each in attendants] + [stop_ms])
        for listener in list(self._listeners):
            listener(start_ms, stop_ms)
        self._now_ms = stop_ms
        for each in attendants:
            each.arrived()


def listen(clock: ManualClock, listener: Callable[[int, int], None]) -> None:
    """Call `listener(start_ms, stop_ms)` whenever a clock moves. For stores."""
    clock._listeners.append(listener)


def unlisten(clock: ManualClock, listener: Callable[[int, int], None]) -> None:
    """Stop calling a listener."""
    if listener in clock._listeners:
        clock._listeners.remove(listener)


def attend(clock: ManualClock, attendant: Attendant) -> None:
    """Stop a clock for `attendant` wherever that has something to do. For consumers."""
    clock._attendants.append(attendant)


def leave(clock: ManualClock, attendant: Attendant) -> None:
    """Stop a clock no longer for an attendant."""
    if attendant in clock._attendants:
        clock._attendants.remove(attendant)


Clock = SystemClock | ManualClock
SYSTEM_CLOCK: Final = SystemClock()
