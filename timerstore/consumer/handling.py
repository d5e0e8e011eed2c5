"""Handling: one task after the other through its handler, to what the rules make of it.

Ground rules: any thread may call anything here. A task that is being handled stands in `_running`;
the thread that takes it out, the handler's or the one that finds it too slow, decides alone what
becomes of it. A program's code gets copies of our lists, because it may empty them; what is done is
counted by our own, with lengths as they stand in the batch.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from timerstore.calls.consuming.delivery import (
    AGAIN_MS,
    DEAD,
    DROPPED,
    Delivery,
    Failure,
    HandedOut,
    Wait,
    expired,
    said_by,
    shown_error,
)
from timerstore.consumer.consumersettings import (
    TIMEOUT_LEVEL,
    Outcome,
    Retry,
    call_after,
    call_before,
    wait_after,
)
from timerstore.consumer.subscription import Source, Subscription, Task
from timerstore.errors import StoreClosedError, TimerStoreError
from timerstore.jit.guards import Lock
from timerstore.timelog.bytes.decode import NEVER, Message, expires_ms
from timerstore.values.amounts import shown_time
from timerstore.values.check_arguments import given_delay

log = logging.getLogger("timerstore")


class Handling:
    """Runs handlers by a consumer's rules."""

    def __init__(self, source: Source) -> None:
        self._source, self._store, told = source, source.store, source.settings
        self._group, self._broadcast, self._hooks = told.group, told.broadcast, told.hooks
        self._as_list, self._ordered = told.batch_count > 1, told.ordered is not False
        self._max_attempts, self._backoff = told.attempts_max, told.waits
        self._buries_expired = told.buries_expired
        self.timeout_ms = told.timeout / timedelta(milliseconds=1)
        self.on_room: Callable[[], None] | None = None
        """Called when messages are done while pulling waits for room."""
        self.on_next: Callable[[Task], None] | None = None
        """Called with a task that may begin now; else `tend` returns it."""
        self._over = False
        self._running: dict[Task, float] = {}
        self._again: list[tuple[float, int, Task]] = []
        self._again_lock = Lock()
        self._numbers = itertools.count()

    def now_ms(self) -> float:
        """Return the time by which handlers are judged: one that is never set, or the manual."""
        return self._store.steady_ms()

    # --- handling

    def run(self, task: Task) -> None:
        """Call a task's handler, then do what the rules say."""
        if task.handed.expires_ms != NEVER:
            unexpired, steps = self.part_expired(task)
            self._wait_through(steps)
            if unexpired is None:
                return
            task = unexpired
        self.begin(task)
        result: Any = None
        error: BaseException | None = None
        try:
            result = task.subscription.handler(self.argument(task))
        except KeyboardInterrupt:
            self.break_off(task)
            raise
        except BaseException as e:
            error = failed_by(e)
        self._wait_through(self.end(task, result, error))

    def part_expired(self, task: Task) -> tuple[Task | None, Iterable[None]]:
        """Return a task without what has expired since it was pulled, None if all of it has.

        What has expired is dropped, or a dead letter, by steps as of `end`.
        """
        now_ms = self._now_ms()
        if task.handed.expires_ms >= now_ms:
            return task, ()
        try:
            messages = [task.handed.message(place) for place in task.places]
        except StoreClosedError as e:  # nobody can tell
            self._leave(task, e)
            return None, ()
        except (TimerStoreError, OSError):
            return task, ()
        late = {i for i, each in enumerate(messages) if expires_ms(each) < now_ms}
        if not late:
            return task, ()
        expired, rest = task.parted(late)
        return rest if rest.places else None, self._send_back(expired, None)

    def _now_ms(self) -> int:
        now_ms = self._source.comes_ms(timedelta(0))
        assert now_ms is not None
        return now_ms

    def _comes_too_late(self, handed: HandedOut, message: Message, wait: Wait) -> bool:
        """Tell whether a message expires before it comes again; False if nobody here knows."""
        if handed.expires_ms == NEVER or wait == DEAD:
            return False
        again_ms = self._source.comes_ms(wait)
        return again_ms is not None and again_ms > expires_ms(message)

    def begin(self, task: Task) -> None:
        """Note that a task's handler is being called."""
        if self._hooks:
            try:
                call_before(self._hooks, task.deliveries)
            except BaseException:
                self.hand_in_again(task, 0)  # it has not begun
                raise
        task.started_ms = self.now_ms()
        self._running[task] = task.started_ms

    def argument(self, task: Task) -> Any:
        """Return what the handler gets."""
        return list(task.deliveries) if self._as_list else task.deliveries[0]

    def break_off(self, task: Task) -> None:
        """Have a task handed in again whose handler came to no end, which says nothing of it."""
        if self._running.pop(task, None) is not None:
            self.hand_in_again(task, 0)

    def end(self, task: Task, result: Any, error: BaseException | None) -> Iterable[None]:
        """Do what the rules say of what a handler returned, or raised.

        Go through what this returns: at each step wait until all that was appended is durable.
        """
        deliveries = task.deliveries
        if self._running.pop(task, None) is None:
            log.warning("the handler of message %s ended, but after its timeout", deliveries[0].id)
        elif (
            elapsed_ms := (now_ms := self.now_ms()) - task.started_ms
        ) >= self.timeout_ms and not self._ordered:
            return self.finish(task, Outcome(0, TIMEOUT_LEVEL, error, True, elapsed_ms))
        elif result is None and error is None and not self._hooks:
            task.subscription.tally.respond(now_ms, elapsed_ms, len(deliveries))
            self._done(task)
        else:
            return self.finish(task, self._judge(task, result, error, elapsed_ms))
        return ()

    def _wait_through(self, steps: Iterable[None]) -> None:
        """Wait at each step, in the calling thread; what a closed store has not, comes again."""
        try:
            for _ in steps:
                self._source.wait_durable()
        except StoreClosedError:
            return

    def _judge(
        self, task: Task, result: Any, error: BaseException | None, elapsed_ms: float
    ) -> Outcome:
        count = len(task.deliveries)
        if error is None and result is None:
            return Outcome(count, None, None, False, elapsed_ms)
        if error is None and isinstance(result, Retry):
            if result.ack_index < count:
                wait = given_delay(result.delay, None)
                return Outcome(
                    result.ack_index,
                    result.delay_level,
                    *(None, False, elapsed_ms, wait, result.reason),
                )
            if result.ack_index == count and self._as_list:
                return Outcome(count, None, None, False, elapsed_ms)
            error = ValueError(
                f"the handler returned {said_by(result, repr)} for {count} messages. "
                f"Return an ack_index of {count} at most."
            )
        if error is None:
            said = said_by(result, repr)
            error = TypeError(f"the handler returned {said}. Return None, or a Retry.")
        return Outcome(0, 0, error, False, elapsed_ms)

    def finish(self, task: Task, outcome: Outcome) -> Iterator[None]:
        """Acknowledge what succeeded, send back the rest, and tell the hooks; steps as of `end`."""
        try:
            yield from self._settle(task, outcome)
        finally:
            call_after(self._hooks, task.deliveries, outcome)

    def _settle(self, task: Task, outcome: Outcome) -> Iterator[None]:
        count, subscription = len(task.deliveries), task.subscription
        good_count = min(outcome.ack_count, count)
        now_ms, bad_count = self.now_ms(), count - good_count
        subscription.tally.respond(now_ms, outcome.elapsed_ms, good_count, bad_count)
        if not bad_count:
            self._done(task)
            return
        subscription.count_failed(bad_count, 0, 0)
        good, rest = task.split(good_count)
        if good_count:
            self._done(good)
        try:
            self._tell(rest, outcome)
        except StoreClosedError:  # nobody can tell how often it failed before
            self._leave(rest, outcome.error)
            return
        if self._broadcast:
            self._done(rest, handled=False)
        elif not self._holds_back(rest, outcome):
            yield from self._send_back(rest, outcome)

    def _leave(self, task: Task, error: BaseException | None) -> None:
        """Leave a task to whoever has the store next, which hands it out again."""
        text, id = "%s: message %s cannot be asked for, and comes again", task.deliveries[0].id
        log.warning(text, task.subscription.topic, id, exc_info=shown_error(error))
        task.subscription.give_back(task)

    def _tell(self, rest: Task, outcome: Outcome) -> None:
        """Log what failed, how often it did, and when it comes again."""
        first = rest.deliveries[0]
        keys = [_key_of(delivery) for delivery in rest.deliveries]
        names = [_named(*each) for each in zip(rest.deliveries[:10], keys, strict=False)]
        text = ", ".join(names) + (
            f" and {len(rest.deliveries) - 10} more" if len(rest.deliveries) > 10 else ""
        )
        follows, next_ms = self._what_follows(rest, outcome)
        fields = {
            "topic": rest.subscription.topic,
            "group": self._group,
            "ids": [delivery.id for delivery in rest.deliveries],
            "keys": keys,
            "attempt": first.attempt,
            "next_ms": next_ms,
        }
        why = f": {outcome.reason}" if outcome.reason else ""
        if outcome.timed_out:
            why = f": the handler had not ended after {outcome.elapsed_ms:.0f} ms"
        is_failure = outcome.timed_out or outcome.error is not None or self._broadcast
        log.log(
            logging.ERROR if is_failure else logging.INFO,
            "%s: message %s %s%s%s",
            *(rest.subscription.topic, text, "failed" if is_failure else "is put off"),
            *(follows, why),
            exc_info=None if outcome.timed_out else shown_error(outcome.error),
            extra=fields,
        )

    def _what_follows(self, rest: Task, outcome: Outcome) -> tuple[str, int | None]:
        """Say what becomes of a message, and when it comes again, epoch ms if that is known."""
        if self._broadcast:
            return "", None
        wait, handed = self._wait_after(rest.deliveries[0].attempt, outcome), rest.handed
        if wait == DEAD:
            return " and becomes a dead letter", None
        if handed.expires_ms != NEVER:
            with suppress(TimerStoreError, OSError):
                if self._comes_too_late(handed, handed.message(rest.places[0]), wait):
                    return " and expires before it could come again", None
        next_ms = self._source.comes_ms(wait)
        when = f"after delay level {wait}" if next_ms is None else f"at {shown_time(next_ms)}"
        return f" and comes again {when}", next_ms

    def _holds_back(self, task: Task, outcome: Outcome) -> bool:
        """Have a message hold its line back; False: it is to be sent somewhere."""
        if not self._ordered:
            return False
        wait = self._wait_after(task.deliveries[0].attempt, outcome)
        if self._comes_too_late(task.handed, task.handed.message(task.places[0]), wait):
            return False
        return wait != DEAD and task.subscription.hold(task, wait)

    def _wait_after(self, attempt: int, outcome: Outcome) -> Wait:
        return wait_after(attempt, outcome, self._max_attempts, self._backoff)

    def _send_back(self, task: Task, outcome: Outcome | None) -> Iterator[None]:
        """Send each message of a task back; if that fails, hand them in again later.

        Without an outcome all of them have expired.
        """
        sent_count, dead_count, expired_count, failure = 0, 0, 0, None
        try:
            for i in range(len(task.places)):
                is_dead, is_expired = self._send_again(task, i, outcome)
                dead_count += is_dead
                expired_count += is_expired
                sent_count += 1
        except (TimerStoreError, OSError) as e:
            failure = e
        yield
        sent, rest = task.split(sent_count)
        if sent_count:
            back_count = sent_count - dead_count
            if not self._buries_expired:
                back_count -= expired_count
            task.subscription.count_failed(0, back_count, dead_count, expired_count)
            self._done(sent, handled=False)
        if rest.places:
            log.warning(
                "%d messages from %s on could not be sent back; this is tried again in %d s: %s",
                *(len(rest.places), rest.deliveries[0].id, AGAIN_MS // 1000, failure),
            )
            self.hand_in_again(rest, AGAIN_MS)

    def _send_again(self, task: Task, i: int, outcome: Outcome | None) -> tuple[bool, bool]:
        """Append a message again; tell whether it is a dead letter now, whether it expired."""
        handed, place, delivery = task.handed, task.places[i], task.deliveries[i]
        message, why = handed.message(place), None
        wait: Wait = DEAD
        if outcome is not None:
            why = failure_of(outcome)
            wait = self._wait_after(message.reconsume_times, outcome)
        is_expired = why is None or self._comes_too_late(handed, message, wait)
        if is_expired:
            wait = DEAD if self._buries_expired else DROPPED
        if why is None or is_expired:
            why = expired(expires_ms(message), why)
        is_dead = handed.send_again(place, wait, why) and wait == DEAD
        if is_dead:
            fields = {"topic": delivery.topic, "group": self._group, "ids": [delivery.id]}
            text = "%s: message %s is a dead letter now"
            log.error(text, delivery.topic, delivery.id, extra=fields)
        return is_dead, is_expired

    def _done(self, task: Task, *, handled: bool = True) -> None:
        """See that a task's messages do not come again, and what may begin now."""
        subscription = task.subscription
        try:
            subscription.done(task, handled=handled)
        except StoreClosedError:
            return  # they come again after reopening
        if self.on_room is not None:
            self.on_room()
        following = subscription.next_after(task)
        if following is not None:
            self._hand_in(following, 0, self.on_next)

    def hand_in_again(self, task: Task, after_ms: float) -> None:
        """Have `tend` return a task again after a while."""
        self._hand_in(task, after_ms, None)

    def _hand_in(self, task: Task, after_ms: float, on_next: Callable[[Task], None] | None) -> None:
        with self._again_lock.guard():
            if not self._over:
                if on_next is not None:
                    on_next(task)
                    return
                heapq.heappush(self._again, (self.now_ms() + after_ms, next(self._numbers), task))
                return
        task.subscription.give_back(task)

    # --- time

    def next_ms(self, *, begins: bool = True) -> float:
        """Return when `tend` has something to do next; infinity if nothing is known.

        `begins`: whether anything may begin then, or only timeouts count.
        """
        with self._again_lock.guard():
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
        """Yield each task whose handler takes too long; its result does not count any more."""
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
        with self._again_lock.guard():
            while self._again and self._again[0][0] <= now_ms:
                tasks.append(heapq.heappop(self._again)[2])
        return tasks

    def _tell_late(self, task: Task, elapsed_ms: float) -> None:
        """Say once that a handler keeps its line waiting: another call would overtake it."""
        if not task.is_late:
            task.is_late = True
            text = (
                "%s: the handler of message %s had not ended after %d ms; the messages of its "
                "line wait"
            )
            topic, id = task.subscription.topic, task.deliveries[0].id
            log.warning(text, topic, id, elapsed_ms, extra={"topic": topic, "ids": [id]})

    def shut(self) -> None:
        """Have nothing begin any more: what would, is given back."""
        with self._again_lock.guard():
            self._over = True

    def give_back_all(self, tasks: Sequence[Task]) -> None:
        """Let the groups have what was pulled, but not begun; after `shut`."""
        with self._again_lock.guard():
            waiting = [*tasks, *(task for _, _, task in self._again)]
            self._again.clear()
        for task in waiting:
            task.subscription.give_back(task)

    def running(self) -> list[Subscription]:
        """Return the subscription of each task that is being handled."""
        return [task.subscription for task in list(self._running)]


def failed_by(error: BaseException) -> BaseException:
    """Return what a message failed with whose handler raised `error`.

    A handler may raise what is no Exception: a panic of an extension, a time limit's. That says
    something of its message alone, as any error does.
    """
    if isinstance(error, SystemExit):
        return RuntimeError(f"the handler called sys.exit({said_by(error.code, repr)})")
    return error


def failure_of(outcome: Outcome) -> Failure:
    """Return what a dead letter is to say that it died of; the words are those of traces."""
    if outcome.timed_out:
        return Failure("timeout", f"the handler had not ended after {outcome.elapsed_ms:.0f} ms")
    if outcome.error is None:
        return Failure("retry", outcome.reason)
    return Failure.of(outcome.error)


def _key_of(delivery: Delivery) -> str | None:
    """Return a message's key; None too if it cannot be asked for any more."""
    try:
        return delivery.key
    except (TimerStoreError, OSError):
        return None


def _named(delivery: Delivery, key: str | None) -> str:
    named = "" if key is None else f"key {key!r}, "
    return f"{delivery.id} ({named}attempt {delivery.attempt})"
