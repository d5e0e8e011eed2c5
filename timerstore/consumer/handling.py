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
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from timerstore.calls.consuming.delivery import DEAD, Delivery, Failure, Wait, said_by
from timerstore.consumer.consumersettings import (
    TIMEOUT_LEVEL,
    Outcome,
    Retry,
    call_after,
    call_before,
    wait_after,
)
from timerstore.consumer.subscription import Source, Subscription, Task, Waiter
from timerstore.errors import StoreClosedError, TimerStoreError
from timerstore.jit.guards import Lock
from timerstore.services.world.background import BackgroundThread, Flag
from timerstore.values.amounts import shown_time
from timerstore.values.check_arguments import given_delay

log = logging.getLogger("timerstore")

AGAIN_MS: Final = 5_000
"""A message that could not be sent back is handed in again after this."""


class Handling:
    """Runs handlers by a consumer's rules."""

    def __init__(self, source: Source) -> None:
        self._source, self._store, told = source, source.store, source.settings
        self._group, self._broadcast, self._hooks = told.group, told.broadcast, told.hooks
        self._as_list, self._ordered = told.batch_count > 1, told.ordered is not False
        self._max_attempts, self._backoff = told.attempts_max, told.waits
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

    def _call_before(self, task: Task) -> None:
        try:
            call_before(self._hooks, task.deliveries)
        except BaseException:
            self.hand_in_again(task, 0)  # it has not begun
            raise

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
        self._tell(rest, outcome)
        if self._broadcast:
            self._done(rest, handled=False)
        elif not self._holds_back(rest, outcome):
            yield from self._send_back(rest, outcome)

    def _tell(self, rest: Task, outcome: Outcome) -> None:
        """Log what failed, how often it did, and when it comes again."""
        first = rest.deliveries[0]
        keys = [_key_of(delivery) for delivery in rest.deliveries]
        names = [_named(*each) for each in zip(rest.deliveries[:10], keys, strict=False)]
        text = ", ".join(names) + (
            f" and {len(rest.deliveries) - 10} more" if len(rest.deliveries) > 10 else ""
        )
        follows, next_ms = self._what_follows(first.attempt, outcome)
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
            exc_info=None if outcome.timed_out else outcome.error,
            extra=fields,
        )

    def _what_follows(self, attempt: int, outcome: Outcome) -> tuple[str, int | None]:
        """Say what becomes of a message, and when it comes again, epoch ms if that is known."""
        if self._broadcast:
            return "", None
        wait = self._wait_after(attempt, outcome)
        if wait == DEAD:
            return " and becomes a dead letter", None
        next_ms = self._source.comes_ms(wait)
        when = f"after delay level {wait}" if next_ms is None else f"at {shown_time(next_ms)}"
        return f" and comes again {when}", next_ms

    def _holds_back(self, task: Task, outcome: Outcome) -> bool:
        """Have a message hold its line back; False: it is to be sent somewhere."""
        if not self._ordered:
            return False
        wait = self._wait_after(task.deliveries[0].attempt, outcome)
        return wait != DEAD and task.subscription.hold(task, wait)

    def _wait_after(self, attempt: int, outcome: Outcome) -> Wait:
        return wait_after(attempt, outcome, self._max_attempts, self._backoff)

    def _send_back(self, task: Task, outcome: Outcome) -> Iterator[None]:
        """Send each message of a task back; if that fails, hand them in again later."""
        sent_count, dead_count, failure = 0, 0, None
        try:
            for i in range(len(task.places)):
                dead_count += self._send_again(task, i, outcome)
                sent_count += 1
        except (TimerStoreError, OSError) as e:
            failure = e
        yield
        sent, rest = task.split(sent_count)
        if sent_count:
            task.subscription.count_failed(0, sent_count - dead_count, dead_count)
            self._done(sent, handled=False)
        if rest.places:
            log.warning(
                "%d messages from %s on could not be sent back; this is tried again in %d s: %s",
                *(len(rest.places), rest.deliveries[0].id, AGAIN_MS // 1000, failure),
            )
            self.hand_in_again(rest, AGAIN_MS)

    def _send_again(self, task: Task, i: int, outcome: Outcome) -> bool:
        """Append a message again; tell whether it is a dead letter now."""
        handed, place, delivery = task.handed, task.places[i], task.deliveries[i]
        wait = self._wait_after(handed.message(place).reconsume_times, outcome)
        is_dead = handed.send_again(place, wait, failure_of(outcome)) and wait == DEAD
        if is_dead:
            fields = {"topic": delivery.topic, "group": self._group, "ids": [delivery.id]}
            text = "%s: message %s is a dead letter now"
            log.error(text, delivery.topic, delivery.id, extra=fields)
        return is_dead

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


# --- the threads of a consumer: a thread that has nothing to do pulls
#
# There is no thread that only pulls. A thread that finds no task takes the lead: it pulls what is
# there, or sleeps until something is fired; then it wakes another one to lead, while it handles
# what it pulled. Messages that need no time are so pulled and handled by one thread, which hands
# nothing over; handlers that wait occupy as many threads as they need.
#
# Ground rules: `_ready` and `_idle` are deques, whose appends and pops are atomic. `_leading` is
# held by the one that pulls. A thread that rests puts its gate, a lock that it holds, into
# `_idle`; who takes a gate out opens it. It looks for work once more after it put its gate there,
# so that no wake-up is lost between the two. At most one woken thread is on its way at a time
# (`_waking`): it wakes the next one itself.


_POLL_MS: Final = 50.0
"""The thread that leads looks up at least this often."""
_TEND_S: Final = 1.0
"""Handlers that take too long are looked for at least this often; more often if the time that they
have is short."""


class Threads:
    """Runs tasks in threads."""

    def __init__(self, source: Source, handling: Handling) -> None:
        self._source, self._handling = source, handling
        self._pull_count = source.settings.pull_count
        self.failure = source.failure
        self._ready: deque[Task] = deque()
        self._idle: deque[threading.Lock] = deque()
        self._leading = Lock()
        self._waking = False
        self._waits_for_room = False
        self._waiter: Waiter | None = None
        self.stopping = False
        """Whether its threads end, or have ended: it was asked to, or one of them has failed."""
        self._stop = Flag()
        self._threads: list[BackgroundThread] = []
        self._tending: list[BackgroundThread] = []  # the one that looks at the time
        handling.on_room, handling.on_next = self._room_was_made, self._ready.append

    def start(self, count: int, name: str) -> None:
        """Start `count` threads for handlers, and one that looks at the time."""
        for i in range(count):
            self._threads.append(BackgroundThread(f"{name}-{i}", self._run, self._fail))
        self._tending.append(BackgroundThread(f"{name}-time", self._tend, self._fail))
        try:
            for thread in (*self._threads, *self._tending):
                if not self.stopping:  # a handler may close the consumer before all have begun
                    thread.start()
        except BaseException:
            self.stop(None)
            raise

    def stop(self, timeout_s: float | None) -> bool:
        """Let handlers finish; return whether all did within `timeout_s`. Nothing new begins."""
        self._end()
        if timeout_s is not None:  # the longest that Python can wait is 292 years
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX / 2)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in (*self._threads, *self._tending):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._handling.shut()
        self._handling.give_back_all(self._take_ready())
        return not any(each.is_alive and not each.is_current for each in self._threads)

    def _end(self) -> None:
        self.stopping = True
        self._stop.set()
        self._wake_all()

    def _take_ready(self) -> list[Task]:
        tasks: list[Task] = []
        while True:
            try:
                tasks.append(self._ready.popleft())
            except IndexError:
                return tasks

    # --- a thread's life

    def _run(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        ready, idle, leading, handle = self._ready, self._idle, self._leading, self._handling.run
        while not self.stopping:
            try:
                task = ready.popleft()
            except IndexError:
                with leading.if_free.guard() as leads:
                    if leads:
                        self._lead()
                if not leads:
                    self._rest(gate)
                continue
            try:
                if idle and not self._waking and (ready or not leading.locked()):
                    self._wake_one()
            except BaseException:
                ready.append(task)  # it has not begun
                raise
            handle(task)
        self._wake_all()  # a signal may have ended the call that stops us

    def _lead(self) -> None:
        """Pull tasks; return once there are any."""
        tasks: list[Task] = []
        with self._source.waiter() as waiter:
            self._waiter = waiter
            try:
                while not tasks:
                    waiter.arm()  # before it looks: who wakes it later ends the wait
                    if self._ready or self.stopping:
                        break
                    self._waits_for_room = True  # likewise
                    tasks, limited = self._source.pull(self._count_max())
                    self._waits_for_room &= limited
                    if not tasks:
                        waiter.wait(min(_POLL_MS, self._source.turn_ms()))
            finally:
                self._waiter, self._waits_for_room = None, False
        self._ready.extend(tasks)

    def _count_max(self) -> int:
        """Return how many to pull: at a rate no more than can begin at once."""
        told = self._source.settings
        if told.turns is None:
            return self._pull_count
        return min(self._pull_count, (len(self._idle) + 1) * told.batch_count)

    def _rest(self, gate: threading.Lock) -> None:
        """Sleep until another thread has something for this one."""
        self._idle.append(gate)
        if self.stopping or self._ready or not self._leading.locked():
            try:
                self._idle.remove(gate)
            except ValueError:
                gate.acquire()  # somebody took it: it is open, or will be at once
                self._waking = False
            return
        gate.acquire()
        self._waking = False

    def _wake_one(self) -> None:
        self._waking = True
        try:
            self._idle.pop().release()  # the one that rests for the shortest time is the warmest
        except IndexError:
            self._waking = False

    def _wake_all(self) -> None:
        self._wake_leader()
        while self._idle:
            self._wake_one()

    def _wake_leader(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            waiter.wake()

    def _room_was_made(self) -> None:
        if self._waits_for_room:
            self._waits_for_room = False
            self._wake_leader()

    # --- time

    def _tend(self) -> None:
        """Find handlers that take too long, and hand in again what waits for that."""
        while not self.stopping:
            left_ms = self._handling.next_ms() - self._handling.now_ms()
            at_most_ms = min(1_000 * _TEND_S, self._handling.timeout_ms / 4)
            wait_s = max(10.0, min(at_most_ms, left_ms)) / 1000
            if self._stop.wait(wait_s):
                return
            self.hand_in(self._handling.tend())

    def hand_in(self, tasks: Sequence[Task]) -> None:
        """Give tasks to the threads."""
        if tasks:
            self._ready.extend(tasks)
            self._wake_leader()
            self._wake_one()

    def _fail(self, error: BaseException) -> None:
        """Stop all threads; the error is raised by the consumer's next call."""
        try:
            if isinstance(error, StoreClosedError) or self._source.store.closed:
                log.debug("the consumer stops, because its store failed: %s", error)
            else:
                self.failure.keep(error)
                log.error("the consumer has stopped", exc_info=error)
        finally:
            self._end()
