"""A subscription: one topic of a consumer, whose messages become the tasks of a handler.

Ground rules: what is `Held` is changed only under `lock`, which all subscriptions of a consumer
share that read the same queue. One thread at a time pulls, or makes tasks; they end in any.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from timerstore.calls.consuming.consuming import Consuming
from timerstore.calls.consuming.cursors import QueueCursor, RetryCursor
from timerstore.calls.consuming.delivery import Delivery, HandedOut, Wait
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.calls.consuming.pull import READY_BYTES
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.turns import Rate
from timerstore.consumer.consumersettings import ConsumerSettings, Retry
from timerstore.errors import (
    CorruptStoreError,
    ForkedProcessError,
    InvalidArgumentError,
    StoreClosedError,
)
from timerstore.jit.guards import RLock
from timerstore.services.world.background import Failure, Flag
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.values.config import Config
from timerstore.watching.groups import GroupStats

if TYPE_CHECKING:
    from timerstore.core.core import Core
    from timerstore.core.waiting import Waiter

log = logging.getLogger("timerstore")

ALL_TAGS: Final = "*"
Handler = Callable[[Delivery], Retry | None] | Callable[[list[Delivery]], Retry | None]
"""What a program subscribes; with `batch_count` above 1 it takes a list."""


class Held:
    """How much of one queue is in flight."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count = self.bytes = 0


class Task:
    """What one call of a handler gets: a message, or a list of them."""

    __slots__ = (
        *("again_ms", "bytes_held", "deliveries", "handed", "held", "is_late", "line", "places"),
        *("started_ms", "subscription", "wait_ms"),
    )

    def __init__(
        self,
        subscription: Subscription,
        handed: HandedOut,
        held: Held,
        places: list[int],
        deliveries: list[Delivery],
        bytes_held: int,
    ) -> None:
        """`places`: of the deliveries, in what was handed out."""
        self.subscription, self.handed, self.held = subscription, handed, held
        self.places, self.deliveries, self.bytes_held = places, deliveries, bytes_held
        self.started_ms = 0.0
        self.is_late = False
        self.line: str | None = None
        """Of an ordered consumer: whom it waits for."""
        self.again_ms = self.wait_ms = 0
        """When it is to be handled again, if it was held back in an earlier life."""

    def parted(self, some: Container[int]) -> tuple[Task, Task]:
        """Return a task of some of its messages, by their numbers in it, and one of the others."""
        numbers = range(len(self.places))
        return self._of([i for i in numbers if i in some]), self._of(
            [i for i in numbers if i not in some]
        )

    def _of(self, numbers: list[int]) -> Task:
        places = [self.places[i] for i in numbers]
        deliveries, length = [self.deliveries[i] for i in numbers], self.handed.body_bytes(places)
        part = Task(self.subscription, self.handed, self.held, places, deliveries, length)
        part.line = self.line
        return part

    def split(self, count: int) -> tuple[Task, Task]:
        """Return a task of its first messages, and one of the others."""
        return self.parted(range(count))


class Subscription:
    """One topic with its handler."""

    def __init__(self, topic: str, handler: Handler, tags: str) -> None:
        """`tags`: `*`, or the tags to be handled, with || between them."""
        self.topic = topic
        self.handler: Callable[[Any], Any] = handler
        self.tags = parse_tags(tags)
        self._codes = None
        if self.tags is not None:
            self._codes = np.array([java_hash_of(tag) for tag in self.tags], np.int64)
        self.lock, self.tally = RLock(), GroupTally()
        self.hold_back: Callable[[Task, float], None]
        """Called with a task, and for how many ms it is not to begin."""

    def tasks(self, handed: HandedOut, held: Held, batch_count: int) -> list[Task]:
        """Return the tasks of what was handed out, `batch_count` messages in each.

        What has other tags is done; an empty list if all of it has other tags.
        """
        deliveries, places = list(handed), list(range(len(handed)))
        if self._codes is not None and not handed.is_retry:
            places = self._with_my_tags(handed, deliveries)
            deliveries = [deliveries[i] for i in places]
        tasks = []
        if batch_count == 1:
            for i, delivery in zip(places, deliveries, strict=True):
                tasks.append(Task(self, handed, held, [i], [delivery], len(delivery.body)))
        else:
            for at in range(0, len(places), batch_count):
                some = slice(at, at + batch_count)
                part = deliveries[some]
                length = sum(len(delivery.body) for delivery in part)
                tasks.append(Task(self, handed, held, places[some], part, length))
        with self.lock.guard():
            held.count += len(places)
            held.bytes += sum([task.bytes_held for task in tasks])
        return tasks

    def _with_my_tags(self, handed: HandedOut, deliveries: list[Delivery]) -> list[int]:
        """Return the places of those whose tag is wanted; the others are done.

        The queue's entry tells the hash of a tag, so most others are never decoded.
        """
        assert self.tags is not None and self._codes is not None
        likely = np.flatnonzero(np.isin(handed.tags_codes, self._codes)).tolist()
        wanted = [i for i in likely if deliveries[i].tag in self.tags]
        others = sorted(set(range(len(deliveries))).difference(wanted))
        if others:
            handed.settle_some(others, handled=False)
        return wanted

    # --- what became of them

    def done(self, task: Task, *, handled: bool = True) -> None:
        """Settle the messages of a task: their queue's offset may pass them."""
        try:
            task.handed.settle_some(task.places, handled=handled)
        finally:
            self._release(task)

    def give_back(self, task: Task) -> None:
        """Let others have a task's messages; if an owner has ended, they have them anyway."""
        try:
            task.handed.give_back(task.places)
        except StoreClosedError:
            log.debug("%s: messages that no handler had begun are handed out again", self.topic)
        finally:
            self._release(task)

    def _release(self, task: Task) -> None:
        with self.lock.guard():
            task.held.count -= len(task.places)
            task.held.bytes -= task.bytes_held

    def count_failed(self, failed: int, retried: int, dead: int, expired: int = 0) -> None:
        """Leave counting to the owner of the store, which sends back."""

    # --- what an ordered consumer has besides (`sources.py`)

    def hold(self, task: Task, wait: Wait) -> bool:
        """Have a task come again before others of its line; False if it cannot."""
        return False

    def next_after(self, task: Task) -> Task | None:
        """Return what may begin now that a task is done."""
        return None

    def waiting(self) -> list[Task]:
        """Return what was pulled, and waits for others."""
        return []


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may be in flight; each with its reason in `Config`."""

    count: int
    bytes: int
    span: int

    @classmethod
    def of(cls, config: Config) -> Limits:
        """Read them off a configuration."""
        return cls(config.inflight_count_max, config.inflight_bytes_max, config.inflight_span_max)


class LimitedSubscription(Subscription):
    """One topic with its handler, read by a group."""

    group: Group

    def __init__(self, topic: str, handler: Handler, tags: str) -> None:
        super().__init__(topic, handler, tags)
        self.limited = self.may_hide = False
        self.rate: Rate | None = None
        self.pull_s = inf
        """How long a pull may take that meets only what has expired."""
        self.remake: Callable[[Run], Run] | None = None
        """Makes of what was pulled what handlers are to have, if that is something else."""

    def open(
        self, consuming: Consuming, group: str, limits: Limits, held: defaultdict[int, Held]
    ) -> None:
        """Begin to read; `held` is what the consumer has in flight, by queue."""
        self.group = consuming.group(self.topic, group)
        self.lock, self.tally = self.group.lock, self.group.tally
        self._limits, self._held, self._consuming = limits, held, consuming
        consuming.begin_reading(self.topic, group, self)

    def close(self) -> None:
        """Stop pulling."""
        self._consuming.end_reading(self.topic, self.group.name, self)

    def pull(self, count_max: int, batch_count: int) -> list[Task]:
        """Return tasks of up to `count_max` messages, `batch_count` in each.

        An empty list if nothing is there; then `limited` tells whether limits are the reason,
        `may_hide` whether there may be something that is not durable yet.
        """
        while True:
            self.limited = False
            if self.rate is None:
                run = self._pull_ready(count_max)
                self.may_hide = isinstance(run, bool)
                if isinstance(run, bool):
                    run = self.group.pull(count_max, self._room, None, self._until_s)
            else:
                run = self.group.pull_long(count_max, self._room, self.rate, until_s=self._until_s)
                self.may_hide = run is None and self.group.may_hide(self.rate)
            if run is None:
                return []
            try:
                if self.remake is not None:
                    run = self.remake(run)
                tasks = self.tasks(run, self._held[run.cursor.row], batch_count)
                if tasks:
                    return tasks
            except BaseException:
                run.give_back(range(len(run)))
                raise

    @property
    def _until_s(self) -> float:
        return time.monotonic() + self.pull_s

    def _pull_ready(self, count_max: int) -> Run | bool | None:
        """Pull by one kernel; a bool if it cannot, or if limits may be the reason for less."""
        limits = self._limits
        for row in list(self.group.cursors):
            held = self._held[row]
            count_max = min(count_max, limits.count - held.count)
            if count_max <= 0 or held.bytes + READY_BYTES > limits.bytes:
                return False
        return self.group.pull_ready(count_max, span_max=limits.span)

    def _room(self, cursor: QueueCursor, visible_end: int, count_max: int) -> int:
        """Return how many may be handed out of a queue that has some. Under the group's lock."""
        held, limits = self._held[cursor.row], self._limits
        room = min(count_max, limits.count - held.count)
        if isinstance(cursor, RetryCursor):
            # What waits there for another topic keeps its offset back: its span says nothing.
            if 2 * held.bytes > limits.bytes:
                room = min(room, 1)
        elif room > 0 and not cursor.waits_again:
            if not cursor.holds_any:  # a damaged entry keeps the offset back until the next opening
                room = min(room, limits.span - (cursor.next - cursor.committed))
            room = self._room_in_bytes(cursor, min(room, visible_end - cursor.next), held)
        if held.bytes >= limits.bytes:
            room = 0
        self.limited |= room <= 0
        return room

    def _room_in_bytes(self, cursor: QueueCursor, count: int, held: Held) -> int:
        """Return how many of the next messages fit; one always does if none is in flight."""
        left = self._limits.bytes - held.bytes
        if count <= 0 or count * self.group.core.engine.message_bytes_max <= left:
            return count
        try:
            sizes = self.group.core.engine.queues.read(cursor.row, cursor.next, count)["size"]
        except CorruptStoreError:
            return count  # gone with retention, or damaged: the group, which reads it, sees which
        fit = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), left, "right"))
        return max(fit, 1) if held.count == 0 else fit

    def count_failed(self, failed: int, retried: int, dead: int, expired: int = 0) -> None:
        """Count what failed, and what became of it: sent back, given up, or expired."""
        self.group.count_failed(failed, retried, dead, expired)


def check_handler(handler: Any) -> None:
    """Refuse what is no plain function: one whose call only makes something that would run."""
    called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", None)  # noqa: B004
    for kind, is_it, instead in (
        ("an async def", inspect.iscoroutinefunction, " or use timerstore.aio.Consumer,"),
        ("an async generator", inspect.isasyncgenfunction, ""),
        ("a generator", inspect.isgeneratorfunction, ""),
    ):
        if is_it(handler) or is_it(called):
            raise InvalidArgumentError(
                f"handler is {handler!r}, {kind}: calling it would run none of its code. Pass a "
                f"plain function (def, without yield),{instead} that returns None or a Retry."
            )
    if not callable(handler):
        raise InvalidArgumentError(
            f"handler is {handler!r}. Pass a plain function that takes a Delivery."
        )
    check_takes_one(handler)


def check_takes_one(handler: Any) -> None:
    """Refuse a function that cannot be called with one argument, if it says what it takes."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # of a builtin, say
        return
    try:
        signature.bind(None)
    except TypeError as e:
        raise InvalidArgumentError(
            f"handler is {handler!r}, which takes {signature}: {e}. Pass a function of one "
            "argument: a Delivery, or a list of them with batch_count above 1."
        ) from e


def parse_tags(tags: str) -> frozenset[str] | None:
    """Return the tags of an expression such as "a||b"; None for all.

    >>> sorted(parse_tags("paid || shipped"))
    ['paid', 'shipped']
    """
    if not isinstance(tags, str):
        raise InvalidArgumentError(f'tags is {tags!r}. Pass a str such as "a||b", or "*".')
    if tags.strip() == ALL_TAGS:
        return None
    parts = [part.strip() for part in tags.split("||")]
    if not all(parts):
        raise InvalidArgumentError(f'tags is {tags!r}. Write tags with || between them, or "*".')
    return frozenset(parts)


# --- a source: where a consumer's messages come from, whichever process has the store open
#
# A consumer is handlers by rules (`Handling`), one `Subscription` for each topic, and who calls
# the handlers: threads, a loop's tasks, a step. What they need of a store is a source, of which
# there are four: an open store (`sources.py`), the same in an event loop
# (`aio/loopconsumer.py`), a client (`share/clientsource.py`), a cluster
# (`rocketmq/receiving.py`); what the last two have in common is in `sources.py`. What was
# pulled is a `HandedOut`, which knows by itself how it is acknowledged, sent back, or given back.
#
# Each call may come from any thread, but `pull`, which one thread makes at a time.


class OpenClient:
    """A client, as a consumer's threads and rules see it."""

    def __init__(self, check_open: Callable[[], None], is_closed: Callable[[], bool]) -> None:
        self._check_open, self._is_closed, self._pid = check_open, is_closed, os.getpid()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise in a forked child."""
        if self.forked:
            raise ForkedProcessError(
                "This consumer belongs to the parent process. Make one in the child process."
            )

    def check_writable(self) -> None:
        """Raise if nothing can be sent back."""
        self.check_process()
        self._check_open()

    def steady_ms(self) -> float:
        """Return a time that is never set."""
        return time.monotonic() * 1000


class PullWaiter:
    """Sleeps if limits keep messages back, or nobody answers; else the pull waits."""

    def __init__(self, source: Any) -> None:
        self._source, self._flag = source, Flag()

    def arm(self) -> None:
        """Notice who wakes from now on."""
        self._flag.clear()

    def wake(self) -> None:
        """End the wait; from any thread."""
        self._flag.set()

    def wait(self, timeout_ms: float) -> None:
        """Return when `wake` was called, or after this time."""
        if self._source.limited:
            self._flag.wait(timeout_ms / 1000)


class Source(Protocol):
    """What a consumer reads, for one group."""

    store: Core | OpenClient
    settings: ConsumerSettings
    failure: Failure
    """What stopped the consumer, if anything did."""

    def subscription(self, topic: str, handler: Any, tags: str) -> Subscription:
        """Return what a handler of a topic gets its messages through."""

    def begin(self, subscriptions: Sequence[Subscription]) -> None:
        """Begin to read. Durable on return: where a new group starts."""

    def pull(self, count_max: int) -> tuple[list[Task], bool]:
        """Pull from the next topic that has something; tell whether limits kept any back."""

    def turn_ms(self) -> float:
        """Return how long it is until what waits for its turn has it; infinity if nothing does."""
        return inf

    def waiter(self) -> AbstractContextManager[Waiter | PullWaiter]:
        """Lend who sleeps until something is fired."""

    def wait_durable(self) -> None:
        """Return once all that was sent back is as durable as a put."""

    def comes_ms(self, wait: Wait) -> int | None:
        """Return when what waits from now on comes again, epoch ms; None if only others know."""

    def close(self) -> None:
        """Stop reading."""

    def look(self, topics: Sequence[str]) -> list[tuple[GroupStats, GroupTally]]:
        """Tell how far the group has come with topics, and what became of what it read."""
