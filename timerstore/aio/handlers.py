"""Handlers that are coroutines: one task pulls, each call of a handler is a task of its own.

The rules are those of `timerstore/consumer/`: what is pulled, within which limits, and what becomes
of it (`LoopSource`, `Handling`). Here is who runs it. All of it is in the loop's thread; between
the steps of an end the task awaits durability. What a handler was given is acknowledged when the
handler has returned, and by nothing else: a task that is cancelled acknowledges nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final

from timerstore.aio.batches import LoopRun
from timerstore.aio.loop_calls import TURN_S, LoopSide
from timerstore.calls.consuming.group import Group
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.handling import Handling, failed_by
from timerstore.consumer.storesource import StoreSource
from timerstore.consumer.subscription import LimitedSubscription, Task
from timerstore.errors import StoreClosedError


class LoopSource(StoreSource):
    """Pulls in the loop's thread, and waits in its tasks; all else is as for threads."""

    def __init__(self, side: LoopSide, settings: ConsumerSettings) -> None:
        super().__init__(side.core, side.store.consuming, settings)
        self.side = side
        self._sleep: asyncio.Future[None] | None = None

    def subscription(self, topic: str, handler: Any, tags: str) -> LimitedSubscription:
        """Return what a handler of a topic gets its messages through."""
        made = super().subscription(topic, handler, tags)
        made.remake = partial(LoopRun, self.side)
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
        tasks, _ = self.pull(count_max)
        if not tasks and self.core.is_group:
            if any(each.may_hide and each.group.has_hidden() for each in self.topics):
                await self.side.commits.wait()
                tasks, _ = self.pull(count_max)
        return tasks

    async def wait(self, *, for_messages: bool) -> None:
        """Sleep until something is fired, if that is waited for, or `wake` is called."""
        rows = [row for each in self.topics for row in list(each.group.cursors)]
        self._sleep = self.side.loop.create_future()
        try:
            await self.side.arrivals.wait(None, rows if for_messages else (), self._sleep)
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
        """Return once it stops by itself, as an error makes it."""
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
