"""The concurrent consumer: handlers in threads, retries that wait longer each time, dead letters.

It is run beside a program, or as its main part. On a manual clock there are no threads: `step`, or
the clock's `advance`, runs the handlers.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, Final, Self, TypeVar, cast

from timerstore.calls.consuming.consuming import Start
from timerstore.calls.consuming.dead_letters import DeadLetter
from timerstore.calls.consuming.delivery import LISTED_MAX
from timerstore.calls.pending.is_pending import first_due_ms
from timerstore.consumer.consumersettings import ConsumerSettings, ExpiredRule, Hook, Ordered
from timerstore.consumer.handling import Handling
from timerstore.consumer.sources import StoreSource
from timerstore.consumer.subscription import ALL_TAGS, Handler, Source, Subscription, check_handler
from timerstore.consumer.threads import Threads
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.services.engine.holds import while_held
from timerstore.services.world.background import Flag
from timerstore.services.world.clock import ManualClock, attend, leave
from timerstore.values.check_arguments import check_topic_to_consume
from timerstore.values.kinds import Duration, check_bool, check_duration, check_int
from timerstore.values.no_pickle import Closes
from timerstore.watching.any_store import AnyStore
from timerstore.watching.common_calls import CommonCalls
from timerstore.watching.groups import GroupStats

# --- what a consumer is made of; how it runs as a program's main part, until a signal comes
#
# Ground rules: a signal's handler sets a flag, nothing more; it may have come in the midst of any
# call. The main thread, which waits for the flag, does what follows from it.


NEW, STARTED, CLOSED = "new", "started", "closed"


class Workings:
    """A source, the rules, the topics with their handlers, and how far the consumer has come."""

    def __init__(self, source: Source) -> None:
        self.source, self.settings = source, source.settings
        self.handling = Handling(source)
        self.subscriptions: list[Subscription] = []
        self.state = NEW

    def subscribe(self, topic: str, handler: Any, tags: str) -> None:
        """Take a handler of any kind."""
        self.source.store.check_process()
        check_topic_to_consume(topic)
        if self.state != NEW:
            raise InvalidArgumentError(
                "The consumer was started already. Call subscribe() before start()."
            )
        if any(known.topic == topic for known in self.subscriptions):
            raise InvalidArgumentError(
                f"{topic!r} has a handler already. Subscribe one handler that calls both."
            )
        if self.settings.turns is not None and tags != ALL_TAGS:
            raise InvalidArgumentError(
                f"tags is {tags!r}, and the consumer has a rate: messages of other tags would take "
                "turns too. Leave tags out, or put what has a rate into a topic of its own."
            )
        subscription = self.source.subscription(topic, handler, tags)
        subscription.hold_back = self.handling.hand_in_again
        self.subscriptions.append(subscription)

    def start(self) -> None:
        """Begin to read, without anybody who calls handlers yet."""
        self.source.store.check_writable()
        if self.state != NEW:
            raise InvalidArgumentError(
                "The consumer was started before, and starts only once. Make another one."
            )
        if not self.subscriptions:
            raise InvalidArgumentError(
                "The consumer has no handler. Call subscribe() before start()."
            )
        self.begin()

    def begin(self) -> None:
        """Begin to read, also if there is nothing to read yet."""
        self.source.begin(self.subscriptions)
        self.state = STARTED

    def end(self) -> None:
        """Let others have what waits, once nobody calls handlers any more; may be called twice."""
        self.handling.shut()
        self.handling.give_back_all([])
        for subscription in self.subscriptions:
            for task in subscription.waiting():
                subscription.give_back(task)
        self.source.close()
        self.state = CLOSED

    def __repr__(self) -> str:
        topics = ", ".join(each.topic for each in self.subscriptions)
        return f"Consumer {self.settings.group!r} of {topics or 'nothing'}, {self.state}"


def source_of(store: Any, settings: ConsumerSettings) -> Source:
    """Return the source of a plain consumer: a client says which is its own."""
    new_source = getattr(store, "new_source", None)
    if new_source is not None:
        source: Source = new_source(settings)
        return source
    if not isinstance(getattr(store, "core", None), Core):
        raise InvalidArgumentError(f"store is {store!r}. Pass a TimerStore.")
    return StoreSource(store.core, store.consuming, settings)


# --- as a program's main part, until a signal comes


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK_S: Final = 0.5
"""So soon at the latest is noticed what happened in another thread: a signal, an error."""
JOIN_S: Final = 0.05
"""A second signal is noticed so soon while handlers end."""


def check_main_thread() -> None:
    """Refuse to run if no signal can come."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgumentError(
            f"run() was called in the thread {threading.current_thread().name!r}, and only the "
            "main thread receives signals. Call run() there, or call start() here and close() at "
            "the end."
        )


class Signals:
    """SIGTERM and SIGINT while a consumer runs.

    The first asks it to end, the second to hurry; a third does what it did before.
    """

    def __init__(self) -> None:
        self.number = 0
        """Which one came last."""
        self.count = 0
        self._came = Flag()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Take them; they are given back at the end."""
        for number in SIGNALS:
            self._before[number] = signal.getsignal(number)
            self.install(number)
        return self

    def __exit__(self, *ignored: object) -> None:
        self.restore()

    def install(self, number: int) -> None:
        """Have a signal handled."""
        signal.signal(number, self.handle)

    def restore(self) -> None:
        """Have them do what they did before."""
        for number, before in self._before.items():
            if before is not None:  # None: it was set by code that is not Python's
                signal.signal(number, before)

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """Note that one came."""
        self.number = number
        self.count += 1
        if self.count > 1:
            self.restore()
        self._came.set()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Return once a signal came, or it is over anyway."""
        while not (is_over() or self._came.wait(_LOOK_S)):
            pass

    def let_end(self, stop: Callable[[float], bool], timeout_s: float | None) -> bool:
        """Wait for handlers until all have ended, and tell whether they have.

        A second signal ends the wait, or `timeout_s`. `stop` waits for so many seconds.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not stop(JOIN_S):
            if self.count > 1 or (until_s is not None and time.monotonic() >= until_s):
                return False
        return True


def seconds_of(timeout: Duration | None) -> float | None:
    """Return how long to wait for handlers, None for ever, or refuse it."""
    return None if timeout is None else check_duration(timeout, "timeout").total_seconds()


def exit_status(number: int, *, ended: bool, failed: bool) -> int:
    """Return a consumer's: 1 an error, 128 + the signal's number if handlers did not end."""
    if failed:
        return 1
    return 0 if ended else 128 + number


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A look at one topic of a consumer.

    `handled_per_s`, `failed_per_s`: messages a second over the last minute, of all who read under
    this group's name in this process. `running_count`: calls of this topic's handler that have
    neither ended nor timed out. `group`: its backlog, its counters, how long handlers take.
    """

    topic: str
    handled_per_s: float
    failed_per_s: float
    running_count: int
    group: GroupStats


def read_consumer_stats(workings: Workings) -> tuple[ConsumerStats, ...]:
    """Return a row for each topic. O(queues of these topics)."""
    source, subscriptions = workings.source, workings.subscriptions
    source.store.check_process()
    looked = source.look([each.topic for each in subscriptions])
    running, now_ms, found = workings.handling.running(), source.store.steady_ms(), []
    for each, (row, tally) in zip(subscriptions, looked, strict=True):
        handled, failed = tally.per_s(now_ms)
        count = sum(subscription is each for subscription in running)
        found.append(ConsumerStats(each.topic, handled, failed, count, row))
    return tuple(found)


# --- the public class


log = logging.getLogger("timerstore")

THREADS_MAX: Final = 1_024
"""Threads of a consumer: each has a stack."""
_H = TypeVar("_H", bound=Handler)


class Consumer(Closes):
    """Calls handlers with what falls due, in threads, and retries what fails.

    A handler gets a `Delivery`, or with `batch_count` above 1 a list of them. If it returns None,
    they are acknowledged. If it raises, returns a `Retry`, or takes longer than `timeout`, they
    come again through the delay levels, later each time. After `max_attempts` retries they become
    dead letters, in the topic `%DLQ%group`. Handlers run at least once: after a crash a message may
    come again, with the same id.

    >>> consumer = timerstore.Consumer(store, "mailer")
    >>> @consumer.on("reminders")
    ... def send(d):
    ...     print(d.body)
    >>> with consumer:
    ...     id = store.put(b"hello", topic="reminders")
    ...     handled = consumer.step()  # on a manual clock; else threads do it
    b'hello'
    """

    def __init__(
        self,
        store: AnyStore | CommonCalls,
        group: str,
        *,
        threads: int = 20,
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
        """Make a consumer; `start` begins.

        `threads`: how many handlers run at the same time. `pull_count`: messages read at once.
        `max_attempts`: retries before a message is given up; None: never. `backoff`: waits instead
        of the delay levels, to the millisecond: after the first failure, the second, and so on; the
        last one repeats. `timeout`: after this time a handler's messages are sent back. The handler
        is not stopped, and keeps its thread until it ends. `hooks`: see `Hook`.

        `ordered`: with True the messages of a topic, with "key" those with the same key, are
        handled one after the other. A message that fails holds back those behind it.
        docs/consumer.md has the rules.

        `broadcast`: each instance gets every message, and failures are only logged; `instance`
        names it if a group has several. `start`: where a group begins that never read the topic:
        "earliest", "latest", or epoch milliseconds. `expired`: whether messages that come after
        their `expires` (see `put`) are dropped, or become dead letters of the type `expired`.

        `rate`: at most so many messages of each topic, such as "100/s", "10/m", "5/h"; with
        `rate_by` of each value of that property. `burst`: so many may come at once; None: what a
        tenth of a second is worth, or 1. What waits for its turn holds no thread. All consumers of
        the group need the same. docs/howto/rates.md has the rules.
        """
        self._threads_count = check_int(threads, "threads", 1, THREADS_MAX)
        settings = ConsumerSettings.of(locals())
        self._workings = Workings(source_of(store, settings))
        self.store, self.group = cast("AnyStore", store), group
        self._open_store, self._stepper = self._workings.source.store, stepper_of(self._workings)
        self._threads: Threads | None = None

    # --- subscribing

    def on(self, topic: str, *, tags: str = "*") -> Callable[[_H], _H]:
        """Subscribe the decorated function to a topic; see `subscribe`."""
        check_topic_to_consume(topic)

        def take(handler: _H) -> _H:
            self.subscribe(topic, handler, tags=tags)
            return handler

        return take

    def subscribe(self, topic: str, handler: Handler, *, tags: str = "*") -> None:
        """Call `handler` with a topic's messages. Do this before `start`, once for each topic.

        `tags`: "a||b" for messages with one of these tags, "*" for all. Messages with other tags
        are done for the whole group, so all its consumers need the same subscriptions. Retries are
        not filtered.
        """
        check_handler(handler)
        self._workings.subscribe(topic, handler, tags)

    # --- running

    def start(self) -> None:
        """Begin to call handlers. The start of a new group is durable on return.

        With a manual clock no thread is started. The clock's `advance` calls handlers, each at the
        time at which its message falls due.
        """
        self._workings.start()
        if self._stepper is not None:
            self._stepper.start()
        else:
            self._threads = Threads(self._workings.source, self._workings.handling)
            self._threads.start(self._threads_count, f"timerstore-{self.group}")

    def run(self, *, timeout: Duration | None = None, close_store: bool = True) -> int:
        """Call handlers until SIGTERM or SIGINT comes, then end; return an exit status.

        Call it in a program's main thread. It calls `start` if that was not done. At the signal
        nothing new begins; the consumer waits for running handlers, `timeout` at most, then closes
        the store unless `close_store` is False. After a second signal it does not wait any more. A
        third one does what such a signal did before `run`.

        Returns 0: all handlers have ended. 1: an error ended it; it was logged, and is in `error`.
        128 + the signal's number: handlers still run; their messages come again. Raises what
        `start` raises.

        >>> sys.exit(consumer.run())  # doctest: +SKIP
        """
        self._open_store.check_process()
        check_main_thread()
        timeout_s = seconds_of(timeout)
        check_bool(close_store, "close_store")
        if self._stepper is not None:
            raise InvalidArgumentError(
                "The store has a manual clock, so a consumer cannot run in threads. Move the "
                "clock, or call step()."
            )
        with Signals() as signals:
            if self._workings.state != STARTED:
                self.start()
            threads = self._threads
            assert threads is not None
            signals.wait(lambda: threads.stopping)
            self._workings.state = CLOSED
            ended = signals.let_end(self._stop, timeout_s)
            failed = self.error is not None
            if close_store:
                try:
                    self.store.close()
                except (TimerStoreError, OSError) as e:
                    log.error("%r: closing failed: %s", self.store, e)
                    failed = True
            return exit_status(signals.number, ended=ended, failed=failed)

    def step(self) -> int:
        """With a manual clock, call handlers with all that is due now; return how many messages.

        For tests. Handlers run in the calling thread, one after the other. It works with and
        without `start`.
        """
        self._open_store.check_process()
        if self._stepper is None:
            raise InvalidArgumentError(
                "step() is for a store with a manual clock, and this store has the wall clock. "
                "Call start() instead."
            )
        if self._workings.state == CLOSED:
            raise InvalidArgumentError("The consumer was closed. Make another one.")
        self._open_store.check_writable()
        if self._workings.state == NEW:
            self._workings.begin()
        return self._stepper.step()

    # --- the end

    def close(self, timeout: Duration | None = None) -> bool:
        """Begin nothing new, and wait until all handlers have ended, `timeout` at most.

        Return whether they have ended. The next consumer of the group gets what was not begun. A
        handler that still runs goes on; its messages are acknowledged when it ends, if the store is
        open then. Closing twice does nothing. If an exception interrupts it (Ctrl-C), call it
        again: it goes on. If an error had stopped the consumer, it raises that error. In a forked
        child it does nothing.
        """
        timeout_s = seconds_of(timeout)
        if self._open_store.forked:
            return True
        was_started, self._workings.state = self._workings.state == STARTED, CLOSED
        if not was_started:
            return True
        try:
            ended = self._stop(timeout_s)
        except BaseException:
            self._workings.state = STARTED  # a signal's, say: the next call goes on
            raise
        if self._threads is not None:
            self._threads.failure.check()
        return ended

    def _stop(self, timeout_s: float | None) -> bool:
        ended = True
        self._workings.handling.shut()
        if self._stepper is not None:
            self._stepper.stop()
        if self._threads is not None:
            ended = self._threads.stop(timeout_s)
        self._workings.end()
        return ended

    @property
    def error(self) -> BaseException | None:
        """The error that stopped it; None while it works."""
        return None if self._threads is None else self._threads.failure.error

    def __enter__(self) -> Self:
        """Start; leaving the block closes it and waits for handlers."""
        self.start()
        return self

    def __repr__(self) -> str:
        return f"<{self._workings!r}>"

    # --- looking

    def stats(self) -> tuple[ConsumerStats, ...]:
        """Return a row for each of its topics. O(queues of these topics)."""
        return read_consumer_stats(self._workings)

    # --- dead letters

    def dead_letters(self, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return the group's dead letters; see `TimerStore.dead_letters`."""
        return self.store.dead_letters(self.group, limit)

    def retry_dead_letters(
        self, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Put the group's dead letters back; see `TimerStore.retry_dead_letters`.

        May be called before `start` too.
        """
        return self.store.retry_dead_letters(self.group, limit, ids=ids)

    def drop_dead_letters(
        self, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give the group's dead letters up for good; see `TimerStore.drop_dead_letters`."""
        return self.store.drop_dead_letters(self.group, limit, ids=ids)


class Stepper:
    """Calls handlers one after the other, in the calling thread; an `Attendant` of its clock."""

    def __init__(self, workings: Workings, core: Core, clock: ManualClock) -> None:
        self._workings, self._core, self._clock = workings, core, clock
        self._is_stepping = False

    def start(self) -> None:
        """Call handlers whenever the clock moves."""
        attend(self._clock, self)

    def stop(self) -> None:
        """Stop doing so."""
        leave(self._clock, self)

    def step(self) -> int:
        """Run what is due now, and what that puts; return how many messages."""
        self._core.play_now()
        return self._step()

    def _step(self) -> int:
        """Run what is there; within a handler nothing new is begun."""
        handling, source = self._workings.handling, self._workings.source
        tasks = handling.tend()
        if self._is_stepping:
            for task in tasks:
                handling.hand_in_again(task, 0)
            return 0
        self._is_stepping, count = True, 0
        try:
            while tasks or (tasks := source.pull(source.settings.pull_count)[0]):
                task = tasks.pop(0)
                count += len(task.deliveries)
                handling.run(task)
                tasks += handling.tend()
        finally:
            self._is_stepping = False
            for task in tasks:
                handling.hand_in_again(task, 0)
        return count

    def next_ms(self, start_ms: int, stop_ms: int) -> int:
        """Return the time at which an advancing clock has to stop for this consumer."""
        if self._core.closed:
            return stop_ms
        first = while_held(lambda: first_due_ms(self._core, start_ms + 1, stop_ms))
        next_ms = self._workings.handling.next_ms(begins=not self._is_stepping)
        if not self._is_stepping:
            next_ms = min(next_ms, start_ms + self._workings.source.turn_ms())
        pauses_end = [each.end_ms for each in self._core.switches.list(start_ms)]
        return math.ceil(min(first, max(next_ms, start_ms + 1), stop_ms, *pauses_end))

    def arrived(self) -> None:
        """Call handlers at the clock's present time."""
        if not self._core.closed and self._workings.state == STARTED:
            self._step()


def stepper_of(workings: Workings) -> Stepper | None:
    """Return what calls the handlers if the clock is a manual one."""
    source = workings.source
    if isinstance(source, StoreSource) and isinstance(source.core.clock, ManualClock):
        return Stepper(workings, source.core, source.core.clock)
    return None
