"""What any open store can do, wherever it is, for type checkers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from timerstore.arguments import Bodies, Keys, Times
from timerstore.consuming.dead_letters import LISTED_MAX, DeadLetter
from timerstore.consuming.group import Batch, Delivery
from timerstore.ids import TimerIds
from timerstore.pending.listing import Horizon
from timerstore.pending.timers import Timer
from timerstore.stats import Stats
from timerstore.switches import Paused
from timerstore.watching.find import Found
from timerstore.watching.health import Health
from timerstore.watching.topics import Upcoming


class AnyStore(Protocol):
    """An open store: a `TimerStore`, a `SharedStore`, or a `Client` of one.

    All calls that these have in common; `TimerStore` says what each does.

    >>> def remind(store: timerstore.AnyStore, who: str) -> str:
    ...     return store.put(b"hello", key=who, delay=timedelta(hours=1))
    """

    @property
    def path(self) -> Path:
        """The directory."""

    def __enter__(self) -> Self:
        """Return the store; leaving the block closes it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""

    def put(
        self,
        body: bytes,
        *,
        topic: str = "default",
        delay: timedelta | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int | None = None,
        if_absent: bool = False,
        replace: bool = False,
    ) -> str:
        """Put one timer and return its id."""

    def put_many(
        self,
        bodies: Bodies,
        *,
        topic: str = "default",
        at_ms: Times | None = None,
        delay_ms: Times | None = None,
        keys: Keys | None = None,
        tag: str | None = None,
        delay_level: int | None = None,
    ) -> TimerIds:
        """Put many timers and return their ids."""

    def cancel(self, id: str) -> bool:
        """Cancel a timer: True, it will not fire; False, it is too late."""

    def cancel_many(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Cancel many timers; bool[n] as from `cancel`. One fsync for all."""

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all pending timers with a key; return how many they were."""

    def reschedule(
        self,
        id: str,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        body: bytes | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Move a timer to another time, or change its payload; return its new id."""

    def get(self, id: str) -> Timer | None:
        """Return a pending timer, or None where it was fired or cancelled."""

    def find(self, id: str) -> Found:
        """Tell what became of a timer: pending, fired, cancelled, moved, or unknown."""

    def get_key(self, topic: str, key: str) -> Timer | None:
        """Return the pending timer with a key, or None; of several, as a rule the last."""

    def pending(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        key: str | None = None,
    ) -> Iterator[Timer]:
        """Yield pending timers in the order of due time, those with start_ms <= due < end_ms."""

    def pending_columns(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return pending timers as an Arrow table. O(their bytes)."""

    def count(self, topic: str | None = None) -> int:
        """Return how many timers are pending, exactly. O(1)."""

    def horizon(
        self, bucket_ms: int, *, start_ms: int | None = None, end_ms: int | None = None
    ) -> Horizon:
        """Return how many timers fall due when, exactly, in buckets of `bucket_ms`. O(pending)."""

    def upcoming(self, topic: str | None = None) -> Upcoming:
        """Return about how many timers fall due within the next second, minute, hour, day."""

    def stats(self) -> Stats:
        """Return counters, cursors, queue depths, lateness, and what recovery found."""

    def health(self) -> Health:
        """Tell whether the store does its work, and what waits for somebody."""

    def consume(
        self, topic: str, *, group: str = "default", timeout: float | None = None
    ) -> Iterator[Delivery]:
        """Yield each message of a topic once it is due, to be acknowledged with `ack`."""

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: float | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns; empty after `timeout` seconds."""

    def dead_letters(self, group: str, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return what a group gave up and nobody has put back, the oldest first."""

    def redrive(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Put a group's dead letters back; return how many."""

    def drop_dead_letters(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give a group's dead letters up for good, `limit` at most, or those with `ids`."""

    def pause(
        self,
        what: Paused,
        *,
        group: str | None = None,
        duration: timedelta | None = None,
        keep: bool = False,
    ) -> None:
        """Stop "putting", "firing" or "consuming" for a while, as an operator may have to."""

    def resume(self, what: Paused, *, group: str | None = None) -> None:
        """End a pause, if there is one; of "consuming" without `group` those of all groups."""

    def flush(self) -> None:
        """Write a checkpoint; everything put before is durable on return."""

    def clean(self) -> int:
        """Copy what is pending out of all old segments, and remove them; return the bytes freed."""

    def close(self) -> None:
        """Stop the services, flush, and let the directory go. Closing twice does nothing."""
