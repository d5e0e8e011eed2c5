"""A consumer of a store that another process owns: handlers here, offsets, retries there.

Handlers, threads, rules and time limits are those of any consumer; what pulls, acknowledges, or
sends back asks the owner. Messages whose owner ended come again, from the next one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

import numpy as np

from timerstore.config import Config
from timerstore.consumer.consumer import Consumer
from timerstore.consumer.consumerstats import ConsumerStats
from timerstore.consumer.handling import Handling, failure_of
from timerstore.consumer.retry_rules import DEAD, Outcome
from timerstore.consumer.subscription import Subscription, Task
from timerstore.consuming.consuming import dead_topic
from timerstore.consuming.dead_letters import LISTED_MAX, DeadLetter
from timerstore.consuming.group import Delivery
from timerstore.consuming.tally import Tally
from timerstore.errors import ForkedProcessError, InvalidArgumentError, StoreClosedError
from timerstore.services.background import Flag
from timerstore.serving.batch import ClientBatch
from timerstore.serving.columns import read_table
from timerstore.serving.link import Link
from timerstore.stats import Stats

log = logging.getLogger("timerstore")

_WAIT_S: Final = 0.2
"""A pull waits so long at the owner; `close` waits for it."""
_AGAIN_S: Final = 1.0
"""Where no process has served the store for a while, it is asked again after this."""


class Served(Protocol):
    """A client, as far as it matters here."""

    _link: Link

    @property
    def path(self) -> Path:
        """The directory."""

    def _ask(self, name: str, arguments: dict[str, Any]) -> Any: ...

    def stats(self) -> Stats:
        """Return the owner's statistics."""

    def dead_letters(self, group: str, limit: int | None) -> list[DeadLetter]:
        """Return what a group gave up."""

    def redrive(self, group: str, limit: int | None, *, ids: Collection[str] | None) -> int:
        """Put dead letters back."""

    def drop_dead_letters(
        self, group: str, limit: int | None, *, ids: Collection[str] | None
    ) -> int:
        """Give dead letters up."""


class _Waiter:
    """Sleeps where limits keep messages back; else the pull itself waits, at the owner."""

    fd = -1

    def __init__(self, core: _Core) -> None:
        self._core, self._flag = core, Flag()

    def arm(self) -> None:
        self._flag.clear()

    def wake(self) -> None:
        self._flag.set()

    def wait(self, timeout_ms: float) -> None:
        if self._core.limited:
            self._flag.wait(timeout_ms / 1000)


class _Core:
    """What a consumer asks of a store's core, as far as a client can tell it."""

    def __init__(self, client: Served) -> None:
        self.store, self._pid = client, os.getpid()
        self.clock = SimpleNamespace(manual=False)
        self.engine = SimpleNamespace(config=Config())
        self.waiters = SimpleNamespace(waiter=self._waiter)
        self.limited = False

    @property
    def closed(self) -> bool:
        return self.store._link.closed.is_set()

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    def check_process(self) -> None:
        if self.forked:
            raise ForkedProcessError(
                "This consumer belongs to the parent process. Make one in the child."
            )

    def check_open(self) -> None:
        self.check_process()
        if self.closed:
            raise StoreClosedError(f"The client of {self.store.path} was closed. Connect again.")

    check_writable = check_open

    def steady_ms(self) -> float:
        return time.monotonic() * 1000

    @contextmanager
    def _waiter(self) -> Iterator[_Waiter]:
        yield _Waiter(self)


class _Group:
    """What handling asks of a group: to count; the owner counts by itself."""

    def __init__(self) -> None:
        self.lock, self.tally = threading.Lock(), Tally()

    def count_failed(self, failed: int, retried: int, dead: int) -> None:
        """Leave it to the owner, which sends back."""


class _Facade:
    """What a consumer takes for its store while it is made."""

    def __init__(self, client: Served) -> None:
        self.store, self.core, self.consuming = client, _Core(client), None
        self.putting = SimpleNamespace(core=self.core)


class _Subscription(Subscription):
    """A topic of which the owner hands out messages."""

    def begin(self) -> None:
        """Hold nothing yet."""
        self.group: Any = _Group()
        self.held_count = self.held_bytes = 0

    def tasks(self, batch: ClientBatch, batch_count: int, *, is_retry: bool) -> list[Task]:
        """Return the tasks of a batch; what has other tags is done."""
        deliveries = list(batch)
        if self._codes is not None and self.tags is not None and not is_retry:
            likely = np.isin(batch.tags_codes, self._codes).tolist()
            wanted = [d for d, yes in zip(deliveries, likely, strict=True) if yes]
            deliveries = [d for d in wanted if d.tag in self.tags]
            kept = {d._i for d in deliveries}
            others = [i for i in range(len(batch)) if i not in kept]
            if others:
                batch.settle(others, handled=False)
        tasks = []
        for at in range(0, len(deliveries), batch_count):
            part = deliveries[at : at + batch_count]
            length = sum(len(each.body) for each in part)
            tasks.append(Task(self, batch, part, length))
            with self.group.lock:
                self.held_count += len(part)
                self.held_bytes += length
        return tasks

    def done(
        self, task: Task, deliveries: list[Delivery], length: int, *, handled: bool = True
    ) -> None:
        """Acknowledge messages of a task, unless they were sent back."""
        try:
            if handled:
                batch: Any = task.batch
                batch.settle([each._i for each in deliveries])
        finally:
            self._let_go(len(deliveries), length)

    def give_back(self, task: Task) -> None:
        """Let others have a task's messages; where the owner has ended, they have them anyway."""
        try:
            batch: Any = task.batch
            batch.give_back([each._i for each in task.deliveries])
        except StoreClosedError:
            log.debug("%s: what was not begun comes again", self.topic)
        finally:
            self._let_go(len(task.deliveries), task.bytes_held)

    def _let_go(self, count: int, length: int) -> None:
        with self.group.lock:
            self.held_count -= count
            self.held_bytes -= length


class _Handling(Handling):
    """Handling by the same rules; the owner sends back."""

    def _wait_through(self, steps: Iterable[None]) -> None:
        """Go through the steps: what the owner has answered is durable."""
        for _ in steps:
            pass

    def _append_again(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Have a message sent back; tell whether it is a dead letter now."""
        batch: Any = delivery._batch
        message = batch.message(delivery._i)
        wait = self._wait_after(message.reconsume_times, outcome)
        failure = failure_of(outcome)
        try:
            batch.retry(delivery._i, wait, (failure.kind, failure.text))
        except StoreClosedError:
            return False  # it comes again, from the next owner
        if wait == DEAD:
            fields = {"topic": delivery.topic, "group": self._group, "ids": [delivery.id]}
            text = "%s: message %s is a dead letter now"
            log.error(text, delivery.topic, delivery.id, extra=fields)
        return wait == DEAD


class ClientConsumer(Consumer):
    """A consumer over `timerstore.connect`, or over a store that is shared; see `Consumer`.

    It may hold back 1,000 messages of a topic, or 100 MiB of them, at once.
    """

    _store_kind = _Facade
    _handling_kind = _Handling
    _subscription_kind = _Subscription

    @staticmethod
    def _face_of(client: Served) -> _Facade:
        """Return what stands for its store."""
        return _Facade(client)

    @property
    def _client(self) -> Served:
        client: Any = self.store
        return client  # type: ignore[no-any-return]

    def _open(self) -> None:
        if self._broadcast or self._ordered:
            raise InvalidArgumentError(
                "broadcast and ordered need the process that has the store open, and another one "
                "has it. Leave them out, or make the consumer where `is_owner` is True."
            )
        topics = [each.topic for each in self._subscriptions]
        self._begin_groups([[topic, self.group] for topic in topics], self._start)
        # Where nobody has read the dead letters, this keeps retention from removing them.
        self._begin_groups([[dead_topic(self.group), self.group]], "earliest")
        for each in self._subscriptions:
            assert isinstance(each, _Subscription)
            each.begin()
        self._state = "started"

    def _begin_groups(self, pairs: list[list[str]], start: Any) -> None:
        self._client._ask("begin_groups", {"pairs": pairs, "start": start})

    def _pull(self) -> tuple[list[Task], bool]:
        """Pull from the first topic that has something, beginning with another each time."""
        self._core.check_open()
        subscriptions: Any = self._subscriptions
        turn = self._turn % len(subscriptions)
        in_turn = (*subscriptions[turn:], *subscriptions[:turn])
        asked = [each for each in in_turn if self._fits(each)]
        core: Any = self._core
        core.limited = len(asked) < len(subscriptions)
        if not asked:
            return [], True
        given = {
            "topics": [each.topic for each in asked],
            "group": self.group,
            "max_count": self._pull_count,
            "timeout": 0 if core.limited else _WAIT_S,
            "tags": True,
        }
        try:
            header, parts = self._client._link.ask("pull", given)
        except StoreClosedError as e:
            self._core.check_open()
            log.warning("%s", e)
            self._client._link.closed.wait(_AGAIN_S)
            return [], False
        told = header["result"]
        if told is None:
            return [], core.limited
        subscription = next(each for each in subscriptions if each.topic == told["topic"])
        self._turn = subscriptions.index(subscription) + 1
        table = read_table(parts)
        batch = ClientBatch(self._client._link, told["topic"], self.group, told["batch"], table)
        return subscription.tasks(batch, self._batch_count, is_retry=told["retry"]), False

    def _fits(self, each: _Subscription) -> bool:
        """Tell whether more of a topic may be pulled."""
        config, next_count = Config(), each.held_count + self._pull_count
        is_next = next_count <= max(config.inflight_count_max, self._pull_count)
        return is_next and each.held_bytes < config.inflight_bytes_max

    def stats(self) -> tuple[ConsumerStats, ...]:
        """Return what it does with each of its topics; `group` is what the owner counted."""
        self._core.check_process()
        rows = {(row.topic, row.group): row for row in self._client.stats().groups}
        running, now_ms, found = self._handling.running(), self._core.steady_ms(), []
        for each in self._subscriptions:
            handled, failed = each.group.tally.per_s(now_ms)
            count = sum(subscription is each for subscription in running)
            row = rows[each.topic, self.group]
            found.append(ConsumerStats(each.topic, handled, failed, count, row))
        return tuple(found)

    def dead_letters(self, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return what the group gave up; see `TimerStore.dead_letters`."""
        return self._client.dead_letters(self.group, limit)

    def redrive(self, limit: int | None = None, *, ids: Collection[str] | None = None) -> int:
        """Put the group's dead letters back; see `TimerStore.redrive`."""
        return self._client.redrive(self.group, limit, ids=ids)

    def drop_dead_letters(
        self, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give the group's dead letters up for good; see `TimerStore.drop_dead_letters`."""
        return self._client.drop_dead_letters(self.group, limit, ids=ids)
