"""A source whose messages another process hands out: the owner of a store, or a cluster.

A pull asks there, and waits there until something comes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from timerstore.calls.consuming.delivery import HandedOut, Wait
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.subscription import Held, Source, Subscription, Task
from timerstore.errors import ForkedProcessError
from timerstore.services.world.background import Failure, Flag
from timerstore.values.config import Config
from timerstore.values.kinds import whole_ms


class _OpenClient:
    """A client, as a consumer's threads and rules see it."""

    def __init__(self, check_open: Callable[[], None], is_closed: Callable[[], bool]) -> None:
        self._check_open, self._is_closed, self._pid = check_open, is_closed, os.getpid()

    @property
    def closed(self) -> bool:
        return self._is_closed()

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    def check_process(self) -> None:
        if self.forked:
            raise ForkedProcessError(
                "This consumer belongs to the parent process. Make one in the child process."
            )

    def check_writable(self) -> None:
        self.check_process()
        self._check_open()

    def steady_ms(self) -> float:
        return time.monotonic() * 1000


class _PullWaiter:
    """Sleeps if limits keep messages back, or nobody answers; else the pull waits."""

    def __init__(self, source: RemoteSource) -> None:
        self._source, self._flag = source, Flag()

    def arm(self) -> None:
        self._flag.clear()

    def wake(self) -> None:
        self._flag.set()

    def wait(self, timeout_ms: float) -> None:
        if self._source.limited:
            self._flag.wait(timeout_ms / 1000)


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
        self.settings, self.store = settings, _OpenClient(check_open, is_closed)
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
    def waiter(self) -> Iterator[_PullWaiter]:
        """Lend who sleeps while there is no room."""
        yield _PullWaiter(self)

    def wait_durable(self) -> None:
        """Return at once: what was answered is as durable as whoever answered makes it."""
