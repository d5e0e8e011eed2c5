"""Handling: one task after the other through its handler, to what the rules make of it.

Ground rules: any thread may call anything here. A task that is being handled stands in `_running`;
whoever takes it out, the handler's thread or the one that finds it too slow, decides alone what
becomes of it. A program's code gets copies of our lists, for it may empty them; what is done is
counted by our own, with lengths as they stand in the batch.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from timerstore.arguments import whole_ms
from timerstore.consumer.hooks import Hook, call_after, call_before
from timerstore.consumer.needs import Store
from timerstore.consumer.retry_rules import (
    DEAD,
    TIMEOUT_LEVEL,
    Outcome,
    Retry,
    Wait,
    wait_after,
)
from timerstore.consumer.subscription import Subscription, Task
from timerstore.consuming.delivery import Delivery, body_bytes
from timerstore.consuming.failures import Failure
from timerstore.consuming.sendback import send_back, send_to_dead, wait_durable
from timerstore.errors import StoreClosedError, TimerStoreError
from timerstore.putting.putting import Putting

log = logging.getLogger("timerstore")

AGAIN_MS: Final = 5_000
"""A message that could not be sent back is handed in again after this."""


class Handling:
    """Runs handlers by a consumer's rules."""

    def __init__(
        self,
        putting: Putting,
        group: str,
        *,
        as_list: bool,
        max_attempts: int,
        backoff: Sequence[timedelta],
        timeout_ms: float,
        broadcast: bool,
        ordered: bool,
        hooks: Sequence[Hook],
    ) -> None:
        """Begin with nothing to do."""
        self._putting, self._group = putting, group
        self._store: Store = putting.core
        self._as_list, self._max_attempts, self._backoff = as_list, max_attempts, backoff
        self.timeout_ms, self._broadcast, self._hooks = timeout_ms, broadcast, tuple(hooks)
        self._ordered = ordered
        self.on_room: Callable[[], None] | None = None
        """Called when messages are done while pulling waits for room."""
        self.on_next: Callable[[Task], None] | None = None
        """Called with a task that may begin now; else `tend` returns it."""
        self._over = False
        self._running: dict[Task, float] = {}
        self._again: list[tuple[float, int, Task]] = []
        self._again_lock = threading.Lock()
        self._numbers = itertools.count()

    def now_ms(self) -> float:
        """Return the time by which handlers are judged: one that is never set, or the manual."""
        return self._store.steady_ms()

    # --- handling

    def run(self, task: Task) -> None:
        """Call a task's handler, then do what the rules say."""
        self.begin(task)
        result: Any = None
        error: Exception | None = None
        try:
            result = task.subscription.handler(self.argument(task))
        except Exception as e:
            error = e
        except SystemExit as e:
            error = exited(e)
        except BaseException:
            self.break_off(task)
            raise
        self._wait_through(self.end(task, result, error))

    def begin(self, task: Task) -> None:
        """Note that a task's handler is being called."""
        if self._hooks:
            self._call_before(task)
        task.started_ms = self.now_ms()
        self._running[task] = task.started_ms

    def argument(self, task: Task) -> Any:
        """Return what the handler gets."""
        return list(task.deliveries) if self._as_list else task.deliveries[0]

    def break_off(self, task: Task) -> None:
        """Have a task handed in again whose handler came to no end, which says nothing of it."""
        if self._running.pop(task, None) is not None:
            self.hand_in_again(task, 0)

    def end(self, task: Task, result: Any, error: Exception | None) -> Iterable[None]:
        """Do what the rules say of what a handler returned, or raised.

        Go through what this returns: at each step wait until all that was appended is durable.
        """
        deliveries = task.deliveries
        if self._running.pop(task, None) is None:
            log.warning("the handler of message %s ended after its time-out", deliveries[0].id)
        elif (
            elapsed_ms := (now_ms := self.now_ms()) - task.started_ms
        ) >= self.timeout_ms and not self._ordered:
            return self.finish(task, Outcome(0, TIMEOUT_LEVEL, error, True, elapsed_ms))
        elif result is None and error is None and not self._hooks:
            task.subscription.group.tally.respond(now_ms, elapsed_ms, len(deliveries))
            self._done(task, deliveries, task.bytes_held)
        else:
            return self.finish(task, self._judge(task, result, error, elapsed_ms))
        return ()

    def _wait_through(self, steps: Iterable[None]) -> None:
        """Wait at each step, in the calling thread; what a closed store has not, comes again."""
        try:
            for _ in steps:
                wait_durable(self._putting)
        except StoreClosedError:
            return

    def _call_before(self, task: Task) -> None:
        try:
            call_before(self._hooks, task.deliveries)
        except BaseException:
            self.hand_in_again(task, 0)  # it has not begun
            raise

    def _judge(
        self, task: Task, result: Any, error: Exception | None, elapsed_ms: float
    ) -> Outcome:
        """Read what a handler returned or raised."""
        count = len(task.deliveries)
        if error is None and result is None:
            return Outcome(count, None, None, False, elapsed_ms)
        if error is None and isinstance(result, Retry):
            if result.ack_index < count:
                asked = result.delay, result.reason
                return Outcome(
                    result.ack_index, result.delay_level, None, False, elapsed_ms, *asked
                )
            if result.ack_index == count and self._as_list:
                return Outcome(count, None, None, False, elapsed_ms)
            error = ValueError(
                f"the handler returned {result!r} for {count} messages. "
                f"Return an ack_index of {count} at most."
            )
        if error is None:
            error = TypeError(f"the handler returned {result!r}. Return None, or a Retry.")
        return Outcome(0, 0, error, False, elapsed_ms)

    def finish(self, task: Task, outcome: Outcome) -> Iterator[None]:
        """Acknowledge what succeeded, send back the rest, and tell the hooks; steps as of `end`."""
        try:
            yield from self._settle(task, outcome)
        finally:
            call_after(self._hooks, task.deliveries, outcome)

    def _settle(self, task: Task, outcome: Outcome) -> Iterator[None]:
        good, bad = task.deliveries[: outcome.ack_count], task.deliveries[outcome.ack_count :]
        group = task.subscription.group
        group.tally.respond(self.now_ms(), outcome.elapsed_ms, len(good), len(bad))
        if bad:
            group.count_failed(len(bad), 0, 0)
            length = body_bytes(good)
            if good:
                self._done(task, good, length)
            rest = task.part(bad, task.bytes_held - length)
            self._tell(rest, outcome)
            if self._broadcast:
                self._done(rest, bad, rest.bytes_held, handled=False)
            elif (wait_ms := self._held_back_ms(rest, outcome)) >= 0:
                rest.subscription.hold(rest, wait_ms)
            else:
                yield from self._send_back(rest, outcome)
        else:
            self._done(task, good, task.bytes_held)

    def _tell(self, rest: Task, outcome: Outcome) -> None:
        """Log what failed, with its id."""
        names = ", ".join(delivery.id for delivery in rest.deliveries[:10])
        if len(rest.deliveries) > 10:
            names += f" and {len(rest.deliveries) - 10} more"
        topic, ids = rest.subscription.topic, [delivery.id for delivery in rest.deliveries]
        fields = {
            "topic": topic,
            "group": self._group,
            "ids": ids,
            "attempt": rest.deliveries[0].attempt,
        }
        why = f": {outcome.reason}" if outcome.reason else ""
        if outcome.timed_out:
            text = "%s: message %s: no end after %d ms"
            log.error(text, topic, names, outcome.elapsed_ms, extra=fields)
        elif outcome.error is not None:
            log.error("%s: message %s failed", topic, names, exc_info=outcome.error, extra=fields)
        elif self._broadcast:
            log.error("%s: message %s failed%s", topic, names, why, extra=fields)
        else:
            log.info("%s: message %s shall come again%s", topic, names, why, extra=fields)

    def _held_back_ms(self, task: Task, outcome: Outcome) -> int:
        """Return how long a message holds its line back; -1: it is sent somewhere."""
        if not self._ordered or _is_done(task.deliveries[0]):
            return -1
        wait = self._wait_after(task.deliveries[0].attempt, outcome)
        if isinstance(wait, timedelta):
            return whole_ms(wait)
        levels_ms = self._putting.core.engine.level_ms
        return -1 if wait == DEAD else int(levels_ms[min(wait, len(levels_ms)) - 1])

    def _wait_after(self, attempt: int, outcome: Outcome) -> Wait:
        return wait_after(attempt, outcome, self._max_attempts, self._backoff)

    def _send_back(self, task: Task, outcome: Outcome) -> Iterator[None]:
        """Send each message of a task back; where that fails, hand them in again later."""
        sent, dead, failure = 0, 0, None
        try:
            for delivery in task.deliveries:
                dead += self._append_again(delivery, outcome)
                sent += 1
        except (TimerStoreError, OSError) as e:
            failure = e
        yield
        good, rest = task.deliveries[:sent], task.deliveries[sent:]
        length = body_bytes(good)
        if good:
            task.subscription.group.count_failed(0, sent - dead, dead)
            self._done(task, good, length, handled=False)
        if rest:
            log.warning(
                "%d messages from %s on could not be sent back: again in %d s: %s",
                *(len(rest), rest[0].id, AGAIN_MS // 1000, failure),
            )
            again = task.part(rest, task.bytes_held - length)
            self.hand_in_again(again, AGAIN_MS)

    def _append_again(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Append a message again; tell whether it is a dead letter now."""
        batch, index = delivery._batch, delivery._batch._index_of[delivery._i]
        if _is_done(delivery):
            return False
        with batch._group.claiming(batch, index):
            return self._send_again(delivery, outcome)

    def _send_again(self, delivery: Delivery, outcome: Outcome) -> bool:
        message = delivery._batch.message(delivery._i)
        wait = self._wait_after(message.reconsume_times, outcome)
        if wait == DEAD:
            fields = {"topic": delivery.topic, "group": self._group, "ids": [delivery.id]}
            text = "%s: message %s is a dead letter now"
            log.error(text, delivery.topic, delivery.id, extra=fields)
            send_to_dead(self._putting, self._group, message, failure_of(outcome), wait=False)
        else:
            level, delay = (None, wait) if isinstance(wait, timedelta) else (wait, None)
            putting, group = self._putting, self._group
            send_back(putting, group, message, delay_level=level, delay=delay, wait=False)
        return wait == DEAD

    def _done(
        self, task: Task, deliveries: list[Delivery], length: int, *, handled: bool = True
    ) -> None:
        try:
            task.subscription.done(task, deliveries, length, handled=handled)
        except StoreClosedError:
            return  # they come again after reopening
        if self.on_room is not None:
            self.on_room()
        following = task.subscription.next_after(task)
        if following is not None:
            self._hand_in(following, 0, self.on_next)

    def hand_in_again(self, task: Task, after_ms: float) -> None:
        """Have `tend` return a task again after a while."""
        self._hand_in(task, after_ms, None)

    def _hand_in(self, task: Task, after_ms: float, on_next: Callable[[Task], None] | None) -> None:
        with self._again_lock:
            if not self._over:
                if on_next is not None:
                    on_next(task)
                    return
                heapq.heappush(self._again, (self.now_ms() + after_ms, next(self._numbers), task))
                return
        task.subscription.give_back(task)

    # --- time

    def next_ms(self, *, begins: bool = True) -> float:
        """Return when `tend` has something to do next; infinity where nothing is known.

        `begins`: whether anything may begin then, or time-outs count alone.
        """
        with self._again_lock:
            first = self._again[0][0] if self._again and begins else float("inf")
        if self._ordered:
            return first
        started_ms = min(list(self._running.values()), default=float("inf"))
        return min(first, started_ms + self.timeout_ms)

    def tend(self) -> list[Task]:
        """Send back what takes too long; return the tasks that are to be handed in again now."""
        for task, outcome in self.take_late():
            self._wait_through(self.finish(task, outcome))
        return self.take_again()

    def take_late(self) -> Iterator[tuple[Task, Outcome]]:
        """Yield each task whose handler takes too long; what that returns counts no more."""
        now_ms = self.now_ms()
        for task, started_ms in list(self._running.items()):
            late = now_ms - started_ms >= self.timeout_ms
            if late and self._ordered:
                self._tell_late(task, now_ms - started_ms)
            elif late and self._running.pop(task, None) is not None:
                yield task, Outcome(0, TIMEOUT_LEVEL, None, True, now_ms - started_ms)

    def take_again(self) -> list[Task]:
        """Return the tasks that are to be handed in again now."""
        now_ms, tasks = self.now_ms(), []
        with self._again_lock:
            while self._again and self._again[0][0] <= now_ms:
                tasks.append(heapq.heappop(self._again)[2])
        return tasks

    def _tell_late(self, task: Task, elapsed_ms: float) -> None:
        """Say once that a handler keeps its line waiting: another call would overtake it."""
        if not task.is_late:
            task.is_late = True
            text = "%s: message %s: no end after %d ms; its line waits"
            topic, id = task.subscription.topic, task.deliveries[0].id
            log.warning(text, topic, id, elapsed_ms, extra={"topic": topic, "ids": [id]})

    def shut(self) -> None:
        """Have nothing begin any more: what would, is given back."""
        with self._again_lock:
            self._over = True

    def give_back_all(self, tasks: Sequence[Task]) -> None:
        """Let the groups have what was pulled, but not begun; after `shut`."""
        with self._again_lock:
            waiting = [*tasks, *(task for _, _, task in self._again)]
            self._again.clear()
        for task in waiting:
            task.subscription.give_back(task)

    def running(self) -> list[Subscription]:
        """Return the subscription of each task that is being handled."""
        return [task.subscription for task in list(self._running)]


def exited(error: SystemExit) -> Exception:
    """Return the error of a handler that would end the program."""
    return RuntimeError(f"the handler called sys.exit({error.code!r})")


def _is_done(delivery: Delivery) -> bool:
    """Tell whether a put has acknowledged it, see `ackput.py`."""
    batch = delivery._batch
    return batch._flight is not None and batch._flight.is_done(batch._index_of[delivery._i])


def failure_of(outcome: Outcome) -> Failure:
    """Return what a dead letter is to say that it died of; the words are those of traces."""
    if outcome.timed_out:
        return Failure("timeout", f"no end after {outcome.elapsed_ms:.0f} ms")
    if outcome.error is None:
        return Failure("retry", outcome.reason)
    return Failure.of(outcome.error)
