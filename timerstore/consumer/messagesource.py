"""A source: where a consumer's messages come from, whichever process has the store open.

A consumer is handlers by rules (`Handling`), one `Subscription` for each topic, and who calls the
handlers: threads, a loop's tasks, a step. What they need of a store is a source, of which there are
four: an open store (`storesource.py`), the same in an event loop (`aio/handlers.py`), a client
(`share/clientrun.py`), a cluster (`rocketmq/clusterrun.py`); what the last two have in
common is in `remotesource.py`. What was pulled is a `HandedOut`, which knows by itself how it is
acknowledged, sent back, or given back.

Each call may come from any thread, but `pull`, which one thread makes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from timerstore.calls.consuming.constants import Wait
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.subscription import Subscription, Task
from timerstore.services.world.background import Failure
from timerstore.watching.groups import GroupStats


class Waiter(Protocol):
    """Sleeps until something was fired since it was armed."""

    def arm(self) -> None:
        """Notice what is fired from now on."""

    def wait(self, timeout_ms: float) -> object:
        """Return when something was fired, when `wake` was called, or after this time."""

    def wake(self) -> None:
        """End the wait; from any thread."""


class Store(Protocol):
    """An open store, as threads and rules see it; `core/core.py` is one."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    @property
    def forked(self) -> bool:
        """Whether this is a forked child."""

    def check_process(self) -> None:
        """Raise in a forked child."""

    def check_writable(self) -> None:
        """Raise if nothing can be sent back."""

    def steady_ms(self) -> float:
        """Return a time that is never set, or the manual one."""


class Source(Protocol):
    """What a consumer reads, for one group."""

    store: Store
    settings: ConsumerSettings
    failure: Failure
    """What stopped the consumer, if anything did."""

    def subscription(self, topic: str, handler: Any, tags: str) -> Subscription:
        """Return what a handler of a topic gets its messages through."""

    def begin(self, subscriptions: Sequence[Subscription]) -> None:
        """Begin to read. Durable on return: where a new group starts."""

    def pull(self, count_max: int) -> tuple[list[Task], bool]:
        """Pull from the next topic that has something; tell whether limits kept any back."""

    def waiter(self) -> AbstractContextManager[Waiter]:
        """Lend who sleeps until something is fired."""

    def wait_durable(self) -> None:
        """Return once all that was sent back is as durable as a put."""

    def comes_ms(self, wait: Wait) -> int | None:
        """Return when what waits from now on comes again, epoch ms; None if only others know."""

    def close(self) -> None:
        """Stop reading."""

    def look(self, topics: Sequence[str]) -> list[tuple[GroupStats, GroupTally]]:
        """Tell how far the group has come with topics, and what became of what it read."""
