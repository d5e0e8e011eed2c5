"""A client: the calls of a store that another process has open."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from timerstore.arguments import (
    Binaries,
    Bodies,
    Keys,
    Times,
    check_body,
    check_due_array,
    encode_properties,
    resolve_due_ms,
)
from timerstore.consuming.consuming import CONSUME_COUNT
from timerstore.consuming.dead_letters import LISTED_MAX, DeadLetter
from timerstore.consuming.group import Batch, Delivery
from timerstore.control.wire import Part, from_json, to_json
from timerstore.errors import InvalidArgumentError, StoreClosedError, TimerStoreError
from timerstore.ids import TimerIds
from timerstore.kinds import check_place, check_timeout
from timerstore.pending.listing import Horizon
from timerstore.pending.timers import Timer
from timerstore.serving.answers import WAIT_S, read_ids
from timerstore.serving.batch import ClientBatch
from timerstore.serving.columns import COLUMN_BYTES, read_table, write_table
from timerstore.serving.link import Answered, Link, check_patience
from timerstore.serving.typed import typed
from timerstore.stats import Stats
from timerstore.staying import Stays
from timerstore.store import TimerStore
from timerstore.switches import Paused
from timerstore.timelog.format import MESSAGE_BYTES_MAX
from timerstore.watching.find import Found
from timerstore.watching.health import Health
from timerstore.watching.topics import Upcoming

IDS_AT_ONCE: Final = 500_000
"""In one question, so that it is short enough."""
PATIENCE_S: Final = 30.0
"""How long a call waits for an owner."""
_NO_ROWS: Final = pa.table(
    {
        "id": pa.array([], pa.string()),
        "body": pa.array([], pa.binary()),
        "due_ms": pa.array([], pa.int64()),
        "fired_ms": pa.array([], pa.int64()),
        "offset": pa.array([], pa.int64()),
    }
)


class Client(Stays):
    """A store that another process serves; made by `timerstore.connect`.

    Its calls are those of `TimerStore`, with the same errors; see there. Any number of threads may
    use it, and a forked child too, as a client of its own. Where the owner ends, a call waits for
    the next one, and is made there, once: what was put is not put twice. What was pulled and not
    acknowledged comes again. Raises StoreClosedError where no process serves the store for a while.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = PATIENCE_S) -> None:
        """Connect; see `timerstore.connect`."""
        self._path = check_place(path)
        self._link = Link(self._path, check_patience(timeout))
        self._greet()

    def _greet(self) -> None:
        """See that somebody answers."""
        try:
            self._ask("beat")
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    def __enter__(self) -> Self:
        """Return the client; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the path."""
        closed = ", closed" if self._link.closed.is_set() else ""
        return f"<{type(self).__name__} of {str(self._path)!r}{closed}>"

    def close(self) -> None:
        """Leave; what was pulled, but not acknowledged, comes again. Twice does nothing."""
        self._link.close()

    @staticmethod
    def _consumer_kind() -> Any:
        """Return the class of its consumers."""
        from timerstore.serving.consumer import ClientConsumer

        return ClientConsumer

    def _owned(self) -> TimerStore | None:
        """Return the store itself, where this process owns it at present."""
        return None

    def _ask(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        parts: Sequence[Part] = (),
        *,
        is_repeatable: bool = True,
    ) -> Any:
        """Return the result of a call, from JSON."""
        header, _ = self._ask_parts(name, arguments or {}, parts, is_repeatable=is_repeatable)
        return from_json(header["result"])

    def _ask_parts(
        self,
        name: str,
        arguments: dict[str, Any],
        parts: Sequence[Part] = (),
        *,
        is_repeatable: bool = True,
    ) -> Answered:
        """Return the header that answers a call, and its parts."""
        try:
            said = to_json(arguments)
            return self._link.ask(name, said, parts, is_repeatable=is_repeatable)
        except TypeError as e:
            raise InvalidArgumentError(f"{name}: {e}. See the call of the same name.") from e

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
        """Put one timer and return its id; see `TimerStore.put`."""
        body = check_body(body, 0, MESSAGE_BYTES_MAX)
        given: dict[str, Any] = {"topic": topic}
        if delay_level is None:
            given["at_ms"] = resolve_due_ms(_now_ms(), delay, at, at_ms, None)
        else:
            _check_alone(delay, at, at_ms)
            given["delay_level"] = delay_level
        if not (key is None and tag is None and properties is None):
            encode_properties(key, tag, properties)  # it checks them
            given |= {"key": key, "tag": tag, "properties": dict(properties or {})}
        if if_absent is not False or replace is not False:
            given |= {"if_absent": if_absent, "replace": replace}
        id: str = self._ask("put", given | {"body": body})
        return id

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
        """Put many timers and return their ids; see `TimerStore.put_many`.

        One fsync for each 16 MiB.
        """
        columns = {"body": _binary(bodies, "bodies", takes_text=False)}
        count = len(columns["body"])
        if delay_level is None:
            due_ms = check_due_array(count, _now_ms(), at_ms, delay_ms, None)
            columns["at_ms"] = pa.array(due_ms)
        else:
            _check_alone(at_ms, delay_ms)
        if keys is not None:
            columns["key"] = _binary(keys, "keys", takes_text=True)
            if len(columns["key"]) != count:
                raise InvalidArgumentError(
                    f"There are {len(columns['key'])} keys for {count} bodies. Pass one each."
                )
        table = pa.table(columns)
        given = {"topic": topic, "tag": tag, "delay_level": delay_level}
        done: list[TimerIds] = []
        for piece in _pieces(table):
            try:
                header, parts = self._link.ask("put_many", to_json(given), write_table(piece))
            except TimerStoreError as e:
                if isinstance(e.ids, TimerIds):
                    done.append(e.ids)
                if done:
                    e.ids = _joined(done)
                raise
            done.append(read_ids(header["result"], parts[0]))
        return _joined(done)

    def cancel(self, id: str) -> bool:
        """Cancel a timer; see `TimerStore.cancel`."""
        return bool(self._ask("cancel", {"id": id}))

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all with a key; see `TimerStore.cancel_key`."""
        return int(self._ask("cancel_key", {"topic": topic, "key": key}))

    def cancel_many(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Cancel many timers; see `TimerStore.cancel_many`.

        By pieces of 500,000, with an fsync for each.
        """
        pieces: list[Any] = [ids]
        if not isinstance(ids, str | bytes):
            ids = list(ids)
            starts = range(0, max(len(ids), 1), IDS_AT_ONCE)
            pieces = [ids[start : start + IDS_AT_ONCE] for start in starts]
        verdicts = [self._ask_parts("cancel_many", {"ids": each})[1][0] for each in pieces]
        return np.frombuffer(b"".join(verdicts), np.bool_)

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
        """Move a timer to another time and return its new id; see `TimerStore.reschedule`."""
        given: dict[str, Any] = {"id": id}
        times = (delay, at, at_ms)
        if any(each is not None for each in times) or (body is None and properties is None):
            given["at_ms"] = resolve_due_ms(_now_ms(), *times, None)
        if body is not None:
            given["body"] = check_body(body, 0, MESSAGE_BYTES_MAX)
        if properties is not None:
            encode_properties(None, None, properties)  # it checks them
            given["properties"] = dict(properties)
        moved: str = self._ask("reschedule", given)
        return moved

    # --- looking

    def get(self, id: str) -> Timer | None:
        """Return a pending timer, or None; see `TimerStore.get`."""
        told = self._ask("get", {"id": id})
        return None if told is None else typed(Timer, told)

    def find(self, id: str) -> Found:
        """Tell what became of a timer; see `TimerStore.find`."""
        return typed(Found, self._ask("find", {"id": id}))

    def get_key(self, topic: str, key: str) -> Timer | None:
        """Return a pending timer by its key; see `TimerStore.get_key`."""
        told = self._ask("get_key", {"topic": topic, "key": key})
        return None if told is None else typed(Timer, told)

    def pending(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        key: str | None = None,
    ) -> Iterator[Timer]:
        """Yield pending timers in the order of due time; see `TimerStore.pending`.

        Where the owner ends on the way it raises InvalidArgumentError: begin again.
        """
        given: dict[str, Any] = {
            "topic": topic,
            "start_ms": start_ms,
            "end_ms": end_ms,
            "limit": limit,
        }
        if key is not None:
            given["key"] = key
        return self._list(given)

    def _list(self, given: dict[str, Any]) -> Iterator[Timer]:
        while True:
            told = self._ask("pending", given)
            for each in told["timers"]:
                yield typed(Timer, each)
            if told["listing"] is None:
                return
            given = {"listing": told["listing"]}

    def pending_columns(
        self,
        *,
        topic: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return pending timers as an Arrow table; see `TimerStore.pending_columns`."""
        given = {"topic": topic, "start_ms": start_ms, "end_ms": end_ms, "limit": limit}
        _, parts = self._link.ask("pending_columns", to_json(given | {"columns": _names(columns)}))
        return read_table(parts)

    def count(self, topic: str | None = None) -> int:
        """Return how many timers are pending; see `TimerStore.count`."""
        return int(self._ask("count", {"topic": topic}))

    def horizon(
        self, bucket_ms: int, *, start_ms: int | None = None, end_ms: int | None = None
    ) -> Horizon:
        """Return how many timers fall due when; see `TimerStore.horizon`."""
        given = {"bucket_ms": bucket_ms, "start_ms": start_ms, "end_ms": end_ms}
        return typed(Horizon, self._ask("horizon", given))

    def upcoming(self, topic: str | None = None) -> Upcoming:
        """Return about how many timers fall due soon; see `TimerStore.upcoming`."""
        return typed(Upcoming, self._ask("upcoming", {"topic": topic}))

    def stats(self) -> Stats:
        """Return the owner's statistics; see `TimerStore.stats`."""
        return typed(Stats, self._ask("stats"))

    def health(self) -> Health:
        """Tell whether the owner does its work; see `TimerStore.health`."""
        return typed(Health, self._ask("health"))

    # --- consuming

    def consume(
        self, topic: str, *, group: str = "default", timeout: float | None = None
    ) -> Iterator[Delivery]:
        """Yield each message of a topic once it is due; see `TimerStore.consume`."""
        timeout = check_timeout(timeout)
        return self._iterate(topic, group, timeout)

    def _iterate(self, topic: str, group: str, timeout: float | None) -> Iterator[Delivery]:
        while True:
            try:
                batch = self._pull(topic, group, CONSUME_COUNT, timeout)
            except StoreClosedError:
                if self._link.closed.is_set():
                    return
                raise
            if len(batch) == 0:
                return
            done = 0
            try:
                for delivery in batch:
                    done += 1
                    yield delivery
            finally:
                if done < len(batch) and not self._link.closed.is_set():
                    batch.give_back(list(range(done, len(batch))))

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: float | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns; see `TimerStore.pull`.

        Fewer where their bodies take more than 32 MiB.
        """
        return self._pull(topic, group, max_count, check_timeout(timeout))

    def _pull(self, topic: str, group: str, max_count: int, timeout: float | None) -> ClientBatch:
        until_s = None if timeout is None else time.monotonic() + timeout
        while True:
            wait_s = WAIT_S if until_s is None else max(0.0, until_s - time.monotonic())
            given = {"topics": [topic], "group": group, "max_count": max_count}
            header, parts = self._link.ask(
                "pull", to_json(given | {"timeout": min(wait_s, WAIT_S)})
            )
            told = header["result"]
            if told is not None:
                return ClientBatch(self._link, topic, group, told["batch"], read_table(parts))
            if wait_s <= WAIT_S and until_s is not None and time.monotonic() >= until_s:
                return ClientBatch(self._link, topic, group, None, _NO_ROWS)

    def dead_letters(self, group: str, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return what a group gave up; see `TimerStore.dead_letters`."""
        told = self._ask("dead_letters", {"group": group, "limit": limit})
        return [typed(DeadLetter, each) for each in told]

    def redrive(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Put a group's dead letters back; see `TimerStore.redrive`.

        Raises StoreClosedError where the owner ends meanwhile.
        """
        given = {"group": group, "limit": limit, "ids": _names(ids)}
        return int(self._ask("redrive", given, is_repeatable=False))

    def drop_dead_letters(
        self, group: str, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give a group's dead letters up for good; see `TimerStore.drop_dead_letters`.

        Raises StoreClosedError where the owner ends meanwhile.
        """
        given = {"group": group, "limit": limit, "ids": _names(ids)}
        return int(self._ask("drop_dead_letters", given, is_repeatable=False))

    # --- switches

    def pause(
        self,
        what: Paused,
        *,
        group: str | None = None,
        duration: timedelta | None = None,
        keep: bool = False,
    ) -> None:
        """Stop something for a while; see `TimerStore.pause`."""
        given: dict[str, Any] = {"what": what, "group": group, "keep": keep}
        if isinstance(duration, timedelta):
            given["duration_s"] = duration.total_seconds()
        elif duration is not None:
            raise InvalidArgumentError(f"duration is {duration!r}. Pass a timedelta.")
        self._ask("pause", given)

    def resume(self, what: Paused, *, group: str | None = None) -> None:
        """End a pause; see `TimerStore.resume`."""
        self._ask("resume", {"what": what, "group": group})

    # --- the end

    def flush(self) -> None:
        """Have the owner write a checkpoint; see `TimerStore.flush`."""
        self._ask("flush")

    def clean(self) -> int:
        """Have the owner clean now; see `TimerStore.clean`."""
        return int(self._ask("clean"))


def connect(path: str | os.PathLike[str], *, timeout: float = PATIENCE_S) -> Client:
    """Return a client of a store that another process of this machine and user serves.

    A context manager. `timeout`: for so many seconds a call, this one too, waits where nobody
    serves it; then it raises StoreClosedError. Raises NotAStoreError where the owner is of another
    version.

    >>> with timerstore.open("timers/", share=True), timerstore.connect("timers/") as client:
    ...     id = client.put(b"hello")
    """
    return Client(path, timeout=timeout)


def _names(ids: Collection[str] | None) -> Collection[str] | None:
    """Return ids as JSON can say them; what is wrong with them, the owner says."""
    return ids if ids is None or isinstance(ids, str) else list(ids)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _check_alone(*others: object) -> None:
    if any(other is not None for other in others):
        raise InvalidArgumentError("delay_level excludes delay, at and at_ms. Pass one of them.")


def _binary(values: Any, what: str, *, takes_text: bool) -> pa.Array:
    """Return byte strings as an Arrow array; errors as `put_many` raises them."""
    data = Binaries(values, what, takes_text=takes_text)
    if isinstance(values, np.ndarray):
        rows = np.ascontiguousarray(values)
        ends = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(rows)]
        return pa.Array.from_buffers(pa.large_binary(), len(data), buffers)
    if isinstance(values, pa.ChunkedArray):
        return pa.concat_arrays(values.chunks) if values.num_chunks else values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    return pa.array(values, pa.large_binary())


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table by pieces that one question can take; one even where it has no row."""
    if table.num_rows < 2 or table.nbytes <= COLUMN_BYTES:
        yield table
    else:
        middle = table.num_rows // 2
        yield from _pieces(table.slice(0, middle))
        yield from _pieces(table.slice(middle))


def _joined(many: list[TimerIds]) -> TimerIds:
    """Return the ids of some calls as one sequence."""
    if len(many) == 1:
        return many[0]
    due_ms = np.concatenate([each.due_ms for each in many])
    return TimerIds(due_ms, np.concatenate([each.offsets for each in many]), many[0]._tag)
