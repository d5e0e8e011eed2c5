"""A client as a consumer's source: handlers here, offsets, retries at the owner.

Handlers, threads, rules and time limits are those of any consumer; what pulls, acknowledges, or
sends back asks the owner. Messages whose owner ended come again, from the next one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.messagesource import PullWaiter, Source
from timerstore.consumer.subscription import Held, Subscription, Task
from timerstore.consuming.agreed import dead_topic
from timerstore.consuming.grouptally import GroupTally
from timerstore.errors import ForkedProcessError, InvalidArgumentError, StoreClosedError
from timerstore.ground.config import Config
from timerstore.serving.clientrun import ClientRun
from timerstore.serving.framecolumns import read_table
from timerstore.serving.link import Link
from timerstore.watching.anystore import AnyStore
from timerstore.watching.groups import GroupStats

log = logging.getLogger("timerstore")

_WAIT_S: Final = 0.2
"""A pull waits so long at the owner; `close` waits for it."""
_AGAIN_S: Final = 1.0
"""If no process has served the store for a while, it is asked again after this."""


class _OpenStore:
    """A client, as a consumer's threads and rules see it."""

    def __init__(self, link: Link) -> None:
        self._link, self._pid = link, os.getpid()

    @property
    def closed(self) -> bool:
        return self._link.closed.is_set()

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
        if self.closed:
            raise StoreClosedError(f"The client of {self._link.path} was closed. Connect again.")

    def steady_ms(self) -> float:
        return time.monotonic() * 1000


class ClientSource(Source):
    """Reads through a client, or a store that is shared, what another process has open.

    It may hold back 1,000 messages of a topic, or 100 MiB of them, at once.
    """

    def __init__(self, client: AnyStore, link: Link, settings: ConsumerSettings) -> None:
        """Read nothing yet."""
        self._client, self._link, self.settings = client, link, settings
        self.store = _OpenStore(link)
        self._topics: dict[str, tuple[Subscription, Held]] = {}
        self._turn = 0
        self.limited = False
        """Whether the last pull left a topic out."""

    def subscription(self, topic: str, handler: Any, tags: str) -> Subscription:
        """Return what a handler of a topic gets its messages through."""
        made = Subscription(topic, handler, tags)
        self._topics[topic] = made, Held()
        return made

    def begin(self, subscriptions: Sequence[Subscription]) -> None:
        """Begin to read. Durable on return: where a new group starts."""
        told = self.settings
        if told.broadcast or told.ordered:
            raise InvalidArgumentError(
                "broadcast and ordered work only in the process that has the store open, and "
                "this is another process. Leave them out, or make the consumer in the process in "
                "which `is_owner` is True."
            )
        self._begin_groups([[each.topic, told.group] for each in subscriptions], told.start)
        # If nobody has read the dead letters, this keeps retention from removing them.
        self._begin_groups([[dead_topic(told.group), told.group]], "earliest")

    def _begin_groups(self, pairs: list[list[str]], start: Any) -> None:
        self._link.ask("begin_groups", {"pairs": pairs, "start": start})

    def pull(self, count_max: int) -> tuple[list[Task], bool]:
        """Pull from the first topic that has something, beginning with another each time."""
        self.store.check_writable()
        topics = list(self._topics)
        turn = self._turn % len(topics)
        asked = [each for each in topics[turn:] + topics[:turn] if self._fits(each, count_max)]
        self.limited = len(asked) < len(topics)
        if not asked:
            return [], True
        given = {
            "topics": asked,
            "group": self.settings.group,
            "max_count": count_max,
            "timeout": 0 if self.limited else _WAIT_S,
            "tags": True,
        }
        try:
            header, parts = self._link.ask("pull", given)
        except StoreClosedError as e:
            self.store.check_writable()
            log.warning("%s", e)
            self._link.closed.wait(_AGAIN_S)
            return [], False
        told = header["result"]
        if told is None:
            return [], self.limited
        self._turn = topics.index(told["topic"]) + 1
        subscription, held = self._topics[told["topic"]]
        run = ClientRun(self._link, self.settings.group, read_table(parts), told)
        return subscription.tasks(run, held, self.settings.batch_count), False

    def _fits(self, topic: str, count_max: int) -> bool:
        """Tell whether more of a topic may be pulled."""
        config, (_, held) = Config(), self._topics[topic]
        is_next = held.count + count_max <= max(config.inflight_count_max, count_max)
        return is_next and held.bytes < config.inflight_bytes_max

    @contextmanager
    def waiter(self) -> Iterator[PullWaiter]:
        """Lend who sleeps while there is no room."""
        yield PullWaiter(self)

    def wait_durable(self) -> None:
        """Return at once: what the owner has answered is durable."""

    def close(self) -> None:
        """Do nothing: the owner keeps what was not acknowledged."""

    def look(self, topics: Sequence[str]) -> list[tuple[GroupStats, GroupTally]]:
        """Tell how far the owner says the group has come, and what was done here."""
        rows = {(row.topic, row.group): row for row in self._client.stats().groups}
        group = self.settings.group
        return [(rows[each, group], self._topics[each][0].tally) for each in topics]
