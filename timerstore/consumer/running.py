"""What a consumer is made of; how it runs as a program's main part, until a signal comes.

Ground rules: a signal's handler sets a flag, nothing more; it may have come in the midst of any
call. The main thread, which waits for the flag, does what follows from it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Self

from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.handling import Handling
from timerstore.consumer.messagesource import Source
from timerstore.consumer.storesource import StoreSource
from timerstore.consumer.subscription import Subscription
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError
from timerstore.services.world.background import Flag
from timerstore.values.check_arguments import check_topic_to_consume
from timerstore.values.kinds import Duration, check_duration
from timerstore.watching.groups import GroupStats

# --- what it is made of, however its handlers are called


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
