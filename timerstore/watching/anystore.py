"""The calls of a store: what each is named, takes, returns, does.

They stand here once. A store in this process, a client of one, a store that is shared: each is an
`AnyStore`, so a type checker, `help` and the documentation read the same words of all of them. A
call hands its arguments, in their order, to the method of its name of `_calls`: rooms of the
store (`store/store.py`), or who asks the process that has it open (`serving/client.py`). The store
for asyncio takes each call over (`aio/loopstore.py`); the door answers all that `CALLS` names.
"""

# mypy: disable-error-code="attr-defined, no-any-return"
# A protocol must not name `_calls`: a program's own class may be an AnyStore without it.

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa

from timerstore.consuming.dead_letters import LISTED_MAX, DeadLetter
from timerstore.consuming.delivery import Batch, Delivery
from timerstore.core.switches import Paused
from timerstore.ground.arguments import Bodies, Keys, Times
from timerstore.ground.ids import TimerIds
from timerstore.pending.listing import Horizon
from timerstore.pending.timers import Timer
from timerstore.watching.find import Found
from timerstore.watching.health import Health
from timerstore.watching.stats import Stats
from timerstore.watching.topics import Upcoming


class AnyStore(Protocol):
    """An open store: a `TimerStore`, a `SharedStore`, or a `Client` of one.

    All calls that these have in common, each with what it does.

    >>> def remind(store: timerstore.AnyStore, who: str) -> str:
    ...     return store.put(b"hello", key=who, delay=timedelta(hours=1))
    """

    @property
    def path(self) -> Path:
        """The directory."""

    def __enter__(self) -> Self:
        """Return the store; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    # --- putting

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
        """Put one timer and return its id.

        At most one of `delay`, `at` (aware), `at_ms` (epoch milliseconds) and `delay_level` says
        when it is due; none of them, or a time that has passed: now. Fractions of a millisecond
        round up. `delay_level` counts the durations of `Config.delay_levels` from 1; a higher one
        than there are means the highest.

        With `key` and `if_absent`: where a timer of that topic and key is pending, nothing is put,
        and its id returned. With `replace` this one comes in its place, under a new id. Each is one
        step, beside all others of the kind and over any crash; a put without them asks nobody. Of
        several that are pending, as a rule the last that was put is meant.

        Durable on return as `Config.durability` says. O(size). Waits where `Config.admission` says
        so. Raises InvalidArgumentError, StoreFullError, StoreClosedError, FlushFailedError; then
        nothing was put.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5))
        """
        return self._calls.put(
            (body, topic, delay, at, at_ms, key, tag, properties, delay_level, if_absent, replace)
        )

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
        """Put many timers and return their ids.

        `bodies`: a sequence of bytes, an Arrow binary array, or a 2-D uint8 array of shape (n,
        length). `at_ms`, `delay_ms`: an int, or int64[n]; or `delay_level`, as for `put`; none of
        them: due now. `keys`: n texts.

        One fsync for all. Not a transaction: a crash half-way leaves a prefix; so does an error,
        whose `ids` name it, as durable as any. O(bytes), no object each. Errors as for `put`.

        >>> ids = store.put_many([b"a", b"b"], delay_ms=[1_000, 2_000])
        """
        return self._calls.put_many(bodies, topic, at_ms, delay_ms, keys, tag, delay_level)

    def cancel(self, id: str) -> bool:
        """Cancel a timer: True, it will not fire; False, it is too late, or its message is damaged.

        Asked again before its due time it says True again: whoever lost an answer may repeat it.

        Durable like a put. O(1) for a timer that lies ahead. Raises UnknownTimerError for an id
        that is none of this store's.
        """
        return self._calls.cancel(id)

    def cancel_many(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Cancel many timers; bool[n] as from `cancel`. One fsync for all."""
        return self._calls.cancel_many(ids)

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all pending timers with a key; return how many they were.

        Durable like a put. O(timers with that key); O(pending) without `Config.key_index`.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5), key="user:7")
        >>> store.cancel_key("default", "user:7")
        1
        """
        return self._calls.cancel_key(topic, key)

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
        """Move a timer to another time, or change its payload; return its new id.

        `body` and `properties` come in the place of the old ones, all of them; topic, key and tag
        stay. With either and no time, the time stays as well; with none of all: now.

        Atomic also over a crash: either all that is old holds, or all that is new. Durable like a
        put, O(size). Raises TooLateError where the timer was fired or cancelled, and what `put`
        raises; then nothing changed.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5))
        >>> id = store.reschedule(id, body=b"hello again")
        """
        return self._calls.reschedule(id, delay, at, at_ms, body, properties)

    # --- looking

    def get(self, id: str) -> Timer | None:
        """Return a pending timer, or None where it was fired or cancelled.

        O(1), and the length of a few slots' chains for a timer that may have rolled.
        """
        return self._calls.get(id)

    def find(self, id: str) -> Found:
        """Tell what became of a timer: pending, fired, cancelled, moved, or unknown.

        Of one that was fired: when, and which groups have it; of one that was cancelled: when, and
        the id of the one that came in its place. It sees as far as the commit log is kept: once
        retention has removed what fired, it is unknown. It looks where the id says, short where
        timers fire in time; and through 200,000 messages at most in each place, so what fired hours
        late in a busy topic may be unknown, which `why` then says. Of a broker's key it tells only
        whether it is pending. No lock is held while it reads; what it tells may not be durable yet.
        Raises UnknownTimerError for an id that is none of this store's, CorruptStoreError where it
        is pending and its message damaged.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5))
        >>> store.cancel(id), store.find(id).state
        (True, 'cancelled')
        """
        return self._calls.find(id)

    def get_key(self, topic: str, key: str) -> Timer | None:
        """Return the pending timer with a key, or None; of several, as a rule the last.

        O(1); O(pending) without `Config.key_index`, or read-only. Raises StoreFullError where the
        index has no room on the disk.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5), key="user:7")
        >>> store.get_key("default", "user:7").body
        b'hello'
        """
        return self._calls.get_key(topic, key)

    def pending(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        key: str | None = None,
    ) -> Iterator[Timer]:
        """Yield pending timers in the order of due time, those with start_ms <= due < end_ms.

        It shows the store as it is when iteration begins. With `key`, and a `topic`, those that
        have it, without looking at any other.
        """
        return self._calls.pending(topic, start_ms, end_ms, limit, key)

    def pending_columns(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return pending timers as an Arrow table, as the store is at one instant. O(their bytes).

        Its columns are those of an exported table: id, topic, due_ms, put_ms, roll_count, offset,
        key, tag, properties, body, or the `columns` that are named. Rows are in the order of the
        log, which costs least; with `limit` they are the first by due time, in that order. A timer
        whose message is damaged is left out, and named in the log.

        >>> store.pending_columns(topic="mail", columns=["id", "due_ms"]).num_rows
        0
        """
        return self._calls.pending_columns(topic, start_ms, end_ms, limit, columns)

    def count(self, topic: str | None = None) -> int:
        """Return how many timers are pending, exactly. O(1)."""
        return self._calls.count(topic)

    def horizon(
        self, bucket_ms: int, *, start_ms: int | None = None, end_ms: int | None = None
    ) -> Horizon:
        """Return how many timers fall due when, exactly, in buckets of `bucket_ms`. O(pending)."""
        return self._calls.horizon(bucket_ms, start_ms, end_ms)

    def upcoming(self, topic: str | None = None) -> Upcoming:
        """Return about how many timers fall due within the next second, minute, hour, day.

        Of all topics, or of one. Kept up to date as timers come and go: O(topics), no scan. See
        `horizon` for exact counts, and `stats().topics` for all topics at once.

        >>> due_within_a_minute = dict(store.upcoming("reminders").within)[60_000]
        """
        return self._calls.upcoming(topic)

    def stats(self) -> Stats:
        """Return counters, cursors, queue depths, lateness, and what recovery found.

        Also of a store that has stopped: then `stopped_by` says by what.
        """
        return self._calls.stats()

    def health(self) -> Health:
        """Tell whether the store does its work: its state, each condition since when, what to do.

        `warnings` name what waits for somebody though the store runs well: dead letters, and topics
        that nobody reads. Also of a store that has stopped. O(topics).

        >>> store.health().ok
        True
        """
        return self._calls.health()

    # --- consuming

    def consume(
        self, topic: str, *, group: str = "default", timeout: float | None = None
    ) -> Iterator[Delivery]:
        """Yield each message of a topic once it is due, to be acknowledged with `ack`.

        Blocks for the next one; ends after `timeout` seconds of nothing. Iterators of one group
        share the work. Under "group" durability only what is durable is handed out.
        """
        return self._calls.consume(topic, group, timeout)

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: float | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns; empty after `timeout` seconds.

        Without `timeout` it waits for the first.
        """
        return self._calls.pull(topic, group, max_count, timeout)

    def dead_letters(self, group: str, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return what a group gave up and nobody has put back, the oldest first.

        Nothing is consumed. `limit`: so many at most, None for all. O(letters). What cannot be read
        is left out, and named in the log.

        >>> store.dead_letters("mailer")
        []
        """
        return self._calls.dead_letters(group, limit)

    def redrive(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Put a group's dead letters back, `limit` at most, or those with `ids`; return how many.

        Each comes to this group again at once, with its id, as attempt 0. Durable on return. A
        crash in the middle may double up to 256 of them. O(dead letters) with `ids`.
        """
        return self._calls.redrive(group, limit, ids)

    def drop_dead_letters(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give a group's dead letters up for good, `limit` at most, or those with `ids`.

        Return how many. They are not listed any more, and keep no disk space back. Durable on
        return. O(dead letters) with `ids`.
        """
        return self._calls.drop_dead_letters(group, limit, ids)

    # --- switches

    def pause(
        self,
        what: Paused,
        *,
        group: str | None = None,
        duration: timedelta | None = None,
        keep: bool = False,
    ) -> None:
        """Stop "putting", "firing" or "consuming" for a while, as an operator may have to.

        Putting: `put`, `put_many`, `reschedule` raise PausedError. Firing: what falls due stays
        pending, delay levels and retries too; nothing fires any more once this returns, and after
        it is over what was overdue fires first. Consuming: nothing is handed out, of one `group` or
        of all; what was handed out can be acknowledged.

        Until `resume`, or for a `duration`. With `keep` also after the store is reopened, durable
        on return. A second pause of the same thing replaces the first. `health()` lists them.
        Raises InvalidArgumentError for a group that never read.

        >>> store.pause("firing", duration=timedelta(hours=1))
        """
        self._calls.pause(what, group, duration, keep)

    def resume(self, what: Paused, *, group: str | None = None) -> None:
        """End a pause, if there is one; of "consuming" without `group` those of all groups.

        Raises InvalidArgumentError for a group that never read, and is not paused.
        """
        self._calls.resume(what, group)

    # --- the end

    def flush(self) -> None:
        """Write a checkpoint; everything put before is durable on return."""
        self._calls.flush()

    def clean(self) -> int:
        """Copy what is pending out of all old segments, and remove them; return the bytes freed.

        What `Config.cleaning` does by itself where it is worth it. O(commit log + units); it waits
        some ten seconds until what is due meanwhile has fired, on a manual clock not at all: move
        it, and call again. Raises StoreFullError where there is no room for the copies.
        """
        return self._calls.clean()

    def close(self) -> None:
        """Stop the services, flush, and let the directory go. Closing twice does nothing.

        Calls of other threads that are inside end first; those that come later, and those that
        wait for messages, raise StoreClosedError. Where an exception ends it on the way (Ctrl-C),
        call it again: it goes on, and flushes. Raises what has stopped the store before, if
        anything; it is closed all the same.
        """
        self._calls.close()


CALLS: Final = {
    name: call
    for name, call in vars(AnyStore).items()
    if isinstance(call, FunctionType) and not name.startswith("_")
}
"""Each call by its name."""
