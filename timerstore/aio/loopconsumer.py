"""The concurrent consumer for asyncio: handlers that are coroutines, by the rules of the other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from timerstore.aio.loop_calls import TURN_S, LoopSide
from timerstore.aio.loopstore import Delivery, LoopRun, TimerStore
from timerstore.calls.consuming.consuming import Start
from timerstore.calls.consuming.dead_letters import DeadLetter
from timerstore.calls.consuming.delivery import LISTED_MAX
from timerstore.calls.consuming.group import Group
from timerstore.consumer.consumer import (
    NEW,
    SIGNALS,
    ConsumerStats,
    Signals,
    Workings,
    check_main_thread,
    exit_status,
    read_consumer_stats,
    seconds_of,
)
from timerstore.consumer.consumersettings import ConsumerSettings, ExpiredRule, Hook, Ordered, Retry
from timerstore.consumer.handling import Handling, failed_by
from timerstore.consumer.sources import StoreSource
from timerstore.consumer.subscription import LimitedSubscription, Task, check_takes_one
from timerstore.errors import InvalidArgumentError, StoreClosedError, TimerStoreError
from timerstore.timelog.bytes.decode import NEVER
from timerstore.values.check_arguments import check_topic_to_consume
from timerstore.values.kinds import Duration, check_bool, check_int, check_kind
from timerstore.values.no_pickle import Stays

# --- handlers that are coroutines: one task pulls, each call of a handler is a task of its own
#
# The rules are those of `timerstore/consumer/`: what is pulled, within which limits, and what
# becomes of it (`LoopSource`, `Handling`). Here is who runs it. All of it is in the loop's
# thread; between the steps of an end the task awaits durability. What a handler was given is
# acknowledged when the handler has returned, and by nothing else: a task that is cancelled
# acknowledges nothing.


class LoopSource(StoreSource):
    """Pulls in the loop's thread, and waits in its tasks; all else is as for threads."""

    def __init__(self, side: LoopSide, settings: ConsumerSettings) -> None:
        super().__init__(side.core, side.store.consuming, settings)
        self.side = side
        self._sleep: asyncio.Future[None] | None = None

    def subscription(self, topic: str, handler: Any, tags: str) -> LimitedSubscription:
        """Return what a handler of a topic gets its messages through."""
        made = super().subscription(topic, handler, tags)
        made.remake, made.pull_s = partial(LoopRun, self.side), TURN_S
        return made

    def make_visible(self, group: Group) -> bool:
        """Do nothing: `pull_durable` awaits that."""
        return False

    async def pull_durable(self, count_max: int) -> list[Task]:
        """Pull from the next topic that has something; under "group", what is durable."""
        self.side.check()
        self.core.check_open()
        if self.core.clock.manual:
            self.side.here(self.core.play_now)
        tallies = [each.tally for each in self.topics]
        tasks = await self.side.pulled(tallies, lambda _: self.pull(count_max)[0])
        if not tasks and self.core.is_group:
            if any(each.may_hide and each.group.has_hidden() for each in self.topics):
                await self.side.commits.wait()
                tasks = await self.side.pulled(tallies, lambda _: self.pull(count_max)[0])
        return tasks

    async def wait(self, *, for_messages: bool) -> None:
        """Sleep until something is fired, if that is waited for, or `wake` is called."""
        rows = [row for each in self.topics for row in list(each.group.cursors)]
        turn_ms = self.turn_ms() if for_messages else math.inf
        self._sleep = self.side.loop.create_future()
        try:
            await self.side.arrivals.wait(
                *(None if turn_ms == math.inf else turn_ms / 1_000, rows if for_messages else ()),
                self._sleep,
            )
        finally:
            self._sleep = None

    def wake(self) -> None:
        """End the wait; in the loop's thread."""
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)


# --- who runs them


log = logging.getLogger("timerstore")

_TEND_S: Final = 1.0
"""Handlers that take too long are looked for at least this often."""


class Handlers:
    """Calls handlers in a loop, so many at a time."""

    def __init__(self, source: LoopSource, handling: Handling, concurrency: int) -> None:
        self._source, self._side, self._handling = source, source.side, handling
        self._concurrency, self._batch_count = concurrency, source.settings.batch_count
        self._pull_count = self._burst = source.settings.pull_count
        self.failure = source.failure
        self._ready: deque[Task] = deque()
        self._calls: dict[Task, asyncio.Task[None]] = {}
        self._ends: set[asyncio.Task[None]] = set()  # what becomes of those that failed
        self._feeding: list[asyncio.Task[None]] = []
        self.stopping = False
        handling.on_room, handling.on_next = source.wake, self._begin_next

    def start(self) -> None:
        """Begin to pull, and to call handlers."""
        for job in (self._feed, self._tend):
            self._feeding.append(self._side.loop.create_task(self._guarded(job())))

    async def stop(self, timeout_s: float | None) -> bool:
        """Begin nothing new; return whether all handlers ended within `timeout_s`.

        May be called again, and goes on then. A handler that calls it does not wait for itself.
        """
        self.stopping = True
        self._source.wake()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while running := self._running():
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            await asyncio.wait(running, timeout=left_s)
        self._let_go()
        return not running

    async def step(self) -> int:
        """Run what is there, one call after the other; return how many messages that were."""
        for task, outcome in self._handling.take_late():
            await self._finish(self._handling.finish(task, outcome), copy_context())
        self._ready += self._handling.take_again() or await self._pull()
        count = 0
        while self._ready:
            task = self._ready.popleft()
            count += len(task.deliveries)
            context = copy_context()
            await self._side.loop.create_task(self._call(task, context), context=context)
        return count

    async def ended(self) -> None:
        """Return once it stops by itself, as an error makes it, or if it never began."""
        if self._feeding:
            await asyncio.wait(self._feeding[:1])

    def cancel(self) -> None:
        """Cancel the handlers that run; what they have comes again."""
        self.stopping = True
        for call in self._calls.values():
            call.cancel()

    def _running(self) -> set[asyncio.Task[None]]:
        running = {*self._calls.values(), *self._ends, *self._feeding[:1]}
        return {each for each in running if not each.done()} - {asyncio.current_task()}

    def _let_go(self) -> None:
        """Let the group have what was not begun."""
        for each in self._feeding[1:]:
            each.cancel()
        self._handling.give_back_all(self._ready)
        self._ready.clear()

    async def _guarded(self, job: Coroutine[Any, Any, None]) -> None:
        """Do a job; keep the exception that ends it, so that `close` raises it."""
        try:
            await job
        except StoreClosedError as e:
            log.debug("the consumer stops, because its store failed: %s", e)
        except asyncio.CancelledError as e:
            if not _is_cancelled():
                self._fail(e)
                return
            self.stopping = True  # the loop ends
            self._let_go()
            raise
        except BaseException as e:
            self._fail(e)
            if isinstance(e, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                raise
        finally:
            self.stopping = True
            self._source.wake()

    def _fail(self, error: BaseException) -> None:
        self.failure.keep(error)
        log.error("the consumer has stopped", exc_info=error)
        self.stopping = True
        self._source.wake()

    # --- pulling

    async def _feed(self) -> None:
        """Start a task for each call, while there is room."""
        side = self._side
        while not self.stopping:
            if not self._ready:
                await self._fill()
            started_s = time.thread_time()  # the time of the loop alone
            for _ in range(min(len(self._ready), self._burst, self._room())):
                task = self._ready.popleft()
                context = copy_context()
                call = side.loop.create_task(self._call(task, context), context=context)
                self._calls[task] = call
            await asyncio.sleep(0)
            # They have begun now. A turn that took long is to be shorter next time.
            is_short = time.thread_time() - started_s < TURN_S
            self._burst = (
                min(2 * self._burst, self._pull_count) if is_short else max(1, self._burst // 2)
            )

    def _room(self) -> int:
        return self._concurrency - len(self._calls)

    async def _fill(self) -> None:
        """Pull tasks; return once there are any, or it is time to end."""
        while not (self._ready or self.stopping):
            self._side.arrivals.arm()
            if self._room() > 0:
                self._ready += self._handling.take_again() or await self._pull()
            if not (self._ready or self.stopping):
                await self._source.wait(for_messages=self._room() > 0)

    async def _pull(self) -> list[Task]:
        count_max = min(self._pull_count, self._room() * self._batch_count)
        return await self._source.pull_durable(count_max)

    def _begin_next(self, task: Task) -> None:
        self._ready.append(task)
        self._source.wake()

    # --- a call

    async def _call(self, task: Task, context: Context) -> None:
        """Call a handler, then do what the rules say; in a context of its own, hooks too."""
        handling = self._handling
        result: Any = None
        error: BaseException | None = None
        if task.handed.expires_ms != NEVER:
            unexpired, steps = handling.part_expired(task)
            if unexpired is not task:
                end, call = self._finish(steps, context), self._calls.pop(task, None)
                if call is None:  # `step` calls it, and returns once all has ended
                    await asyncio.shield(end)
                elif unexpired is not None:
                    self._calls[unexpired] = call
                if unexpired is None:
                    self._source.wake()
                    return
                task = unexpired
        try:
            handling.begin(task)
            result = await task.subscription.handler(handling.argument(task))
        except asyncio.CancelledError:
            if _is_cancelled():
                handling.break_off(task)
                if self.stopping:
                    self._let_go()
                raise
            error = RuntimeError("the handler awaited something that was cancelled")
        except KeyboardInterrupt:
            handling.break_off(task)
            raise
        except BaseException as e:
            if isinstance(e, GeneratorExit) and not _is_running():
                handling.break_off(task)
                raise
            error = failed_by(e)
        finally:
            self._calls.pop(task, None)
            self._source.wake()
        steps = handling.end(task, result, error)
        if steps:
            await asyncio.shield(self._finish(steps, context))

    def _finish(self, steps: Iterable[None], context: Context) -> asyncio.Task[None]:
        """Go through the steps of an end in a task that nobody cancels."""
        end = self._side.loop.create_task(self._guarded_end(steps), context=context)
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        return end

    async def _guarded_end(self, steps: Iterable[None]) -> None:
        try:
            for _ in steps:
                await self._side.durable()
        except StoreClosedError:
            return  # what a closed store has not, comes again
        except Exception as e:
            self._fail(e)

    # --- time

    async def _tend(self) -> None:
        """End handlers that take too long, and see to what is to be handed in again."""
        handling = self._handling
        while not self.stopping or self._calls:
            at_most_ms = min(1_000 * _TEND_S, handling.timeout_ms / 4)
            left_ms = handling.next_ms() - handling.now_ms()
            await asyncio.sleep(max(10.0, min(at_most_ms, left_ms)) / 1000)
            for task, outcome in handling.take_late():
                call = self._calls.get(task)
                if call is not None:
                    call.cancel()
                self._finish(handling.finish(task, outcome), copy_context())
            if self._ready or handling.next_ms() <= handling.now_ms():
                self._source.wake()


def _is_cancelled() -> bool:
    """Tell whether somebody cancelled this task, not something that it awaited."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def _is_running() -> bool:
    """Tell whether a task runs; none does while a coroutine is closed that nobody runs any more."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


# --- the public class


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
        rate: str | None = None,
        burst: int | None = None,
        rate_by: str | None = None,
        expired: ExpiredRule = "drop",
    ) -> None:
        """Prepare; `start` begins.

        `concurrency`: handlers that run at the same time. All else: see `timerstore.Consumer`.
        `Config.inflight_count_max` limits them, too.
        """
        check_kind(store, TimerStore, "store")
        self._concurrency = check_int(concurrency, "concurrency", 1, CONCURRENCY_MAX)
        self.store, self.group = store, group
        settings = ConsumerSettings.of(locals())
        self._source = LoopSource(store.side, settings)
        self._side, self._workings = store.side, Workings(self._source)
        self._handlers = Handlers(self._source, self._workings.handling, self._concurrency)
        self._opening: Future[None] | None = None
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

        Raises what `timerstore.Consumer.start` does. If the task is cancelled meanwhile, the
        consumer is closed.
        """
        await self._open()
        if not self._closed:
            self._handlers.start()

    async def _open(self) -> None:
        self._side.check()
        if self._closed or not (self._opening is None or self._opening.done()):
            raise InvalidArgumentError("The consumer starts only once. Make another one.")
        opening = self._opening = self._side.submit(self._workings.start)
        try:
            await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            self._closed = True
            opening.add_done_callback(lambda opening: self._workings.end())
            raise

    async def run(self, *, timeout: Duration | None = None, close_store: bool = True) -> int:
        """Call handlers until SIGTERM or SIGINT comes, then end; return an exit status.

        As `timerstore.Consumer.run`: 0, all handlers have ended; 1, an error ended it; 128 + the
        signal's number: handlers still ran, and were cancelled. For a loop of the main thread.
        """
        self._side.check()
        check_bool(close_store, "close_store")
        timeout_s = seconds_of(timeout)
        check_main_thread()
        with _Signals(self._side.loop) as signals:
            if self._closed or self._workings.state == NEW:
                await self.start()
            handlers = self._handlers
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
        if self._closed or self._workings.state == NEW:
            await self._open()
        count = 0
        while done := await self._handlers.step():
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
        if self._opening is not None and not self._opening.done():
            await self._side.apart_always(wait, [self._opening])
        ended = await self._handlers.stop(timeout_s)
        self._workings.end()
        self._handlers.failure.check()
        return ended

    @property
    def error(self) -> BaseException | None:
        """The error that stopped it, which `close` raises; None while it works."""
        return self._handlers.failure.error

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
    called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", None)  # noqa: B004
    if not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)):
        raise InvalidArgumentError(
            f"handler is {handler!r}. Pass an async def function that takes a Delivery and returns "
            "None or a Retry; timerstore.Consumer takes plain ones."
        )
    check_takes_one(handler)


async def _first_of(*waits: Awaitable[Any]) -> None:
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
