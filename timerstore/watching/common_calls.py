"""The calls that a store has in common with a client of a RocketMQ cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from timerstore.calls.consuming.delivery import Batch, Delivery
from timerstore.values.check_arguments import Bodies, Keys, Times
from timerstore.values.kinds import Duration


class CommonCalls(Protocol):
    """Whatever keeps timers: any store (`AnyStore`), or a `timerstore.rocketmq.Cluster`.

    A program that takes one of these moves to a cluster with another `open`. Arguments are those of
    `AnyStore`; what a `Cluster` does otherwise stands in its own documentation.

    >>> def remind(timers: timerstore.rocketmq.CommonCalls, who: str) -> str:
    ...     return timers.put(b"hello", key=who, delay=timedelta(hours=1))
    """

    def __enter__(self) -> Self:
        """Return it; leaving the block closes it."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def put(
        self,
        body: bytes,
        *,
        topic: str = "default",
        delay: Duration | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Put one timer and return its id."""
        ...

    def put_many(
        self,
        bodies: Bodies,
        *,
        topic: str = "default",
        delay: Duration | None = None,
        delay_ms: Times | None = None,
        at: datetime | None = None,
        at_ms: Times | None = None,
        keys: Keys | None = None,
        tag: str | None = None,
    ) -> Sequence[str]:
        """Put many timers and return their ids."""
        ...

    def cancel(self, id: str) -> bool:
        """Cancel a timer. False: too late."""
        ...

    def consume(
        self, topic: str, *, group: str = "default", timeout: Duration | None = None
    ) -> Iterator[Delivery]:
        """Yield each message of a topic when it is due. Acknowledge it with `ack`."""
        ...

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: Duration | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns."""
        ...

    def close(self) -> None:
        """Let go what it holds."""
        ...
