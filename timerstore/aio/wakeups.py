"""Wake-ups: how tasks of an event loop sleep until a resident kernel has done something for them.

A kernel writes an eventfd once after somebody asked for it (`timerstore/core/waiting.py`); here the
loop watches that eventfd, one for all tasks of a store. A task that waits asks first (`arm`), then
looks, then waits, without an await between the last two. So it misses nothing that comes in
between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np

from timerstore.core.core import Core
from timerstore.core.waiting import Waiters
from timerstore.jit.host import drain_event

POLL_S: Final = 0.05
"""Who waits looks up this often: a pause may be over, another task may have given back."""
_POLL_COUNT: Final = 64
"""So many look up at once: a turn of the loop stays short, however many wait."""


class Wakeups:
    """Tasks of one loop that wait for the same kind of thing. Only the loop's thread uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: Core, waiters: Waiters) -> None:
        self._loop, self._core = loop, core
        self._lent = contextlib.ExitStack()
        self._waiter = self._lent.enter_context(waiters.waiter())
        self._waiter.open_event()
        self._watched = self._waiter.fd >= 0  # else there are too many, and all poll
        if self._watched:
            loop.add_reader(self._waiter.fd, self._readable)
        self._poll_s = POLL_S if self._watched else 0.002
        self._polling: asyncio.TimerHandle | None = None
        self.waiting: dict[asyncio.Future[None], Collection[int]] = {}

    def stop(self) -> None:
        """Let the eventfd go, and wake all who wait; may be called twice, after the loop too."""
        if self._watched and not self._loop.is_closed():
            self._loop.remove_reader(self._waiter.fd)
        self._watched = False
        self._lent.close()
        self.wake(list(self.waiting))

    def arm(self) -> None:
        """Ask to be woken by what is done from now on."""
        if self._watched:
            self._waiter.arm()

    async def wait(
        self,
        timeout_s: float | None,
        rows: Collection[int] = (),
        future: asyncio.Future[None] | None = None,
    ) -> None:
        """Sleep until something was done, or for `timeout_s`, or until it is time to look.

        `future`: one that the caller may set, to end it.
        """
        if future is None:
            future = self._loop.create_future()
        self._enter(future, rows)
        if self._polling is None:
            self._polling = self._loop.call_later(self._poll_s, self._poll)
        over = None
        if timeout_s is not None:
            over = self._loop.call_later(timeout_s, self.wake, (future,))
        try:
            await future
        finally:
            self._leave(future)
            if over is not None:
                over.cancel()

    def wake(self, futures: Iterable[asyncio.Future[None]]) -> None:
        """Let some of those who wait look."""
        for future in futures:
            if not future.done():
                future.set_result(None)

    def _enter(self, future: asyncio.Future[None], rows: Collection[int]) -> None:
        self.waiting[future] = rows

    def _leave(self, future: asyncio.Future[None]) -> None:
        self.waiting.pop(future, None)

    def _concerned(self) -> Iterable[asyncio.Future[None]]:
        """Return whom a wake-up concerns."""
        return list(self.waiting)

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            drain_event(self._waiter.fd)
        if self.waiting:
            self.wake(self._concerned())

    def _poll(self) -> None:
        """Let those look who wait for the longest time; all, if the store has ended."""
        self._polling = None
        waiting = list(self.waiting)
        if self._core.closed or self._core.failure.error is not None:
            self.wake(waiting)
            return
        self.wake(waiting[:_POLL_COUNT])
        if waiting:
            self._polling = self._loop.call_later(self._poll_s, self._poll)


class Arrivals(Wakeups):
    """Tasks that wait for messages: a wake-up concerns those whose queues have grown."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: Core, waiters: Waiters) -> None:
        super().__init__(loop, core, waiters)
        self._by_row: defaultdict[int, set[asyncio.Future[None]]] = defaultdict(set)
        self._ends = self._read_ends()

    def _read_ends(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        queues = self._core.engine.queues
        return queues.table.next_index[: len(queues.topics)].copy()

    def _enter(self, future: asyncio.Future[None], rows: Collection[int]) -> None:
        super()._enter(future, rows)
        for row in rows:
            self._by_row[row].add(future)

    def _leave(self, future: asyncio.Future[None]) -> None:
        for row in self.waiting.get(future, ()):
            self._by_row[row].discard(future)
        super()._leave(future)

    def _concerned(self) -> Iterable[asyncio.Future[None]]:
        """Return who waits for a queue that has grown; all, if one has come into being."""
        ends, before = self._read_ends(), self._ends
        self._ends = ends
        if len(ends) != len(before):
            return list(self.waiting)
        grown = np.flatnonzero(ends != before).tolist()
        return [each for row in grown for each in self._by_row.get(row, ())]
