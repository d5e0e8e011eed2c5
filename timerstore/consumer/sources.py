"""A consumer's sources: an open store, with an ordered consumer's subscription; another process."""

from __future__ import annotations

import logging
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from timerstore.calls.consuming.consuming import Consuming, begin_groups
from timerstore.calls.consuming.delivery import (
    HandedOut,
    Wait,
    dead_topic,
    first_failed_ms,
)
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.sendback import wait_durable, wait_ms
from timerstore.consumer.consumersettings import ConsumerSettings, Ordered
from timerstore.consumer.subscription import (
    Handler,
    Held,
    LimitedSubscription,
    Limits,
    OpenClient,
    PullWaiter,
    Source,
    Subscription,
    Task,
)
from timerstore.core.core import Core
from timerstore.core.waiting import Waiter
from timerstore.errors import InvalidArgumentError
from timerstore.jit.guards import Lock
from timerstore.services.world.background import Failure
from timerstore.values.config import Config
from timerstore.values.kinds import whole_ms
from timerstore.watching.groups import GroupStats, read_groups

# --- an ordered consumer's subscription: messages are pulled ahead, each waits for its turn
#
# What fails is held back in memory: it is handed out, and not acknowledged, so the queue's offset
# stays before it, and after a crash it comes first again. What was done behind it is kept with the
# offset, how often it failed beside the groups' counters (`calls/consuming/grouptally.py`).


#
# A line is a topic, or a key of one. Its first message is ready, or being handled, or waits for its
# next attempt; the others wait here. A message without a line waits for nobody.
#
# Ground rules: any thread may call anything; one lock, held for a few steps. Tasks come in the
# order of firing, from one thread at a time.


WHOLE: Final = ""
"""The one line of a topic."""


def line_of(task: Task, ordered: Ordered) -> str | None:
    """Return the line that a task belongs to, None for none."""
    return task.deliveries[0].key if ordered == "key" else WHOLE


class Lines:
    """The lines of one topic."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Task]] = {}
        self._lock = Lock()

    def enter(self, tasks: Sequence[Task]) -> list[Task]:
        """Take tasks in; return those that are the first of their line."""
        first = []
        with self._lock.guard():
            for task in tasks:
                if task.line is not None:
                    waiting = self._waiting.get(task.line)
                    if waiting is not None:
                        waiting.append(task)
                        continue
                    self._waiting[task.line] = deque()
                first.append(task)
        return first

    def leave(self, task: Task) -> Task | None:
        """Let the first of a line go; return the next one, if there is any."""
        if task.line is None:
            return None
        with self._lock.guard():
            waiting = self._waiting.get(task.line)
            if waiting:
                return waiting.popleft()
            self._waiting.pop(task.line, None)
            return None

    def take_all(self) -> list[Task]:
        """Return all that wait; the lines are gone."""
        with self._lock.guard():
            found = [task for waiting in self._waiting.values() for task in waiting]
            self._waiting.clear()
        return found

    def __len__(self) -> int:
        return len(self._waiting)


# --- the same for an ordered consumer


log = logging.getLogger("timerstore")

SPANS_AHEAD: Final = 10
"""By key: so many times `inflight_span_max` may lie between what is held back and what is read."""


def ordered_limits(limits: Limits, ordered: Ordered, pull_count: int) -> Limits:
    """Return how much of a queue is read ahead: of one line little, of many what memory allows."""
    if ordered == "key":
        span = limits.span
        return replace(limits, count=max(limits.count, span), span=SPANS_AHEAD * span)
    return replace(limits, count=min(limits.count, 2 * pull_count))


class OrderedSubscription(LimitedSubscription):
    """One topic with its handler, and its lines."""

    def __init__(self, topic: str, handler: Handler, tags: str, ordered: Ordered) -> None:
        super().__init__(topic, handler, tags)
        self._ordered, self.lines = ordered, Lines()
        self._in_flight_count = 0  # of this topic alone
        self._closed = self._told = False

    def open(
        self, consuming: Consuming, group: str, limits: Limits, held: defaultdict[int, Held]
    ) -> None:
        """Begin to read, as the only consumer."""
        super().open(consuming, group, limits, held)
        self._held_back, self._closed = consuming.held_back(self.topic, group), False
        try:
            handed_out = self.group.belong_to(self._room)
            if handed_out is not None:
                raise InvalidArgumentError(
                    f"Other consumers of the group {group!r} hold {handed_out} messages of "
                    f"{self.topic!r}. An ordered consumer must be the only one: close the others "
                    "first."
                )
        except BaseException:
            self.close()
            raise

    # --- pulling

    def tasks(self, handed: HandedOut, held: Held, batch_count: int) -> list[Task]:
        """Return the tasks of what was handed out, and count these messages."""
        tasks = super().tasks(handed, held, batch_count)
        with self.lock.guard():
            self._in_flight_count += sum(len(task.places) for task in tasks)
        return tasks

    def pull(self, count_max: int, batch_count: int) -> list[Task]:
        """Return tasks whose turn it is; what has to wait is read all the same, within limits."""
        while tasks := super().pull(count_max, batch_count):
            self._told = False
            try:
                for task in tasks:
                    task.line = line_of(task, self._ordered)
                    self._go_on_from(task)
            except BaseException:
                for task in reversed(tasks):
                    self.give_back(task)
                raise
            ready = [task for task in self.lines.enter(tasks) if not self._is_early(task)]
            if ready:
                return ready
        if self.limited and not self._told and self._ordered == "key":
            self._told = True
            text = "%s: nothing more is read until a message of the %d lines that wait is done"
            log.warning(text, self.topic, len(self.lines), extra={"topic": self.topic})
        return []

    def _go_on_from(self, task: Task) -> None:
        """Go on counting if an earlier consumer held the message back."""
        known = self._held_back.get(self._place(task) or (-1, -1))
        if known is not None:
            attempt, first_ms, task.again_ms, task.wait_ms = known
            _run_of(task).say_failed(task.places[0], attempt, first_ms)

    def _is_early(self, task: Task) -> bool:
        left_ms = task.again_ms - self.group.core.clock.now_ms
        if left_ms <= 0:
            return False
        self.hold_back(task, min(left_ms, task.wait_ms))  # the clock may have been set
        return True

    def _place(self, task: Task) -> tuple[int, int] | None:
        """Return queue id and index of a message; None of one that was sent back before."""
        run = _run_of(task)
        if run.is_retry:
            return None
        queue_id = int(self.group.core.engine.queues.table.queue_id[run.cursor.row])
        return queue_id, int(run.indexes[task.places[0]])

    # --- what became of them

    def hold(self, task: Task, wait: Wait) -> bool:
        """Have a message that failed come again, the first of its line, with an attempt more.

        False if a put has acknowledged it.
        """
        run, core = _run_of(task), self.group.core
        if run.is_done(task.places[0]):
            return False
        waits_ms = wait_ms(core, wait)
        now_ms, message = core.clock.now_ms, run.message(task.places[0])
        first_ms = first_failed_ms(message.properties) or now_ms
        attempt = message.reconsume_times + 1
        run.say_failed(task.places[0], attempt, first_ms)
        place = self._place(task)
        if place is not None:
            with self.lock.guard():
                self._held_back[place] = attempt, first_ms, now_ms + waits_ms, waits_ms
        self.count_failed(0, 1, 0)
        self.hold_back(task, waits_ms)
        return True

    def done(self, task: Task, *, handled: bool = True) -> None:
        """Settle the message of a task."""
        super().done(task, handled=handled)
        place = self._place(task)
        if place in self._held_back:
            with self.lock.guard():
                self._held_back.pop(place, None)

    def next_after(self, task: Task) -> Task | None:
        """Return what comes next in the line of a task that is done."""
        return self.lines.leave(task)

    def waiting(self) -> list[Task]:
        """Return all that wait for their turn; they are to be given back."""
        return self.lines.take_all()

    def close(self) -> None:
        """Let others read, once nothing is handed out any more."""
        super().close()
        self._closed = True
        self._let_go()

    def _release(self, task: Task) -> None:
        super()._release(task)
        with self.lock.guard():
            self._in_flight_count -= len(task.places)
        if self._closed:
            self._let_go()

    def _let_go(self) -> None:
        with self.lock.guard():
            if self.group.owner == self._room and self._in_flight_count == 0:
                self.group.belong_to_all()


def _run_of(task: Task) -> Run:
    """Return what a task's message was handed out in: only an open store has lines."""
    assert isinstance(task.handed, Run)
    return task.handed


# --- the source


class StoreSource(Source):
    """Reads by the groups of a store that this process has open."""

    def __init__(self, core: Core, consuming: Consuming, settings: ConsumerSettings) -> None:
        self.store = self.core = core
        self.settings, self._consuming = settings, consuming
        self.topics: Sequence[LimitedSubscription] = ()
        self.failure = Failure()
        self._turn = 0
        self._is_named = False  # among those that broadcast

    def subscription(self, topic: str, handler: Any, tags: str) -> LimitedSubscription:
        """Return what a handler of a topic gets its messages through."""
        if self.settings.ordered:
            return OrderedSubscription(topic, handler, tags, self.settings.ordered)
        made = LimitedSubscription(topic, handler, tags)
        made.rate = self.settings.turns
        return made

    def comes_ms(self, wait: Wait) -> int:
        """Return when what waits from now on comes again, epoch ms."""
        return self.core.clock.now_ms + wait_ms(self.core, wait)

    def begin(self, subscriptions: Sequence[Any]) -> None:
        """Begin to read, all topics or none. Durable on return: where a new group starts."""
        try:
            self._begin(subscriptions)
        except BaseException:
            self.close()
            raise

    def _begin(self, subscriptions: Sequence[Any]) -> None:
        told, reads_as = self.settings, self.settings.reads_as
        self.topics = ()
        if told.broadcast:
            names = _broadcasting.setdefault(self.core, set())
            if reads_as in names:
                raise InvalidArgumentError(
                    f"Another consumer of the group {told.group!r} has the same instance. Pass "
                    "each consumer an instance of its own."
                )
            names.add(reads_as)
            self._is_named = True
        pairs = [(each.topic, reads_as) for each in subscriptions]
        begin_groups(self._consuming, pairs, told.start)
        if not told.broadcast:
            # If nobody has read the dead letters, this keeps retention from removing them.
            begin_groups(self._consuming, [(dead_topic(told.group), told.group)], "earliest")
        held: defaultdict[int, Held] = defaultdict(Held)
        limits = Limits.of(self.core.engine.config)
        if told.ordered:
            limits = ordered_limits(limits, told.ordered, told.pull_count)
        for each in subscriptions:
            each.open(self._consuming, reads_as, limits, held)
            self.topics = *self.topics, each
            each.group.buries_expired = told.buries_expired
        topics = [each.topic for each in subscriptions]
        self._consuming.begin_consumer(reads_as, topics, self.failure)

    def pull(self, count_max: int) -> tuple[list[Task], bool]:
        """Pull from the next topic that has something; tell whether limits kept any back."""
        limited, batch_count = False, self.settings.batch_count
        for i in range(len(self.topics)):
            place = (self._turn + i) % len(self.topics)
            subscription = self.topics[place]
            tasks = subscription.pull(count_max, batch_count)
            if not tasks and subscription.may_hide and self.make_visible(subscription.group):
                tasks = subscription.pull(count_max, batch_count)
            if tasks:
                self._turn = place + 1
                return tasks, False
            limited |= subscription.limited
        self.core.check_open()
        return [], limited

    def make_visible(self, group: Group) -> bool:
        """Under "group" durability, make durable what was fired; tell if any was."""
        return group.make_visible()

    def turn_ms(self) -> float:
        """Return how long it is until something has its turn, or is tried again; or infinity."""
        again_ms = min(each.group.again_ms() for each in self.topics)
        if self.settings.turns is None:
            return again_ms
        return min(again_ms, *(each.group.turn_ms() for each in self.topics))

    def waiter(self) -> AbstractContextManager[Waiter]:
        """Lend who sleeps until something is fired."""
        return self.core.waiters.waiter()

    def wait_durable(self) -> None:
        """Return once all that was sent back is as durable as a put."""
        wait_durable(self._consuming.putting)

    def close(self) -> None:
        """Stop reading."""
        self._consuming.consumers.pop(self.failure, None)
        for each in self.topics:
            each.close()
        if self._is_named:
            _broadcasting.get(self.core, set()).discard(self.settings.reads_as)
            self._is_named = False

    def look(self, topics: Sequence[str]) -> list[tuple[GroupStats, GroupTally]]:
        """Tell how far the group has come with topics, and what became of what it read."""
        reads_as = self.settings.reads_as
        with self.core.gate.guard():
            self.core.check_open(stopped=True)
            pairs = [(topic, reads_as) for topic in topics]
            rows = {row.topic: row for row in read_groups(self.core, self._consuming, pairs)}
            return [(rows[topic], self._consuming.group(topic, reads_as).tally) for topic in topics]


_broadcasting: weakref.WeakKeyDictionary[Core, set[str]] = weakref.WeakKeyDictionary()


# --- a source whose messages another process hands out: the owner of a store, or a cluster
#
# A pull asks there, and waits there until something comes.


class RemoteSource(Source):
    """Reads topics for one group through a client.

    It may hold back 1,000 messages of a topic, or 100 MiB of them, at once.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        check_open: Callable[[], None],
        is_closed: Callable[[], bool],
    ) -> None:
        """Read nothing yet. `check_open`: raises once the client was closed."""
        self.settings, self.store = settings, OpenClient(check_open, is_closed)
        self.topics: dict[str, tuple[Subscription, Held]] = {}
        self.failure = Failure()
        self._turn = 0
        self.limited = False
        """Whether the last pull left a topic out."""

    def subscription(self, topic: str, handler: Any, tags: str) -> Subscription:
        """Return what a handler of a topic gets its messages through."""
        made = Subscription(topic, handler, tags)
        self.topics[topic] = made, Held()
        return made

    def comes_ms(self, wait: Wait) -> int | None:
        """Return when what waits from now on comes again; of a level only the other side knows."""
        if isinstance(wait, timedelta):
            return time.time_ns() // 1_000_000 + whole_ms(wait)
        return None

    def topics_in_turn(self) -> Sequence[str]:
        """Return all topics, those behind the one that had something last first."""
        topics = list(self.topics)
        turn = self._turn % len(topics)
        return topics[turn:] + topics[:turn]

    def fits(self, topic: str, count_max: int) -> bool:
        """Tell whether more of a topic may be pulled."""
        config, (_, held) = Config(), self.topics[topic]
        is_next = held.count + count_max <= max(config.inflight_count_max, count_max)
        return is_next and held.bytes < config.inflight_bytes_max

    def tasks_of(self, topic: str, handed: HandedOut) -> list[Task]:
        """Return the tasks of what came of a topic, whose turn it was."""
        self._turn = list(self.topics).index(topic) + 1
        subscription, held = self.topics[topic]
        return subscription.tasks(handed, held, self.settings.batch_count)

    @contextmanager
    def waiter(self) -> Iterator[PullWaiter]:
        """Lend who sleeps while there is no room."""
        yield PullWaiter(self)

    def wait_durable(self) -> None:
        """Return at once: what was answered is as durable as whoever answered makes it."""
