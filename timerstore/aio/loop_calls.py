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
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar

import numpy as np

from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.calls.putting.admission import WouldWaitError
from timerstore.core.core import Core
from timerstore.core.waiting import Waiters
from timerstore.errors import StoreClosedError, TimerStoreError
from timerstore.jit.host import drain_event
from timerstore.services.world.background import BackgroundThread
from timerstore.store.store import TimerStore

# --- one thread that waits for group commits


class Commits:
    """Has tasks of one loop wait until what they appended is durable.

    One thread commits for all; it takes part in the group commit like any other that puts.
    """

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        self._core, self._loop = core, loop
        self._waiting: list[asyncio.Future[BaseException | None]] = []
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: commit; False: end
        self._thread = BackgroundThread("timerstore-aio-commit", self._run, core.engine.stop)
        self._started = self._asked = self._stopped = False

    def stop(self) -> None:
        """Serve those who wait, then end the thread; may be called twice, by any thread."""
        self._stopped = True
        self._calls.put(False)
        self._thread.join()

    async def wait(self) -> None:
        """Return once all that was appended is durable. Raises FlushFailedError."""
        flusher, end = self._core.flusher, self._core.engine.commitlog.end
        while flusher.durable_end < end:
            if not self._started:
                self._thread.start()
                self._started = True
            if not self._asked:
                self._asked = True
                self._calls.put(True)
            if self._stopped:  # the thread may have ended before it was asked
                self._core.check_open()
                return flusher.sync_log()
            told = self._loop.create_future()
            self._waiting.append(told)
            error = await told
            if error is not None and flusher.durable_end < end:
                raise copy(error)  # each task adds its own trace
        return None

    def _run(self) -> None:
        while self._calls.get():
            error: BaseException | None = None
            try:
                self._core.flusher.sync_log()
            except BaseException as e:
                error = e
                if not isinstance(e, TimerStoreError):
                    self._core.engine.stop(e)  # the store's next call raises it
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._committed, error)

    def _committed(self, error: BaseException | None) -> None:
        """Let all who wait look; who came too late for this commit asks for another one."""
        self._asked, waiting, self._waiting = False, self._waiting, []
        for told in waiting:
            if not told.done():  # else its task was cancelled
                told.set_result(error)


# --- an eventfd in the loop, for tasks that wait until a kernel has done something
#
# A kernel writes an eventfd once after somebody asked for it (`timerstore/core/waiting.py`); here
# the loop watches that eventfd, one for all tasks of a store. A task that waits asks first (`arm`),
# then looks, then waits, without an await between the last two. So it misses nothing that comes in
# between.


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
        if self._core.closed or self._core.engine.failure.error is not None:
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


# --- one store as one event loop sees it: what runs in the loop, what apart from it


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

    async def stop(self) -> None:
        """Let the store go, which stays open."""
        if not self.stopped:
            await self.apart(self._store_closes)
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
            raise StoreClosedError(
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

    async def pulled(self, tallies: Sequence[GroupTally], pull: Callable[[float], R]) -> R:
        """Return what a pull of some groups gives; the loop has its turn between what has expired.

        `pull` is told when to end if it has met nothing else.
        """
        while True:
            before = [each.counts.expired for each in tallies]
            found = self.here(pull, time.monotonic() + TURN_S)
            if found or before == [each.counts.expired for each in tallies]:
                return found
            await asyncio.sleep(0)
            self.check()

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
        future = self.submit(call, *args, **kwargs)
        # wrap_future is not enough: a cancelled task would take back a call that waits for a
        # thread.
        return await asyncio.shield(asyncio.wrap_future(future, loop=self.loop))

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have another thread make a call, whoever waits for it."""
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
