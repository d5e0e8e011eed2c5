"""What an event loop consumes: batches, deliveries, the iterator over them.

Reading what is there waits for nothing, so the loop's thread does it, by the same groups as all
others. It takes `CONSUME_COUNT` at once, and iterators that find more than they can hand out in
`TURN_S` let the loop have its turn.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Unpack

from timerstore.aio.loop_calls import TURN_S, LoopSide
from timerstore.calls.consuming.delivery import Batch as PlainBatch
from timerstore.calls.consuming.delivery import Delivery as PlainDelivery
from timerstore.calls.consuming.delivery import Following, Put
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.sendback import send_back
from timerstore.errors import StoreClosedError
from timerstore.values.check_arguments import given_delay
from timerstore.values.kinds import Duration

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
        (id,) = await self.ack_and_put_many([Put(body=body, **following)])
        return id

    async def ack_and_put_many(self, puts: Sequence[Put]) -> list[str]:  # type: ignore[override]
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
        """Take over what a group has handed out."""
        entries = run.columns, run.start, len(run)
        super().__init__(run.reader, run.cursor, *entries, run.pins, run.pulled_us)
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

    async def replace(self, i: int, puts: Sequence[Put]) -> list[str]:
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
    side: LoopSide, group: Group, count_max: int, timeout: float | None
) -> Run | None:
    """Return what a group can hand out, waiting for it; None when the time is over.

    Nothing is awaited behind the pull, so a task that is cancelled has taken nothing.
    """
    side.check()
    core = side.core
    core.check_open()
    deadline = None if timeout is None else time.monotonic() + timeout
    if core.clock.manual:
        side.here(core.play_now)
        await make_visible(side, group)
    elif timeout != 0 and (wait_s := group.pace.wait_s(count_max, time.monotonic())):
        await asyncio.sleep(wait_s if timeout is None else min(wait_s, timeout))
    run = group.pull(count_max)
    if run is not None or (core.clock.manual and timeout is not None):
        return run
    while True:
        side.arrivals.arm()
        await make_visible(side, group)
        run = group.pull(count_max)
        if run is not None:
            return run
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            return None
        await side.arrivals.wait(left_s, tuple(group.cursors))
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
        while self._yielded == self._count:
            if not self._is_open or not await self._take():
                self._close()
                raise StopAsyncIteration
        self._yielded += 1
        return next(self._left)

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
            run = await next_run(self._side, self._group, CONSUME_COUNT, self._timeout)
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
        """Close, as a generator that is dropped does."""
        if hasattr(self, "_is_open"):
            self._close()
