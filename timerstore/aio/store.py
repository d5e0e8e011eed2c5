"""The store for asyncio: each public call of `timerstore.TimerStore`, awaited where it may wait."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from timerstore.aio.consuming import PULL_COUNT_MAX, Batch, Messages, next_batch
from timerstore.aio.side import LoopSide
from timerstore.arguments import Bodies, Keys, Times
from timerstore.consuming import consuming
from timerstore.consuming.dead_letters import LISTED_MAX, DeadLetter
from timerstore.errors import TimerStoreError
from timerstore.ids import TimerIds
from timerstore.kinds import check_int, check_timeout
from timerstore.offline.backup import BackupReport, Progress
from timerstore.pending.listing import Horizon
from timerstore.pending.timers import Timer
from timerstore.pending.verdict import is_foreign
from timerstore.stats import Stats
from timerstore.staying import Stays
from timerstore.switches import Paused
from timerstore.watching.find import Found
from timerstore.watching.health import Health
from timerstore.watching.topics import Upcoming

R = TypeVar("R")
HERE_COUNT_MAX: Final = 1_024
"""Timers that one call puts or cancels in the loop's thread; more go to another one."""
HERE_BYTES_MAX: Final = 1 << 20
"""Bytes of their bodies likewise: half a millisecond."""
_LISTED_AT_ONCE: Final = 256


class TimerStore(Stays):
    """An open store, used by one event loop; made by `timerstore.aio.open` or `attach`.

    Any number of its tasks may use it. A task that is cancelled while it waits for durability has
    put, cancelled or moved its timer all the same; one that waits for room, or for messages, has
    done nothing, taken nothing.

    Its calls are those of `timerstore.TimerStore`, by the same names, awaited; `consume` and
    `pending` are asynchronous iterators. `sync` is the store underneath.

    >>> async with timerstore.aio.open("timers/") as store:  # doctest: +SKIP
    ...     id = await store.put(b"hello", delay=timedelta(minutes=5))
    """

    def __init__(self, side: LoopSide, *, owns: bool) -> None:
        """Take what `open` or `attach` made; `owns`: closing closes the store underneath."""
        self._side, self._owns = side, owns
        self.sync = side.store
        """The store underneath, for threads; its calls may block."""

    @property
    def path(self) -> Path:
        """The directory."""
        return self.sync.path

    async def __aenter__(self) -> TimerStore:
        """Return the store; leaving the block closes it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    def __repr__(self) -> str:
        """Show the path."""
        closed = ", closed" if self.sync.core.closed else ""
        return f"<timerstore.aio.TimerStore {str(self.path)!r}{closed}>"

    # --- putting

    async def put(
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
        """Put one timer and return its id; see `timerstore.TimerStore.put`.

        The loop's thread puts it; puts that are awaited at the same time share an fsync. With
        `if_absent` or `replace` another thread does, for it may have to wait for its turn.
        """
        is_conditional = if_absent is not False or replace is not False
        make = self._side.apart if is_conditional else self._side.append
        return await make(
            self.sync.put,
            body,
            topic=topic,
            delay=delay,
            at=at,
            at_ms=at_ms,
            key=key,
            tag=tag,
            properties=properties,
            delay_level=delay_level,
            if_absent=if_absent,
            replace=replace,
        )

    async def put_many(
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
        """Put many timers and return their ids; see `timerstore.TimerStore.put_many`.

        More than a thousand of them, or than 1 MiB, are put by another thread.
        """

        def put() -> TimerIds:
            return self.sync.put_many(
                bodies,
                topic=topic,
                at_ms=at_ms,
                delay_ms=delay_ms,
                keys=keys,
                tag=tag,
                delay_level=delay_level,
            )

        if self.sync.putting.admission.is_limited or not _is_little(bodies):
            return await self._side.apart(put)
        self._side.check()
        await self._side.turn()
        ids = self._side.here(put)
        try:
            await self._side.durable()
        except TimerStoreError as e:
            error = copy(e)
            error.ids = ids
            raise error from e
        return ids

    async def cancel(self, id: str) -> bool:
        """Cancel a timer; see `timerstore.TimerStore.cancel`."""
        return await self._by_id(id, self.sync.cancel, id)

    async def cancel_many(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Cancel many timers; see `timerstore.TimerStore.cancel_many`. Another thread does it."""
        return await self._side.apart(self.sync.cancel_many, ids)

    async def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all with a key; see `timerstore.TimerStore.cancel_key`. Another thread does it."""
        return await self._side.apart(self.sync.cancel_key, topic, key)

    async def reschedule(
        self,
        id: str,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        body: bytes | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Move a timer to another time, or change its payload.

        See `timerstore.TimerStore.reschedule`.
        """
        return await self._by_id(
            id,
            self.sync.reschedule,
            id,
            delay=delay,
            at=at,
            at_ms=at_ms,
            body=body,
            properties=properties,
        )

    async def _by_id(self, id: str, call: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Make a call on one timer: a broker's is searched, by another thread."""
        self._side.check()
        if is_foreign(self.sync.core, id):
            return await self._side.apart(call, *args, **kwargs)
        return await self._side.append(call, *args, **kwargs)

    # --- looking

    async def get(self, id: str) -> Timer | None:
        """Return a pending timer, or None; see `timerstore.TimerStore.get`."""
        self._side.check()
        if is_foreign(self.sync.core, id):
            return await self._side.apart(self.sync.get, id)
        await self._side.turn()
        return self.sync.get(id)

    async def find(self, id: str) -> Found:
        """Tell what became of a timer; see `timerstore.TimerStore.find`.

        Another thread looks.
        """
        return await self._side.apart(self.sync.find, id)

    async def get_key(self, topic: str, key: str) -> Timer | None:
        """Return a pending timer by its key; see `timerstore.TimerStore.get_key`.

        Another thread looks.
        """
        return await self._side.apart(self.sync.get_key, topic, key)

    def pending(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        key: str | None = None,
    ) -> AsyncIterator[Timer]:
        """Yield pending timers in the order of due time; see `timerstore.TimerStore.pending`."""
        self._side.check()
        timers = self.sync.pending(
            topic=topic, start_ms=start_ms, end_ms=end_ms, limit=limit, key=key
        )
        return self._listed(timers)

    async def _listed(self, timers: Iterator[Timer]) -> AsyncIterator[Timer]:
        def next_part() -> list[Timer]:
            return list(islice(timers, _LISTED_AT_ONCE))

        while part := await self._side.apart(next_part):
            for timer in part:
                yield timer

    async def pending_columns(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return pending timers as an Arrow table; see `timerstore.TimerStore.pending_columns`."""
        return await self._side.apart(
            self.sync.pending_columns,
            topic=topic,
            start_ms=start_ms,
            end_ms=end_ms,
            limit=limit,
            columns=columns,
        )

    async def count(self, topic: str | None = None) -> int:
        """Return how many timers are pending, exactly. O(1)."""
        self._side.check()
        await self._side.turn()
        return self.sync.count(topic)

    async def horizon(
        self, bucket_ms: int, *, start_ms: int | None = None, end_ms: int | None = None
    ) -> Horizon:
        """Return how many timers fall due when; see `timerstore.TimerStore.horizon`."""
        return await self._side.apart(
            self.sync.horizon, bucket_ms, start_ms=start_ms, end_ms=end_ms
        )

    async def upcoming(self, topic: str | None = None) -> Upcoming:
        """Return about how many timers fall due soon; see `timerstore.TimerStore.upcoming`."""
        return await self._side.apart(self.sync.upcoming, topic)

    async def stats(self) -> Stats:
        """Return counters, cursors, lateness; see `timerstore.TimerStore.stats`."""
        return await self._side.apart(self.sync.stats)

    async def health(self) -> Health:
        """Tell whether the store does its work; see `timerstore.TimerStore.health`."""
        return await self._side.apart(self.sync.health)

    # --- consuming

    def consume(
        self, topic: str, *, group: str = "default", timeout: float | None = None
    ) -> Messages:
        """Yield each message of a topic once it is due, to be acknowledged with `ack`.

        As `timerstore.TimerStore.consume`. What was not yielded goes back to the group when the
        iterator is closed, or dropped: a task that is cancelled keeps only what it holds.
        """
        self._side.check()
        self.sync.consume(topic, group=group, timeout=timeout)  # it checks; nothing is begun
        reader = self.sync.consuming.group(topic, group)
        return Messages(self._side, reader, check_timeout(timeout))

    async def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: float | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns; see `timerstore.TimerStore.pull`.

        It takes 4,096 at most, so that the loop's turn stays short. A task that is cancelled has
        taken nothing.
        """
        self._side.check()
        self.sync.consume(topic, group=group, timeout=timeout)  # it checks; nothing is begun
        check_int(max_count, "max_count", 1, consuming.PULL_COUNT_MAX)
        await self._side.turn()
        reader = self.sync.consuming.group(topic, group)
        count_max = min(max_count, PULL_COUNT_MAX)
        batch = await next_batch(self._side, reader, count_max, check_timeout(timeout))
        return Batch(self._side, reader.empty() if batch is None else batch)

    async def dead_letters(self, group: str, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return what a group gave up; see `timerstore.TimerStore.dead_letters`."""
        return await self._side.apart(self.sync.dead_letters, group, limit)

    async def redrive(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Put a group's dead letters back; see `timerstore.TimerStore.redrive`."""
        return await self._side.apart(self.sync.redrive, group, limit, ids=ids)

    async def drop_dead_letters(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give dead letters up for good; see `timerstore.TimerStore.drop_dead_letters`."""
        return await self._side.apart(self.sync.drop_dead_letters, group, limit, ids=ids)

    # --- switches

    async def pause(
        self,
        what: Paused,
        *,
        group: str | None = None,
        duration: timedelta | None = None,
        keep: bool = False,
    ) -> None:
        """Stop "putting", "firing" or "consuming"; see `timerstore.TimerStore.pause`."""
        await self._side.apart(self.sync.pause, what, group=group, duration=duration, keep=keep)

    async def resume(self, what: Paused, *, group: str | None = None) -> None:
        """End a pause; see `timerstore.TimerStore.resume`."""
        await self._side.apart(self.sync.resume, what, group=group)

    # --- the end

    async def flush(self) -> None:
        """Write a checkpoint; everything put before is durable on return."""
        await self._side.apart(self.sync.flush)

    async def backup(
        self,
        dest: str | os.PathLike[str],
        *,
        keep: int | None = None,
        progress: Progress | None = None,
    ) -> BackupReport:
        """Add a point to a backup; see `timerstore.TimerStore.backup`.

        `progress` is called by another thread.
        """
        return await self._side.apart(self.sync.backup, dest, keep=keep, progress=progress)

    async def clean(self) -> int:
        """Copy what is pending out of all old segments; see `timerstore.TimerStore.clean`."""
        return await self._side.apart(self.sync.clean)

    async def handover(self) -> int | None:
        """Make the store fit for a RocketMQ broker, and close it; return until when one must open
        it, in UTC epoch ms. See `timerstore.TimerStore.handover`.
        """
        return await self._side.apart(self.sync.handover)

    async def close(self) -> None:
        """Stop the services, flush, and let the directory go; see `timerstore.TimerStore.close`.

        Of a store that was attached to, only what this loop has of it. Tasks that wait for messages
        come to an end. A task that is cancelled meanwhile leaves it closing, to the end.
        """
        if self._owns:
            if not self.sync.core.ended and not self.sync.core.forked:
                await self._side.apart_always(self.sync.close)
        elif not self._side.stopped:
            await self._side.stop()


def _is_little(bodies: Any) -> bool:
    """Tell whether so many are put in the loop's thread; what is no list of bytes is refused."""
    if isinstance(bodies, np.ndarray | pa.Array | pa.ChunkedArray):
        return len(bodies) <= HERE_COUNT_MAX and bodies.nbytes <= HERE_BYTES_MAX
    try:
        return len(bodies) <= HERE_COUNT_MAX and sum(map(len, bodies)) <= HERE_BYTES_MAX
    except TypeError:
        return True
