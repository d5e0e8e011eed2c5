"""Admission: under `Config(admission="wait")` a put waits until enqueue-get has caught up.

What is bounded is the timer topic's queue on disk: the entries that enqueue-get has not read. All
that stands behind it is bounded by rings, each of which stops its producer when it is full. What
must not wait passes by: cancels, which make room, and what services append themselves (hops), or
the two would wait for each other. So the bound is one on putting: `admission_count_max` entries,
with up to a piece (PIECE_COUNT_MAX at most) more for each further thread that puts at the moment.

A thread waits inside the store's gate, without any lock and without the GIL. Its wait ends when
enqueue-get has read half of what may wait, when the store is closed, handed over or stopped, when
services find no space on the disk, after `admission_timeout_ms`, or by a signal's exception.
"""

from __future__ import annotations

import time
from copy import copy
from typing import Final

from timerstore.core.core import Core
from timerstore.errors import StoreFullError, TimerStoreError
from timerstore.services.world.state import (
    ENQUEUE_GET,
)
from timerstore.services.world.world import (
    PUTTERS_WOKEN_AT,
)
from timerstore.timelog.writing.append import STAGE_COUNT_MAX

UNLIMITED: Final = 1 << 62
"""The room if nothing is bounded."""
PIECE_COUNT_MAX: Final = STAGE_COUNT_MAX
"""Timers that one look for room admits."""
_POLL_MS: Final = 50
"""Who waits looks up at least this often: services may have stopped."""


class WouldWaitError(TimerStoreError):
    """There is no room, in a call that may not wait for it; the caller has put nothing more."""


class Admission:
    """Lets timers into the timer topic's queue."""

    def __init__(self, core: Core) -> None:
        engine, config = core.engine, core.engine.config
        self.core, self.engine = core, engine
        self.is_limited = config.admission == "wait"
        self.count_max = config.admission_count_max if self.is_limited else UNLIMITED
        self._timeout_ms = config.admission_timeout_ms
        engine.world.putters[PUTTERS_WOKEN_AT] = self.count_max // 2 if self.is_limited else -1

    def enter(self) -> int:
        """Return how many timers the caller may put now, at least one; wait for that.

        Called by those who put, inside the store, without any lock. Raises what ends the wait; then
        the caller has put nothing more.
        """
        if not self.is_limited:
            return UNLIMITED
        room = self._room()
        if room == 0 and self.core.clock.manual:
            room = self._play()
        if room == 0:
            room = self._wait()
        return min(room, PIECE_COUNT_MAX)

    def backlog(self) -> int:
        """Return how many entries of the timer topic's queue enqueue-get has not read."""
        return self.engine.queues.next_index(0) - self.engine.world.enqueue_get.fetched_index

    def _room(self) -> int:
        return max(0, self.count_max - self.backlog())

    def _play(self) -> int:
        """On a manual clock, run the services within the call; nobody else does."""
        now_ms = self.core.clock.now_ms
        self.core.runner.play(now_ms, now_ms)
        room = self._room()
        if room == 0:
            raise StoreFullError(
                f"{self.backlog()} timers wait to be linked, and the manual clock stands still, "
                "so no service links them. Advance the clock, or raise admission_count_max "
                f"({self.count_max})."
            )
        return room

    def _wait(self) -> int:
        if self.core.is_deferring:
            raise WouldWaitError("There is no room at the moment.")
        started = time.monotonic()
        with self.core.putters.waiter() as waiter:
            while True:
                waiter.arm()
                self.core.check_writable()
                room = self._room()
                if room > 0:
                    return room
                waiter.wait(self.next_look_ms((time.monotonic() - started) * 1000))

    def next_look_ms(self, waited_ms: float) -> float:
        """Return after how long who waits for room looks again, and see to it that it is made.

        Raises what ends the wait: there is no space on the disk, or the time is over.
        """
        self._check_space()
        wait_ms = float(_POLL_MS)
        if self._timeout_ms is not None:
            wait_ms = min(wait_ms, self._timeout_ms - waited_ms)
            if wait_ms <= 0:
                raise StoreFullError(
                    f"{self.backlog()} timers wait to be linked, and there was no room for "
                    f"{self._timeout_ms} ms. Put more slowly, or raise admission_count_max "
                    f"({self.count_max}) or admission_timeout_ms."
                )
        self.core.engine.wake(ENQUEUE_GET)
        return wait_ms

    def _check_space(self) -> None:
        """Raise if services wait for space: there may be no room before somebody makes some."""
        error = self.core.runner.waiting_for_space
        if error is not None:
            raise copy(error)  # others may raise it too
