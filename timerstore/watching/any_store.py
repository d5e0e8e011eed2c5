"""The calls of a store: what each is named, takes, returns, does.

Each call is declared here once. A store in this process, a client of one, a shared store: each is
an `AnyStore`, so a type checker, `help` and the documentation show the same text for all of them. A
call hands its arguments, in order, to the method of the same name of `_calls`. Those are rooms of
the store (`store/store.py`), or calls to the process that has it open (`share/client.py`). The
store for asyncio reuses each call (`aio/loopstore.py`); the door answers all that `CALLS` names.
"""

# mypy: disable-error-code="attr-defined, no-any-return"
# A protocol must not name `_calls`: a program's own class may be an AnyStore without it.

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack

import numpy as np
import pyarrow as pa

from timerstore.calls.consuming.delivery import LISTED_MAX, Batch, Delivery
from timerstore.core.switches import Paused
from timerstore.values.check_arguments import (
    ArrowArray,
    ArrowChunks,
    Bodies,
    Durations,
    Instants,
    Keys,
    Range,
    Times,
    given_delay,
    given_instant,
    given_times,
    jittered,
    refuse_jitter_of_level,
)
from timerstore.values.ids import TimerIds
from timerstore.values.kinds import Duration
from timerstore.values.puts import (
    Debounce,
    Described,
    Many,
    given_debounce,
    given_expires,
    json_body,
    put_columns,
)

if TYPE_CHECKING:  # a client that does not ask for one of these does not load the engine
    from timerstore.calls.consuming.dead_letters import DeadLetter
    from timerstore.calls.pending.listing import Horizon
    from timerstore.calls.pending.timers import Timer
    from timerstore.watching.find import Found
    from timerstore.watching.health import Health
    from timerstore.watching.stats import Stats
    from timerstore.watching.topics import Upcoming


class AnyStore(Protocol):
    """An open store: a `TimerStore`, a `SharedStore`, or a `Client` of one.

    It has the calls that these have in common.

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
        self.close()

    # --- putting

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
        delay_level: int | None = None,
        if_absent: bool = False,
        replace: bool = False,
        jitter: Duration | None = None,
        debounce: Duration | None = None,
        at_most: Duration | None = None,
        expires: Duration | datetime | None = None,
        expires_ms: int | None = None,
    ) -> str:
        """Put one timer and return its id.

        Pass at most one time: `delay` (a timedelta or timedelta64, or seconds), `delay_ms`, `at` (a
        datetime with a time zone, or a datetime64, which counts in UTC), `at_ms` (epoch
        milliseconds) or `delay_level`. Without a time, or if the time has passed, the timer is due
        now. Fractions of a millisecond round up. `delay_level` counts the durations of
        `Config.delay_levels` from 1; a number that is too high means the last level.

        With `if_absent` and a `key`: if a timer of that topic and key is pending, put nothing and
        return its id. With `replace`: put this timer in its place, under a new id. Both are atomic,
        also over a crash and beside other such calls. If several are pending, the last one that
        was put usually counts.

        With `debounce` and a `key`: put it in the place of the one that is pending, as `replace`
        does, due so long from now; but not later than `at_most` after the first put, the one that
        found none. Who puts again and again so gets one timer, once that stops. A timer whose time
        has come is left to fire: then this put is the first one again.

        `expires`, a length of time from now or an instant, or `expires_ms`: what would come to a
        consumer after that, as a retry too, does not come. It counts as `expired_count` of the
        group, and is its dead letter if the consumer asks for that; `find` says "expired" if it
        fired after that.

        With `jitter` it is due that much later at most, never earlier: each millisecond from 0 to
        `jitter` is as likely. The number is drawn by Python's `random`, so `random.seed` repeats
        it.

        Durable on return as `Config.durability` says. O(size). Waits for room if
        `Config.admission` is "wait". Raises InvalidArgumentError, StoreFullError, StoreClosedError,
        FlushFailedError; then nothing was put.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5))
        """
        if delay_ms is not None or (delay is not None and type(delay) is not timedelta):
            delay = given_delay(delay, delay_ms)
        if at is not None and type(at) is not datetime:
            at, at_ms = None, given_instant(at, at_ms, "at")
        how: bool | Debounce = replace
        until = None
        if expires is not None or expires_ms is not None:
            until = given_expires(expires, expires_ms)
        if debounce is not None or at_most is not None:
            others = delay, at, at_ms, delay_level, jitter, if_absent, replace
            how = given_debounce(debounce, at_most, key, *others)
            delay = how.wait
        if jitter is not None:
            delay, at_ms = jittered(jitter, delay, at, at_ms, delay_level)
            at = None
        return self._calls.put(
            (
                body,
                topic,
                delay,
                at,
                at_ms,
                key,
                tag,
                properties,
                delay_level,
                if_absent,
                how,
                until,
            )
        )

    def put_many(
        self,
        bodies: Bodies,
        *,
        topic: str = "default",
        delay: Durations | None = None,
        delay_ms: Times | None = None,
        at: Instants | None = None,
        at_ms: Times | None = None,
        keys: Keys | None = None,
        tag: str | None = None,
        delay_level: int | None = None,
        jitter: Duration | None = None,
        expires: Duration | datetime | None = None,
        expires_ms: int | None = None,
    ) -> TimerIds:
        """Put many timers and return their ids.

        `bodies`: a sequence of bytes, an Arrow binary array, or a 2-D uint8 array of shape (n,
        length). `delay`, `at`, `delay_ms`, `at_ms`: as for `put`, one for all, or n of them: a
        list, or an array of NumPy, pandas, Polars or Arrow. `delay_level`: for all. Without a time,
        all are due now. `keys`: n texts. `expires`: as for `put`, one for all. `jitter`: as for
        `put`, drawn for each timer by NumPy's `default_rng`, whose seed Python's `random` draws.

        One fsync for all. It is not a transaction: a crash half-way leaves the first ones, and so
        does an error, whose `ids` are theirs. O(bytes), without an object for each timer. Errors as
        for `put`.

        >>> ids = store.put_many([b"a", b"b"], delay_ms=[1_000, 2_000])
        """
        until = given_expires(expires, expires_ms)
        if jitter is not None:
            refuse_jitter_of_level(delay_level)
        if delay is not None or at is not None:
            delay_ms, at_ms = given_times(delay, delay_ms, at, at_ms)  # type: ignore[assignment]
        given = topic, at_ms, delay_ms, keys, tag, delay_level, jitter, until
        return self._calls.put_many(bodies, Many(*given))

    def put_json(self, value: object, **described: Unpack[Described]) -> str:
        """Put one timer whose body is a value as JSON, and return its id; `Delivery.json` reads it.

        `value`: what `json.dumps` takes, without NaN. All else is as for `put`.

        >>> id = store.put_json({"order": 42}, topic="orders", delay=timedelta(minutes=5))
        """
        return self.put(json_body(value), **described)

    def put_table(
        self,
        table: ArrowArray | ArrowChunks,
        *,
        due: str | None = "due",
        body: str = "body",
        key: str | None = None,
        topic: str = "default",
        tag: str | None = None,
        jitter: Duration | None = None,
        expires: Duration | datetime | None = None,
    ) -> TimerIds:
        """Put a timer for each row of a table, and return their ids.

        `table`: a table or a batch of Arrow, a DataFrame of Polars or of pandas 2.2 or newer, or
        what else exports itself to Arrow. `due`, `body`, `key` name its columns: instants with a
        time zone, lengths of time, or whole epoch milliseconds; bytes or texts; texts. Without
        `due`, all are due now. `jitter`, `expires`: as for `put_many`.

        Durable like `put_many`, with its cost and its errors.

        >>> import pyarrow as pa
        >>> rows = pa.table({"at": pa.array([4_000_000_000_000]), "what": pa.array(["hello"])})
        >>> ids = store.put_table(rows, due="at", body="what")
        """
        columns = put_columns(table, due, body, key)
        return self.put_many(topic=topic, tag=tag, jitter=jitter, expires=expires, **columns)

    def cancel(self, id: str) -> bool:
        """Cancel a timer. True: it will not fire. False: too late, or its message is damaged.

        You may repeat the call if its answer was lost: before the due time it returns True again.

        Durable like a put. O(1) for a timer that is not due yet. Raises UnknownTimerError if the id
        is not of this store.
        """
        return self._calls.cancel(id)

    def cancel_many(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Cancel many timers; return bool[n], as from `cancel`. One fsync for all.

        Raises UnknownTimerError if one of them is no timer of this store; then none is cancelled.
        Raises StoreFullError if there is no room for all; then some may be cancelled. Call it again
        with the same ids: those are True that are cancelled and not yet due.
        """
        return self._calls.cancel_many(ids)

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all pending timers with a key; return how many there were.

        Durable like a put. O(timers with that key); O(pending) without `Config.key_index`. Raises
        StoreFullError if there is no room for all; then some may be cancelled. Call it again.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5), key="user:7")
        >>> store.cancel_key("default", "user:7")
        1
        """
        return self._calls.cancel_key(topic, key)

    def reschedule(
        self,
        id: str,
        *,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        body: bytes | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Move a timer to another time, or change its payload; return its new id.

        The times are those of `put`, without `delay_level`.
        `body` replaces the old body, `properties` replaces all old properties. Topic, key and tag
        stay. If you pass one of these and no time, the time stays. If you pass nothing, it is due
        now.

        Atomic, also over a crash: either the old timer holds or the new one. Durable like a put,
        O(size). Raises TooLateError if the timer was fired or cancelled, and what `put` raises;
        then nothing changed.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5))
        >>> id = store.reschedule(id, body=b"hello again")
        """
        changes = given_delay(delay, delay_ms), at, at_ms, body, properties
        return self._calls.reschedule(id, changes)

    # --- looking

    def get(self, id: str) -> Timer | None:
        """Return a pending timer, or None if it was fired or cancelled.

        O(1). For a timer that may have been written again on its way (a roll) it also reads a few
        slots.
        """
        return self._calls.get(id)

    def find(self, id: str) -> Found:
        """Return what became of a timer: pending, fired, cancelled, moved, or unknown.

        For a fired timer it says when, and what each group did with it. For a cancelled one it says
        when, and the id of the timer that replaced it. It sees as far back as the commit log is
        kept; after that a timer is unknown. It reads at most 200,000 messages in each place, so a
        timer that fired hours late in a busy topic may be unknown; `why` says so. For a broker's
        key it says only whether it is pending. It holds no lock, and what it returns may not be
        durable yet. Raises UnknownTimerError if the id is not of this store, CorruptStoreError if
        the timer is pending and its message is damaged.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5))
        >>> store.cancel(id), store.find(id).state
        (True, 'cancelled')
        """
        return self._calls.find(id)

    def get_key(self, topic: str, key: str) -> Timer | None:
        """Return the pending timer with a key, or None. If there are several, usually the last.

        O(1); O(pending) without `Config.key_index`, or read-only. After a crash, or after very many
        puts, which the index follows at each flush, the first calls may have to wait until it has
        read all, which `health` shows. Raises StoreFullError if it has no room on the disk.

        >>> id = store.put(b"hello", delay=timedelta(minutes=5), key="user:7")
        >>> store.get_key("default", "user:7").body
        b'hello'
        """
        return self._calls.get_key(topic, key)

    def pending(
        self,
        *,
        topic: str | None = None,
        start: datetime | None = None,
        start_ms: int | None = None,
        end: datetime | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        key: str | None = None,
    ) -> Iterator[Timer]:
        """Yield pending timers by due time, those with start <= due < end.

        It shows the store as it is when the iteration begins, and each timer that is pending all
        the while once. What it has to read stays on the disk meanwhile. If you stop for more than a
        minute, or the disk is nearly full, that may go; then it shows what is pending by then of
        those that are left. With `topic` and `key` it reads only the timers with that key. Raises
        StoreFullError if a full store cannot keep what is to be read.

        It reads as it goes: what it yields, and 52 bytes for each timer that waits in a slot of the
        wheel before that. A timer further ahead than the window (`roll_window_slots`) waits in any
        slot; it comes in its order, and before the first such each slot is read. With `topic`, the
        timers of other topics that are due before are read too.
        """
        start_ms = given_instant(start, start_ms, "start")
        end_ms = given_instant(end, end_ms, "end")
        return self._calls.pending(Range(topic, start_ms, end_ms, limit, key))

    def pending_columns(
        self,
        *,
        topic: str | None = None,
        start: datetime | None = None,
        start_ms: int | None = None,
        end: datetime | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return pending timers as an Arrow table, as the store is at one instant.

        O(their bytes); with `end`, or with `limit`, it reads no more than `pending` does.

        The columns are id, topic, due_ms, put_ms, roll_count, offset, key, tag, properties, body,
        or the `columns` that you name. Rows are in the order of the log, which costs least. With
        `limit` they are the first by due time, in that order. A timer whose message is damaged is
        left out, and the log names it.

        >>> store.pending_columns(topic="mail", columns=["id", "due_ms"]).num_rows
        0
        """
        start_ms = given_instant(start, start_ms, "start")
        end_ms = given_instant(end, end_ms, "end")
        return self._calls.pending_columns(Range(topic, start_ms, end_ms, limit), columns)

    def count(self, topic: str | None = None) -> int:
        """Return how many timers are pending, exactly. O(1)."""
        return self._calls.count(topic)

    def horizon(
        self,
        bucket_ms: int,
        *,
        start: datetime | None = None,
        start_ms: int | None = None,
        end: datetime | None = None,
        end_ms: int | None = None,
    ) -> Horizon:
        """Return how many timers are due in each span of `bucket_ms`, exactly.

        O(timers in the slots before `end`), 52 bytes each; their messages are read too if a timer
        that is pending was cancelled. `upcoming` is O(1), and not exact.
        """
        start_ms = given_instant(start, start_ms, "start")
        end_ms = given_instant(end, end_ms, "end")
        return self._calls.horizon(bucket_ms, start_ms, end_ms)

    def upcoming(self, topic: str | None = None) -> Upcoming:
        """Return about how many timers are due within the next second, minute, hour, day.

        Counts all topics, or one. It reads counters: O(topics), no scan. `horizon` is exact;
        `stats().topics` shows all topics at once.

        >>> due_within_a_minute = dict(store.upcoming("reminders").within)[60_000]
        """
        return self._calls.upcoming(topic)

    def stats(self) -> Stats:
        """Return counters, cursors, queue depths, lateness, and what recovery found.

        It works for a store that has stopped, too: then `stopped_by` says why.
        """
        return self._calls.stats()

    def health(self) -> Health:
        """Say whether the store does its work: its state, what is wrong since when, what to do.

        `warnings` name dead letters, topics that nobody reads, consumers that an error stopped. It
        works for a store that has stopped, too. O(topics).

        >>> store.health().ok
        True
        """
        return self._calls.health()

    # --- consuming

    def consume(
        self, topic: str, *, group: str = "default", timeout: Duration | None = None
    ) -> Iterator[Delivery]:
        """Yield each message of a topic when it is due. Acknowledge it with `ack`.

        It waits for the next message, and ends after `timeout` seconds without one. Iterators of
        one group share the messages. With "group" durability only durable messages are handed out.
        """
        return self._calls.consume(topic, group, timeout)

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: Duration | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns.

        It waits for the first one. After `timeout` seconds, or one if what it meets has expired, it
        returns an empty batch.
        """
        return self._calls.pull(topic, group, max_count, timeout)

    def dead_letters(
        self, group: str, limit: int | None = LISTED_MAX, *, skip: int = 0
    ) -> list[DeadLetter]:
        """Return the dead letters of a group, the oldest first: messages that it gave up.

        Nothing is consumed. `limit`: how many at most; None: all. `skip`: so many before them are
        not read. O(letters that are read). One that cannot be read is left out, and the log names
        it.

        >>> store.dead_letters("mailer")
        []
        """
        return self._calls.dead_letters(group, limit, skip)

    def retry_dead_letters(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Put a group's dead letters back, `limit` at most, or those with `ids`; return how many.

        Each comes to this group again at once, with the same id, as attempt 0. Durable on return.
        A crash in the middle may repeat up to 256 of them. O(dead letters) with `ids`.
        """
        return self._calls.retry_dead_letters(group, limit, ids)

    def drop_dead_letters(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give a group's dead letters up for good, `limit` at most, or those with `ids`.

        Return how many. They are no longer listed and no longer keep disk space. Durable on return.
        O(dead letters) with `ids`.
        """
        return self._calls.drop_dead_letters(group, limit, ids)

    def forget_group(self, group: str, *, topic: str | None = None) -> int:
        """Forget a group that will not read again, of one `topic` or of all; return how many.

        A group keeps the messages that it has not read on the disk. What it committed is forgotten,
        with its counters; of all topics also what it sent back and its pause. If it reads again, it
        begins as a new group. Durable on return. O(groups).

        0: it never read. Raises InvalidArgumentError if a consumer of it runs or waits, if it has
        messages that it has not acknowledged, and if it has dead letters.

        >>> store.pull("default", group="web-1234", timeout=0).ack()
        >>> store.forget_group("web-1234")
        1
        """
        return self._calls.forget_group(group, topic)

    # --- switches

    def pause(
        self,
        what: Paused,
        *,
        group: str | None = None,
        duration: Duration | None = None,
        keep: bool = False,
    ) -> None:
        """Stop "putting", "firing" or "consuming" for a while.

        "putting": `put`, `put_many` and `reschedule` raise PausedError. "firing": when this call
        returns, nothing fires any more, retries included; what falls due stays pending, and fires
        first after the pause. "consuming": nothing is handed out, to one `group` or to all; what
        was handed out can be acknowledged.

        The pause lasts until `resume`, or for a `duration`. With `keep` it holds after the store is
        reopened, and is durable on return. A second pause of the same thing replaces the first.
        `health()` lists them. Raises InvalidArgumentError for a group that never read.

        >>> store.pause("firing", duration=timedelta(hours=1))
        """
        self._calls.pause(what, group, duration, keep)

    def resume(self, what: Paused, *, group: str | None = None) -> None:
        """End a pause, if there is one. "consuming" without a `group`: those of all groups.

        Raises InvalidArgumentError for a group that never read and is not paused.
        """
        self._calls.resume(what, group)

    # --- the end

    def flush(self) -> None:
        """Write a checkpoint. Everything that was put before is durable on return."""
        self._calls.flush()

    def clean(self) -> int:
        """Copy pending timers out of all old files, and remove the files; return the bytes freed.

        `Config.cleaning` does this by itself when it is worth it. O(commit log + units). It waits
        some ten seconds until what is due meanwhile has fired. With a manual clock it does not
        wait: move the clock, and call again. Raises StoreFullError if there is no room for copies.
        """
        return self._calls.clean()

    def close(self) -> None:
        """Stop the services, flush, and release the directory. Closing twice does nothing.

        Calls of other threads that are under way end first. Later calls, and calls that wait for
        messages, raise StoreClosedError. If an exception interrupts it (Ctrl-C), call it again: it
        goes on. If an error had stopped the store, it raises that error, and closes all the same.
        It waits until each timer that was put has its unit in the wheel, so that the next opening
        does not depend on how many are pending: O(what was put just before).
        """
        self._calls.close()


COMPOSED: Final = ("put_json", "put_table")
"""Calls that make others, and are nobody's to answer."""
CALLS: Final = {
    name: call
    for name, call in vars(AnyStore).items()
    if isinstance(call, FunctionType) and not name.startswith("_") and name not in COMPOSED
}
"""Each other call by its name."""
TURNED: Final = ("delay_ms", "jitter", "debounce", "at_most", "expires_ms", "start", "end")
"""Arguments of calls on one timer, or of ranges, that are handed on as `delay` or in ms."""
