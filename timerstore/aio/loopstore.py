"""The store for asyncio: each public call of `timerstore.TimerStore`, awaited if it may wait."""

from __future__ import annotations

import asyncio
import os
import time
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from copy import copy
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

import numpy as np
import pyarrow as pa

from timerstore.aio.loop_calls import TURN_S, LoopSide, new_pool
from timerstore.calls.consuming import consuming
from timerstore.calls.consuming.delivery import CONSUME_BYTES, Following, NextPut, part_of
from timerstore.calls.consuming.delivery import Batch as PlainBatch
from timerstore.calls.consuming.delivery import Delivery as PlainDelivery
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.sendback import send_back
from timerstore.calls.pending.is_pending import is_foreign
from timerstore.calls.pending.timers import Timer
from timerstore.errors import StoreClosedError, TimerStoreError
from timerstore.services.world.clock import ManualClock
from timerstore.share.opening import open as open_store
from timerstore.store import store
from timerstore.store.store import TimerStore as PlainStore
from timerstore.values.check_arguments import given_delay
from timerstore.values.config import Config
from timerstore.values.kinds import Duration, check_int, check_kind, check_timeout
from timerstore.values.no_pickle import Stays
from timerstore.values.puts import json_body
from timerstore.watching.any_store import AnyStore

# --- what an event loop consumes: batches, deliveries, the iterator over them
#
# Reading what is there waits for nothing, so the loop's thread does it, by the same groups as all
# others. It takes `CONSUME_COUNT` at once, and iterators that find more than they can hand out in
# `TURN_S` let the loop have its turn.


CONSUME_COUNT: Final = 256
"""Messages that an iterator takes from its group at once; it gives back what it did not yield."""
PULL_COUNT_MAX: Final = 4_096
"""Messages that one pull reads in the loop's thread: some milliseconds."""
_TURN_S_MIN: Final = 0.00005
"""However many iterators share a turn, each goes on for so long."""


class Delivery(PlainDelivery):
    """One message that was handed out; as `timerstore.Delivery`, but that `nack` is awaited.

    `ack` waits for nothing, so it is no coroutine, and can stand in a `finally`.
    """

    __slots__ = ()
    _handed: LoopRun

    async def nack(  # type: ignore[override]
        self, delay: Duration | None = None, *, delay_ms: int | None = None
    ) -> None:
        """Send it back: it comes again after a delay, or at once, with the same id.

        On return the retry is as durable as a put. Cancelling the task that waits for that changes
        nothing: it is sent back all the same.
        """
        await self._handed.send_back(self._i, given_delay(delay, delay_ms))

    async def ack_and_put(  # type: ignore[override]
        self, body: bytes, **following: Unpack[Following]
    ) -> str:
        """Acknowledge, and put the next timer; return its id. Both happen, or neither.

        See `timerstore.Delivery.ack_and_put`. A task that is cancelled while it waits for room has
        done neither; while it waits for durability, both.
        """
        (id,) = await self.ack_and_put_many([NextPut(body=body, **following)])
        return id

    async def ack_and_put_many(self, puts: Sequence[NextPut]) -> list[str]:  # type: ignore[override]
        """Acknowledge, and put several timers; return their ids. All of it happens, or nothing."""
        return await self._handed.replace(self._i, puts)


class Batch(PlainBatch):
    """Messages handed out together, by columns; as `timerstore.Batch`."""

    __slots__ = ()

    @abstractmethod
    def __iter__(self) -> Iterator[Delivery]:
        """Yield a `Delivery` for each."""


class LoopRun(Run, Batch):  # type: ignore[misc]
    """A run whose messages are sent back, or replaced, by a loop's tasks."""

    __slots__ = ("_side",)
    kind = Delivery

    def __init__(self, side: LoopSide, run: Run) -> None:
        entries = run.columns, run.start, len(run)
        told = run.pins, run.pulled_us, run.expires_ms
        super().__init__(run.reader, run.cursor, *entries, *told)
        self._side = side

    async def send_back(self, i: int, delay: timedelta | None) -> None:
        """Send a message back; that a task which waits for it is cancelled changes nothing."""
        self._side.check()
        await asyncio.shield(self._side.loop.create_task(self._send_back(i, delay)))

    async def _send_back(self, i: int, delay: timedelta | None) -> None:
        side, reader, message = self._side, self.reader, self.message(i)
        with self.claiming(i):
            await side.append(send_back, side.store.putting, reader.name, message, delay=delay)
        self.settle(i, handled=False)  # only now, as it is durable
        reader.count_failed(1, 1, 0)

    async def replace(self, i: int, puts: Sequence[NextPut]) -> list[str]:
        """Acknowledge a message, and put."""
        # With a condition it may have to wait for its turn.
        make = self._side.apart if _has_condition(puts) else self._side.append
        return await make(self.ack_and_put, i, puts)


def _has_condition(puts: Any) -> bool:
    """Tell whether a put asks for its key, and so may have to wait for its turn."""
    if not isinstance(puts, Sequence):
        return False  # which is refused
    return any(isinstance(each, Mapping) and each.get("if_absent") for each in puts)


async def next_run(
    side: LoopSide,
    group: Group,
    count_max: int,
    timeout: float | None,
    bytes_max: int | None = None,
) -> Run | None:
    """Return what a group can hand out, waiting for it; None when the time is over.

    Nothing is awaited behind the pull, so a task that is cancelled has taken nothing.
    """
    side.check()
    (core := side.core).check_open()
    deadline = None if timeout is None else time.monotonic() + timeout
    if core.clock.manual:
        side.here(core.play_now)
        await make_visible(side, group)
    elif timeout != 0 and (wait_s := group.pace.wait_s(count_max, time.monotonic())):
        await asyncio.sleep(wait_s if timeout is None else min(wait_s, timeout))
    pull = partial(group.pull, count_max, None, bytes_max)
    run = await side.pulled([group.tally], pull)
    if run is not None or (core.clock.manual and timeout is not None):
        return run
    with side.store.consuming.waiting([group.topic], group.name):
        while True:
            side.arrivals.arm()
            await make_visible(side, group)
            run = await side.pulled([group.tally], pull)
            if run is not None:
                return run
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            await side.arrivals.wait(left_s, tuple(group.cursors))
            side.check()
            core.check_open()


async def make_visible(side: LoopSide, group: Group) -> None:
    """Under "group" durability, make durable what was fired for who waits."""
    if side.core.is_group and group.has_hidden():
        await side.commits.wait()


class Messages:
    """The messages of a topic, as they fall due: an asynchronous iterator.

    When it is closed, or dropped, its group gets back what it did not yield.
    """

    def __init__(self, side: LoopSide, group: Group, timeout: float | None) -> None:
        self._side, self._group, self._timeout = side, group, timeout
        self._run: Run | None = None
        self._left: Iterator[Delivery] = iter(())
        self._yielded = self._count = 0
        self._turn_s = time.monotonic()
        self._is_open = True
        side.reader_count += 1

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message; end after `timeout` seconds of nothing, or as the store ends."""
        await self._share_turn()
        while True:
            while self._yielded == self._count:
                if not self._is_open or not await self._take():
                    self._close()
                    raise StopAsyncIteration
            self._yielded += 1
            delivery, run = next(self._left), self._run
            now_ms = self._side.core.clock.now_ms
            if run is None or not run.gave_back_expired(self._yielded - 1, now_ms):
                return delivery

    async def _share_turn(self) -> None:
        """Let the loop have its turn, if this iterator has had its share of one."""
        side, now_s = self._side, time.monotonic()
        busy_count = max(1, side.reader_count - len(side.arrivals.waiting))
        if now_s - self._turn_s > max(TURN_S / busy_count, _TURN_S_MIN):
            await asyncio.sleep(0)
            self._turn_s = time.monotonic()
        if side.core.forked:
            side.core.check_process()

    async def _take(self) -> bool:
        """Wait for messages, and take some; tell whether there are any."""
        try:
            limits = CONSUME_COUNT, self._timeout, CONSUME_BYTES
            run = await next_run(self._side, self._group, *limits)
        except StoreClosedError:
            return False
        if run is None:
            return False
        if not self._is_open:  # closed meanwhile, by another task
            run.give_back(range(len(run)))
            return False
        self._run, self._count, self._yielded = run, len(run), 0
        self._left = iter(LoopRun(self._side, run))  # type: ignore[arg-type]
        return True

    async def aclose(self) -> None:
        """Give back what was not yielded; nothing is yielded any more."""
        self._close()

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._side.reader_count -= 1
        run, at, core = self._run, self._yielded, self._side.core
        self._run, self._count, self._yielded = None, 0, 0
        if run is not None and at < len(run) and not (core.closed or core.forked):
            run.give_back(range(at, len(run)))

    def __del__(self) -> None:
        if hasattr(self, "_is_open"):
            self._close()


# --- the public class


P = ParamSpec("P")
R = TypeVar("R")
Call = Callable[Concatenate[Any, P], R]
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
HERE_COUNT_MAX: Final = 1_024
"""Timers that one call puts or cancels in the loop's thread; more go to another one."""
HERE_BYTES_MAX: Final = 1 << 20
"""Bytes of their bodies likewise: half a millisecond."""
_LISTED_AT_ONCE: Final = 256


def _awaited(call: Call[P, R]) -> Callable[[Callable[..., Any]], Awaited[P, R]]:
    """Let a function stand for a call of a store: its arguments, and its document, are those."""
    return wraps(call)


def _iterated(
    call: Call[P, Iterator[R]],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, P], AsyncIterator[R]]]:
    """Do the same for one whose iterator is awaited."""
    return wraps(call)


def _apart(call: Call[P, R]) -> Awaited[P, R]:
    name = call.__name__

    @_awaited(call)
    async def ask(self: TimerStore, *args: Any, **given: Any) -> Any:
        return await self.side.apart(getattr(self.sync, name), *args, **given)

    return ask


def _by_id(call: Call[P, R]) -> Awaited[P, R]:
    """Make a call on one timer; a broker's is searched, by another thread."""
    name = call.__name__

    @_awaited(call)
    async def ask(self: TimerStore, id: str, **given: Any) -> Any:
        self.side.check()
        make = self.side.apart if is_foreign(self.sync.core, id) else self.side.append
        return await make(getattr(self.sync, name), id, **given)

    return ask


class TimerStore(Stays):
    """An open store, used by one event loop; made by `timerstore.aio.open` or `attach`.

    Any number of its tasks may use it. A task that is cancelled while it waits for durability has
    put, cancelled or moved its timer all the same; one that waits for room, or for messages, has
    done nothing, taken nothing.

    Its calls are those of `timerstore.TimerStore`, by the same names, awaited; `consume` and
    `pending` are asynchronous iterators. `sync` is the store underneath. The loop's thread makes
    what waits for nothing but durability: `put`, `put_many` of a thousand or of 1 MiB at most,
    `cancel`, `reschedule`, `get`, `count`, `consume`, `pull`. Those that are awaited at the same
    time share an fsync. Another thread makes all others, and what is on condition or has to be
    searched for: a put with `if_absent` or `replace`, a timer that a broker put.

    >>> async with timerstore.aio.open("timers/") as store:  # doctest: +SKIP
    ...     id = await store.put(b"hello", delay=timedelta(minutes=5))
    """

    def __init__(self, side: LoopSide, *, owns: bool) -> None:
        """Take what `open` or `attach` made; `owns`: closing closes the store underneath."""
        self.side, self._owns = side, owns
        self.sync = side.store
        """The store underneath, for threads; its calls may block."""

    @property
    def path(self) -> Path:
        """The directory."""
        return self.sync.path

    async def __aenter__(self) -> TimerStore:
        return self

    async def __aexit__(self, *ignored: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self.sync.core.closed else ""
        return f"<timerstore.aio.TimerStore {str(self.path)!r}{closed}>"

    # --- putting

    @_awaited(AnyStore.put)
    async def put(self, body: bytes, **described: Any) -> str:
        how = (described.get(each, False) for each in ("if_absent", "replace", "debounce"))
        is_conditional = any(each not in (False, None) for each in how)
        make = self.side.apart if is_conditional else self.side.append
        return await make(self.sync.put, body, **described)

    @_awaited(AnyStore.put_many)
    async def put_many(self, bodies: Any, **described: Any) -> Any:
        put = partial(self.sync.put_many, bodies, **described)
        if self.sync.putting.admission.is_limited or not _is_little(bodies):
            return await self.side.apart(put)
        self.side.check()
        await self.side.turn()
        ids = self.side.here(put)
        try:
            await self.side.durable()
        except TimerStoreError as e:
            error = copy(e)
            error.ids = ids
            raise error from e
        return ids

    @_awaited(AnyStore.put_json)
    async def put_json(self, value: object, **described: Any) -> str:
        return await self.put(json_body(value), **described)

    put_table = _apart(AnyStore.put_table)
    cancel = _by_id(AnyStore.cancel)
    cancel_many = _apart(AnyStore.cancel_many)
    cancel_key = _apart(AnyStore.cancel_key)
    reschedule = _by_id(AnyStore.reschedule)

    # --- looking

    @_awaited(AnyStore.get)
    async def get(self, id: str) -> Timer | None:
        self.side.check()
        if is_foreign(self.sync.core, id):
            return await self.side.apart(self.sync.get, id)
        await self.side.turn()
        return self.sync.get(id)

    find = _apart(AnyStore.find)
    get_key = _apart(AnyStore.get_key)

    @_iterated(AnyStore.pending)
    def pending(self, **bounds: Any) -> AsyncIterator[Timer]:
        self.side.check()
        return self._listed(self.sync.pending(**bounds))

    async def _listed(self, timers: Iterator[Timer]) -> AsyncIterator[Timer]:
        while part := await self.side.apart(part_of, timers, _LISTED_AT_ONCE):
            for timer in part:
                yield timer

    pending_columns = _apart(AnyStore.pending_columns)

    @_awaited(AnyStore.count)
    async def count(self, topic: str | None = None) -> int:
        self.side.check()
        await self.side.turn()
        return self.sync.count(topic)

    horizon = _apart(AnyStore.horizon)
    upcoming = _apart(AnyStore.upcoming)
    stats = _apart(AnyStore.stats)
    health = _apart(AnyStore.health)

    # --- consuming

    def consume(
        self, topic: str, *, group: str = "default", timeout: Duration | None = None
    ) -> Messages:
        """Yield each message of a topic once it is due, to be acknowledged with `ack`.

        As `timerstore.TimerStore.consume`. What was not yielded goes back to the group when the
        iterator is closed, or dropped: a task that is cancelled keeps only what it holds.
        """
        self.side.check()
        self.sync.consume(topic, group=group, timeout=timeout)  # it checks; nothing is begun
        reader = self.sync.consuming.group(topic, group)
        return Messages(self.side, reader, check_timeout(timeout))

    async def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: Duration | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns; see `timerstore.TimerStore.pull`.

        It takes 4,096 at most, so that the loop's turn stays short. A task that is cancelled has
        taken nothing.
        """
        self.side.check()
        self.sync.consume(topic, group=group, timeout=timeout)  # it checks; nothing is begun
        check_int(max_count, "max_count", 1, consuming.PULL_COUNT_MAX)
        await self.side.turn()
        reader = self.sync.consuming.group(topic, group)
        count_max = min(max_count, PULL_COUNT_MAX)
        run = await next_run(self.side, reader, count_max, check_timeout(timeout))
        return LoopRun(self.side, run or reader.empty())

    dead_letters = _apart(AnyStore.dead_letters)
    retry_dead_letters = _apart(AnyStore.retry_dead_letters)
    drop_dead_letters = _apart(AnyStore.drop_dead_letters)
    forget_group = _apart(AnyStore.forget_group)

    # --- operating

    pause = _apart(AnyStore.pause)
    resume = _apart(AnyStore.resume)
    flush = _apart(AnyStore.flush)
    backup = _apart(store.TimerStore.backup)
    follow = _apart(store.TimerStore.follow)
    clean = _apart(AnyStore.clean)
    handover = _apart(store.TimerStore.handover)

    async def close(self) -> None:
        """Stop the services, flush, and let the directory go; see `timerstore.TimerStore.close`.

        Of a store that was attached to, only what this loop has of it. Tasks that wait for messages
        come to an end. A task that is cancelled meanwhile leaves it closing, to the end.
        """
        if self._owns:
            if not self.sync.core.ended and not self.sync.core.forked:
                await self.side.apart_always(self.sync.close)
        elif not self.side.stopped:
            await self.side.stop()


def _is_little(bodies: Any) -> bool:
    """Tell whether so many are put in the loop's thread; what is no list of bytes is refused."""
    if isinstance(bodies, np.ndarray | pa.Array | pa.ChunkedArray):
        return len(bodies) <= HERE_COUNT_MAX and bodies.nbytes <= HERE_BYTES_MAX
    try:
        return len(bodies) <= HERE_COUNT_MAX and sum(map(len, bodies)) <= HERE_BYTES_MAX
    except TypeError:
        return True


# --- open a directory, or attach to an open store


class Opening:
    """A store that is being opened: `await` it, or enter it with `async with`."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, TimerStore]]) -> None:
        self._begin = begin
        self._store: TimerStore | None = None

    def __await__(self) -> Generator[Any, None, TimerStore]:
        """Open; close the store yourself."""
        return self._begin().__await__()

    async def __aenter__(self) -> TimerStore:
        self._store = await self._begin()
        return self._store

    async def __aexit__(self, *ignored: object) -> None:
        if self._store is not None:
            await self._store.close()


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    config: Config | None = None,
    clock: ManualClock | None = None,
) -> Opening:
    """Open a timer store for the running event loop; see `timerstore.open`.

    `async with timerstore.aio.open(path) as store:`, or `store = await timerstore.aio.open(path)`.
    Another thread opens it, since recovery and kernels take their time. If the task is cancelled
    meanwhile, that thread closes it again.
    """

    async def begin() -> TimerStore:
        pool = new_pool()
        opening = pool.submit(
            open_store, path, create=create, read_only=read_only, config=config, clock=clock
        )
        try:
            store = await asyncio.shield(asyncio.wrap_future(opening))
            return TimerStore(LoopSide(store, pool), owns=True)
        except BaseException:
            opening.add_done_callback(_close)
            pool.shutdown(wait=False)
            raise

    return Opening(begin)


def attach(store: PlainStore) -> Opening:
    """Use an open store in the running event loop, too; leaving the block leaves it open.

    Threads may go on using `store`, and other loops attach to it.
    """
    check_kind(store, PlainStore, "store")
    store.core.check_open()

    async def begin() -> TimerStore:
        return TimerStore(LoopSide(store, new_pool()), owns=False)

    return Opening(begin)


def _close(opening: Future[PlainStore]) -> None:
    """Close what was opened for nobody, in a thread that ends with it."""
    if not opening.cancelled() and opening.exception() is None:
        pool = new_pool()
        pool.submit(opening.result().close)
        pool.shutdown(wait=False)
