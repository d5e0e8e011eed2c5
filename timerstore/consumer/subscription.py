"""A subscription: one topic of a consumer, from which tasks are pulled within limits.

Ground rules: `Held` is changed under the group's lock alone, which all subscriptions of a consumer
share; `pull` is called by one thread at a time, `done` by any.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from timerstore.config import Config
from timerstore.consumer.retry_rules import Retry
from timerstore.consuming.consuming import Consuming
from timerstore.consuming.cursors import QueueCursor
from timerstore.consuming.group import Batch, Delivery
from timerstore.consuming.retries import RetryCursor
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.timelog.text import java_hash_of

ALL_TAGS = "*"
Handler = Callable[[Delivery], Retry | None] | Callable[[list[Delivery]], Retry | None]
"""What a program subscribes; with `batch_count` above 1 it takes a list."""


class Task:
    """What one call of a handler gets: a message, or a list of them."""

    __slots__ = (
        *(
            "again_ms",
            "batch",
            "bytes_held",
            "deliveries",
            "is_late",
            "line",
            "started_ms",
            "wait_ms",
        ),
        "subscription",
    )

    def __init__(
        self, subscription: Subscription, batch: Batch, deliveries: list[Delivery], bytes_held: int
    ) -> None:
        self.subscription, self.batch = subscription, batch
        self.deliveries, self.bytes_held = deliveries, bytes_held
        self.started_ms = 0.0
        self.is_late = False
        self.line: str | None = None
        """Of an ordered consumer: whom it waits for."""
        self.again_ms = self.wait_ms = 0
        """When it is to be handled again, where it was held back in an earlier life."""

    def part(self, deliveries: list[Delivery], bytes_held: int) -> Task:
        """Return a task of some of its messages."""
        part = Task(self.subscription, self.batch, deliveries, bytes_held)
        part.line = self.line
        return part


class Held:
    """How much of one queue is in flight."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count = self.bytes = 0


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
        self.limited = False
        self.remake: Callable[[Batch], Batch] | None = None
        """Makes of what was pulled what handlers are to have, where that is something else."""

    def open(
        self, consuming: Consuming, group: str, limits: Limits, held: defaultdict[int, Held]
    ) -> None:
        """Begin to read; `held` is what the consumer has in flight, by queue."""
        self.group = consuming.group(self.topic, group)
        self._limits, self._held = limits, held

    # --- pulling

    def pull(self, count_max: int, batch_count: int) -> list[Task]:
        """Return tasks of up to `count_max` messages, `batch_count` in each.

        An empty list where nothing is there; then `limited` tells whether limits are the reason.
        """
        while True:
            self.limited = False
            batch = self.group.pull(count_max, self._room)
            if batch is None:
                return []
            try:
                if self.remake is not None:
                    batch = self.remake(batch)
                deliveries = list(batch)
                if self._codes is not None and not isinstance(batch._cursor, RetryCursor):
                    deliveries = self._with_my_tags(batch, deliveries)
                if deliveries:
                    return self._tasks(batch, deliveries, batch_count)
            except BaseException:
                self.group.give_back(batch, 0)
                raise

    def _room(self, cursor: QueueCursor, visible_end: int, count_max: int) -> int:
        """Return how many may be handed out of a queue that has some. Under the group's lock."""
        held, limits = self._held[cursor.row], self._limits
        room = min(count_max, limits.count - held.count)
        if isinstance(cursor, RetryCursor):
            # What waits there for another topic keeps its offset back: its span says nothing.
            if 2 * held.bytes > limits.bytes:
                room = min(room, 1)
        elif room > 0 and not cursor.given_back:
            room = min(room, limits.span - (cursor.next - cursor.committed))
            room = self._room_in_bytes(cursor, min(room, visible_end - cursor.next), held)
        if held.bytes >= limits.bytes:
            room = 0
        self.limited |= room <= 0
        return room

    def _room_in_bytes(self, cursor: QueueCursor, count: int, held: Held) -> int:
        """Return how many of the next messages fit; one always does where none is in flight."""
        left = self._limits.bytes - held.bytes
        if count <= 0 or count * self.group.core.engine.message_bytes_max <= left:
            return count
        try:
            sizes = self.group.core.engine.queues.read(cursor.row, cursor.next, count)["size"]
        except CorruptStoreError:
            return count  # gone with retention, or damaged: the group, which reads it, sees which
        fit = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), left, "right"))
        return max(fit, 1) if held.count == 0 else fit

    def _with_my_tags(self, batch: Batch, deliveries: list[Delivery]) -> list[Delivery]:
        """Return those whose tag is wanted; the others are done.

        The queue's entry tells the hash of a tag, so most others are never decoded.
        """
        assert self.tags is not None and self._codes is not None
        likely = np.isin(batch.tags_codes, self._codes).tolist()
        wanted = [d for d, is_likely in zip(deliveries, likely, strict=True) if is_likely]
        wanted = [d for d in wanted if d.tag in self.tags]
        if len(wanted) < len(deliveries):
            kept = {d._i for d in wanted}
            others = [i for i in range(len(batch)) if i not in kept]
            self.group.settle_some(batch, others, handled=False)
        return wanted

    def _tasks(self, batch: Batch, deliveries: list[Delivery], count: int) -> list[Task]:
        tasks = []
        total = 0
        if count == 1:
            for delivery in deliveries:
                length = len(delivery.body)
                total += length
                tasks.append(Task(self, batch, [delivery], length))
        else:
            for at in range(0, len(deliveries), count):
                part = deliveries[at : at + count]
                length = sum(len(delivery.body) for delivery in part)
                total += length
                tasks.append(Task(self, batch, part, length))
        cursor = batch._cursor
        assert cursor is not None
        with self.group.lock:
            held = self._held[cursor.row]
            held.count += len(deliveries)
            held.bytes += total
        return tasks

    # --- what became of them

    def done(
        self, task: Task, deliveries: list[Delivery], length: int, *, handled: bool = True
    ) -> None:
        """Settle messages of a task: their queue's offset may pass them."""
        batch = task.batch
        places = [delivery._i for delivery in deliveries]
        self.group.settle_some(batch, places, handled=handled)
        self._release_of(batch, len(deliveries), length)

    def give_back(self, task: Task) -> None:
        """Let the group hand out a task's messages again, to whoever asks."""
        self.group.give_back_some(task.batch, [delivery._i for delivery in task.deliveries])
        self._release_of(task.batch, len(task.deliveries), task.bytes_held)

    def _release_of(self, batch: Batch, count: int, length: int) -> None:
        assert batch._cursor is not None
        self._release(batch._cursor.row, count, length)

    def _release(self, row: int, count: int, length: int) -> None:
        with self.group.lock:
            held = self._held[row]
            held.count -= count
            held.bytes -= length

    # --- what an ordered consumer has besides (`ordered.py`)

    def hold(self, task: Task, wait_ms: int) -> None:
        """Have a task come again, before others of its line."""
        raise NotImplementedError

    def next_after(self, task: Task) -> Task | None:
        """Return what may begin now that a task is done."""
        return None

    def waiting(self) -> list[Task]:
        """Return what was pulled, and waits for others."""
        return []

    def close(self) -> None:
        """Pull no more."""


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
                f"handler is {handler!r}, {kind}, which no call of a thread would run. Pass a "
                f"plain function (def, without yield),{instead} that returns None or a Retry."
            )
    if not callable(handler):
        raise InvalidArgumentError(
            f"handler is {handler!r}. Pass a plain function that takes a Delivery."
        )


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
        raise InvalidArgumentError(f'tags is {tags!r}. Write tags with || between, or "*".')
    return frozenset(parts)
