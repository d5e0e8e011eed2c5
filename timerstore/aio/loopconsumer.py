"""The concurrent consumer for asyncio: handlers that are coroutines, by the rules of the other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from timerstore.aio.batches import Delivery
from timerstore.aio.handlers import Handlers, LoopSource
from timerstore.aio.loopstore import TimerStore
from timerstore.calls.consuming.constants import LISTED_MAX
from timerstore.calls.consuming.dead_letters import DeadLetter
from timerstore.calls.consuming.starting import Start
from timerstore.consumer.consumersettings import ConsumerSettings, Hook, Ordered, Retry
from timerstore.consumer.running import (
    SIGNALS,
    ConsumerStats,
    Signals,
    Workings,
    exit_status,
    read_consumer_stats,
    seconds_of,
)
from timerstore.consumer.subscription import check_takes_one
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.values.check_arguments import check_topic_to_consume
from timerstore.values.kinds import Duration, check_bool, check_duration, check_int, check_kind
from timerstore.values.no_pickle import Stays

log = logging.getLogger("timerstore")

CONCURRENCY_MAX: Final = 65_536
"""Handlers that run at the same time: each is a task, of a few KB."""
Handler = (
    Callable[[Delivery], Awaitable[Retry | None]]
    | Callable[[list[Delivery]], Awaitable[Retry | None]]
)
"""What a program subscribes; with `batch_count` above 1 it takes a list."""
_H = TypeVar("_H", bound=Handler)


class Consumer(Stays):
    """Awaits handlers with what falls due, and sees to what fails; as `timerstore.Consumer`.

    A handler is an `async def`. What it returns, or raises, decides as there. One that takes longer
    than `timeout` is cancelled. One whose task is cancelled by anybody else, as the end of a loop
    does, has not ended: its messages come again, as the same attempt.
    """

    def __init__(
        self,
        store: TimerStore,
        group: str,
        *,
        concurrency: int = 100,
        batch_count: int = 1,
        pull_count: int = 32,
        max_attempts: int | None = 16,
        backoff: Sequence[Duration] | None = None,
        timeout: Duration = timedelta(minutes=15),
        broadcast: bool = False,
        instance: str = "",
        ordered: Ordered = False,
        hooks: Sequence[Hook] = (),
        start: Start = "earliest",
    ) -> None:
        """Prepare; `start` begins.

        `concurrency`: handlers that run at the same time. All else: see `timerstore.Consumer`.
        `Config.inflight_count_max` limits them, too.
        """
        check_kind(store, TimerStore, "store")
        self._concurrency = check_int(concurrency, "concurrency", 1, CONCURRENCY_MAX)
        self.store, self.group = store, group
        settings = ConsumerSettings(
            group=group,
            batch_count=batch_count,
            pull_count=pull_count,
            max_attempts=max_attempts,
            backoff=backoff,
            timeout=check_duration(timeout, "timeout"),
            broadcast=broadcast,
            instance=instance,
            ordered=ordered,
            hooks=hooks,
            start=start,
        )
        self._source = LoopSource(store.side, settings)
        self._side, self._workings = store.side, Workings(self._source)
        self._handlers: Handlers | None = None
        self._closed = False

    # --- subscribing

    def on(self, topic: str, *, tags: str = "*") -> Callable[[_H], _H]:
        """Subscribe the decorated coroutine function to a topic; see `subscribe`."""
        check_topic_to_consume(topic)

        def take(handler: _H) -> _H:
            self.subscribe(topic, handler, tags=tags)
            return handler

        return take

    def subscribe(self, topic: str, handler: Handler, *, tags: str = "*") -> None:
        """Have `handler` awaited with a topic's messages; before `start`, once for each topic.

        `tags`: see `timerstore.Consumer.subscribe`.
        """
        check_topic_to_consume(topic)
        _check_handler(handler)
        self._workings.subscribe(topic, handler, tags)

    # --- running

    async def start(self) -> None:
        """Begin to call handlers. Durable on return: where a new group starts.

        Raises what `timerstore.Consumer.start` does.
        """
        handlers = await self._open()
        if not self._closed:
            handlers.start()

    async def _open(self) -> Handlers:
        await self._side.apart(self._workings.start)
        self._handlers = Handlers(self._source, self._workings.handling, self._concurrency)
        return self._handlers

    async def run(self, *, timeout: Duration | None = None, close_store: bool = True) -> int:
        """Call handlers until SIGTERM or SIGINT comes, then end; return an exit status.

        As `timerstore.Consumer.run`: 0, all handlers have ended; 1, an error ended it; 128 + the
        signal's number: handlers still ran, and were cancelled. For a loop of the main thread.
        """
        self._side.check()
        check_bool(close_store, "close_store")
        timeout_s = seconds_of(timeout)
        if threading.current_thread() is not threading.main_thread():
            raise InvalidArgumentError(
                "run() was called in a loop that is not in the main thread, and only the main "
                "thread receives signals. Call run() there, or call start() here and close() at "
                "the end."
            )
        with _Signals(self._side.loop) as signals:
            if self._handlers is None:
                await self.start()
            handlers = self._handlers
            assert handlers is not None
            await _first_of(signals.came.wait(), handlers.ended())
            self._closed = handlers.stopping = True
            ending = asyncio.create_task(handlers.stop(timeout_s))
            await _first_of(asyncio.shield(ending), signals.hurry.wait())
            ended = ending.done() and ending.result()
            if not ended:
                handlers.cancel()
                ending.cancel()
            failed = handlers.failure.error is not None
            try:
                await self._side.apart(self._workings.end)
                if close_store:
                    await self.store.close()
            except (TimerStoreError, OSError) as e:
                log.error("%s: closing failed: %s", self.store.path, e)
                failed = True
            return exit_status(signals.number, ended=ended, failed=failed)

    async def step(self) -> int:
        """On a manual clock: await handlers with all that is there now; return how many messages.

        For tests, one after the other.
        """
        self._side.check()
        if not self._side.core.clock.manual:
            raise InvalidArgumentError("The store has the wall clock. Call start() instead.")
        handlers, count = self._handlers or await self._open(), 0
        while done := await handlers.step():
            count += done
        return count

    async def close(self, timeout: Duration | None = None) -> bool:
        """Begin nothing new, and wait until all handlers have ended; `timeout` at most.

        Return whether they have. What was not begun is for the next consumer of the group. A
        handler that still runs goes on, as by `timerstore.Consumer.close`. If the task is
        cancelled meanwhile, call it again: it goes on. Raises what has stopped the consumer before,
        if anything.
        """
        timeout_s = seconds_of(timeout)
        if self._side.core.forked:
            return True
        self._side.check_loop()
        self._closed = True
        if self._handlers is None:
            return True
        ended = await self._handlers.stop(timeout_s)
        self._workings.end()
        self._handlers.failure.check()
        return ended

    @property
    def error(self) -> BaseException | None:
        """The error that stopped it, which `close` raises; None while it works."""
        return None if self._handlers is None else self._handlers.failure.error

    async def __aenter__(self) -> Consumer:
        """Start; leaving the block closes it and waits for handlers."""
        await self.start()
        return self

    async def __aexit__(self, *ignored: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<timerstore.aio.{self._workings!r}>"

    # --- looking

    async def stats(self) -> tuple[ConsumerStats, ...]:
        """Return what it does with each of its topics. O(queues of these topics)."""
        return await self._side.apart(read_consumer_stats, self._workings)

    # --- dead letters

    async def dead_letters(self, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return what the group gave up; see `timerstore.TimerStore.dead_letters`."""
        return await self.store.dead_letters(self.group, limit)

    async def retry_dead_letters(
        self, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Put the group's dead letters back; see `timerstore.TimerStore.retry_dead_letters`."""
        return await self.store.retry_dead_letters(self.group, limit, ids=ids)

    async def drop_dead_letters(
        self, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give the group's dead letters up; see `timerstore.TimerStore.drop_dead_letters`."""
        return await self.store.drop_dead_letters(self.group, limit, ids=ids)


def _check_handler(handler: Any) -> None:
    """Refuse what a call of which makes nothing to await."""
    called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", None)  # noqa: B004
    if not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)):
        raise InvalidArgumentError(
            f"handler is {handler!r}. Pass an async def function that takes a Delivery and returns "
            "None or a Retry; timerstore.Consumer takes plain ones."
        )
    check_takes_one(handler)


async def _first_of(*waits: Awaitable[Any]) -> None:
    """Return when the first of several has come to its end."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()


class _Signals(Signals):
    """The same for a loop, whose tasks wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.came, self.hurry, self._loop = asyncio.Event(), asyncio.Event(), loop

    def install(self, number: int) -> None:
        """Have a signal handled."""
        self._loop.add_signal_handler(number, self.handle, number)

    def restore(self) -> None:
        """Have them do what they did before."""
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)
        super().restore()

    def handle(self, number: int, frame: object = None) -> None:
        """Note that one came."""
        super().handle(number)
        self.came.set()
        if self.count > 1:
            self.hurry.set()
