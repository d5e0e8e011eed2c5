"""A store as one event loop sees it: which calls the loop makes itself, how it waits.

Three ways, chosen by what a call may wait for:

- `here`: it waits for nothing. The loop's thread makes it, and returns.
- `append`: it waits for nothing either, but its caller must wait: for room before it, if
  `Config.admission` says so, and for durability after it. Tasks wait for both, no thread.
- `apart`: it may take long. One of a few threads makes it; a task that is cancelled meanwhile
  leaves it running to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from timerstore.aio.commits import Commits
from timerstore.aio.wakeups import Arrivals, Wakeups
from timerstore.calls.putting.admission import WouldWaitError
from timerstore.errors import TimerStoreError
from timerstore.store.store import TimerStore

P = ParamSpec("P")
R = TypeVar("R")

TURN_S: Final = 0.001
"""So long tasks may use a store, or an iterator yield, before the loop has its turn."""
_THREADS: Final = 4
"""For calls that take long: one that lists, and one that flushes, do not wait for each other."""


def new_pool() -> ThreadPoolExecutor:
    """Return threads for the calls that take long; none runs before it is needed."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="timerstore-aio")


class LoopSide:
    """One open store, used by one event loop."""

    def __init__(self, store: TimerStore, pool: ThreadPoolExecutor) -> None:
        """Take the running loop; `start` does what may take longer."""
        self.store, self.core = store, store.core
        self.loop = asyncio.get_running_loop()
        self._pool = pool
        core = self.core
        self.commits = Commits(core, self.loop)
        self.arrivals = Arrivals(self.loop, core, core.waiters)
        self._room = Wakeups(self.loop, core, core.putters)
        self.reader_count = 0
        """Iterators that are open; those that do not wait share the time of a turn."""
        self._began_s: float | None = None  # when the first call of this turn was made
        self.stopped = False
        core.at_close.append(self._store_closes)

    def start(self) -> None:
        """Start what waits for commits; in any thread."""
        if self.core.is_group:
            self.commits.start()

    async def stop(self) -> None:
        """Let the store go, which stays open."""
        if not self.stopped:
            await self.apart(self._store_closes)
            self.give_up()

    def give_up(self) -> None:
        """Let go what needs no thread."""
        with contextlib.suppress(ValueError):
            self.core.at_close.remove(self._store_closes)
        self._let_go()

    def _store_closes(self) -> None:
        """End what works on the store's files; called while it is closed, by any thread."""
        self.commits.stop()
        try:
            self.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop is closed
            self._let_go()

    def _let_go(self) -> None:
        self.stopped = True
        self.arrivals.stop()
        self._room.stop()
        self._pool.shutdown(wait=False)  # what it does is done

    def check(self) -> None:
        """Refuse another loop, another process, a store that was let go."""
        self.check_loop()
        if self.stopped:
            self.core.check_open()
            raise TimerStoreError(
                "This object was detached from its store. Call timerstore.aio.attach(store.sync) "
                "again."
            )

    def check_loop(self) -> None:
        """Refuse another loop, another process."""
        if self.core.forked:
            self.core.check_process()
        if asyncio._get_running_loop() is not self.loop:
            raise TimerStoreError(
                "This store is used in another event loop. In this loop, use what "
                "timerstore.aio.attach(store.sync) returns, or call store.sync, which works in "
                "every thread."
            )

    # --- the loop's turn

    async def turn(self) -> None:
        """Let the loop have its turn if calls that wait for nothing went on for TURN_S."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
            self.loop.call_soon(self._new_turn)
        elif now_s - self._began_s > TURN_S:
            await asyncio.sleep(0)

    def _new_turn(self) -> None:
        self._began_s = None

    # --- the three ways

    def here(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call that waits for nothing: what would be waited for is left to the caller."""
        deferring, me = self.core.deferring, threading.get_ident()
        try:
            deferring.add(me)  # inside: a signal's exception may come right behind it
            return call(*args, **kwargs)
        finally:
            deferring.discard(me)

    async def append(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call that appends, then wait until that is as durable as the store promises."""
        self.check()
        await self.turn()
        try:
            result = self.here(call, *args, **kwargs)
        except WouldWaitError:
            result = await self._with_room(call, *args, **kwargs)
        await self.durable()
        return result

    async def apart(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call in another thread."""
        self.check()
        return await self.apart_always(call, *args, **kwargs)

    async def apart_always(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do so in any state of the store, also while it is being closed."""
        self.check_loop()
        future = self._submit(call, *args, **kwargs)
        # wrap_future is not enough: a cancelled task would take back a call that waits for a
        # thread.
        return await asyncio.shield(asyncio.wrap_future(future, loop=self.loop))

    def _submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        try:
            return self._pool.submit(call, *args, **kwargs)
        except RuntimeError:  # its threads have gone with the store: one more, for this call
            last = new_pool()
            try:
                return last.submit(call, *args, **kwargs)
            finally:
                last.shutdown(wait=False)

    async def durable(self) -> None:
        """Wait until all that was appended is as durable as the store promises."""
        if self.core.is_group:
            await self.commits.wait()

    async def _with_room(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call once there is room; those who wait do so in their order."""
        started_s = time.monotonic()
        admission = self.store.putting.admission
        while True:
            self._room.arm()
            try:
                return self.here(call, *args, **kwargs)
            except WouldWaitError:
                waited_ms = (time.monotonic() - started_s) * 1000
                await self._room.wait(admission.next_look_ms(waited_ms) / 1000)
