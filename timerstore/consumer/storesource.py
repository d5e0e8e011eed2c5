"""An open store as a consumer's source."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from timerstore.calls.consuming.constants import Wait, dead_topic
from timerstore.calls.consuming.consuming import Consuming
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.calls.consuming.sendback import wait_durable, wait_ms
from timerstore.calls.consuming.starting import begin_groups
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.messagesource import Source, Waiter
from timerstore.consumer.ordered import OrderedSubscription, ordered_limits
from timerstore.consumer.subscription import Held, LimitedSubscription, Limits, Task
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError
from timerstore.services.world.background import Failure
from timerstore.watching.groups import GroupStats, read_groups


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
        return LimitedSubscription(topic, handler, tags)

    def comes_ms(self, wait: Wait) -> int:
        """Return when what waits from now on comes again, epoch ms."""
        return self.core.clock.now_ms + wait_ms(self.core, wait)

    def begin(self, subscriptions: Sequence[Any]) -> None:
        """Begin to read. Durable on return: where a new group starts."""
        told, reads_as = self.settings, self.settings.reads_as
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
        self.topics = subscriptions
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
