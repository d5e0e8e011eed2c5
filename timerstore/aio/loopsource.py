"""An open store as the source of a consumer whose handlers an event loop calls."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from timerstore.aio.batches import LoopRun
from timerstore.aio.side import LoopSide
from timerstore.calls.consuming.group import Group
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.storesource import StoreSource
from timerstore.consumer.subscription import LimitedSubscription, Task


class LoopSource(StoreSource):
    """Pulls in the loop's thread, and waits in its tasks; all else is as for threads."""

    def __init__(self, side: LoopSide, settings: ConsumerSettings) -> None:
        super().__init__(side.core, side.store.consuming, settings)
        self.side = side
        self._sleep: asyncio.Future[None] | None = None

    def subscription(self, topic: str, handler: Any, tags: str) -> LimitedSubscription:
        """Return what a handler of a topic gets its messages through."""
        made = super().subscription(topic, handler, tags)
        made.remake = partial(LoopRun, self.side)
        return made

    def make_visible(self, group: Group) -> None:
        """Do nothing: `pull_durable` awaits that."""

    async def pull_durable(self, count_max: int) -> list[Task]:
        """Pull from the next topic that has something; under "group", what is durable."""
        self.side.check()
        self.core.check_open()
        if self.core.clock.manual:
            self.side.here(self.core.play_now)
        tasks, _ = self.pull(count_max)
        if not tasks and self.core.is_group:
            if any(each.group.has_hidden() for each in self.topics):
                await self.side.commits.wait()
                tasks, _ = self.pull(count_max)
        return tasks

    async def wait(self, *, for_messages: bool) -> None:
        """Sleep until something is fired, if that is waited for, or `wake` is called."""
        rows = [row for each in self.topics for row in list(each.group.cursors)]
        self._sleep = self.side.loop.create_future()
        try:
            await self.side.arrivals.wait(None, rows if for_messages else (), self._sleep)
        finally:
            self._sleep = None

    def wake(self) -> None:
        """End the wait; in the loop's thread."""
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
