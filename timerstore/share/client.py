"""A client: the calls of a store that another process has open."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from timerstore.calls.consuming.delivery import CONSUME_COUNT, WAIT_S, Delivery, arrow_int64
from timerstore.core.switches import Paused
from timerstore.errors import InvalidArgumentError, StoreClosedError, TimerStoreError
from timerstore.share.clientrun import ClientRun, said_of
from timerstore.share.framecolumns import halved, read_ids, read_table, write_table
from timerstore.share.link import Link, check_patience
from timerstore.share.wire import from_json
from timerstore.timelog.bytes import format as fmt
from timerstore.values.check_arguments import (
    Bodies,
    Range,
    binary_array,
    check_alone,
    check_body,
    check_due_array,
    encode_properties,
    resolve_due_ms,
)
from timerstore.values.ids import TimerIds, joined
from timerstore.values.kinds import Duration, check_duration, check_place, check_timeout
from timerstore.values.no_pickle import Stays
from timerstore.values.puts import Changes, Given, Many, Put, resolve_expires_ms
from timerstore.values.times import now_ms
from timerstore.watching.any_store import CALLS, TURNED, AnyStore

if TYPE_CHECKING:
    from timerstore.calls.pending.timers import Timer
    from timerstore.consumer.consumersettings import ConsumerSettings
    from timerstore.consumer.subscription import Source
    from timerstore.store.store import Calls


# --- who makes them, by asking
#
# Most are asked as they are: by name, with arguments as JSON says them, and the result is read as
# its type says. The methods here are of those whose arguments are checked before, or go in columns.


_MADE_BY_PIECES: Final = ("retry_dead_letters", "drop_dead_letters")
"""Calls that may have been made for a part: they are not made again."""
IDS_AT_ONCE: Final = 500_000
"""In one question, so that it is short enough."""
_ROWS: Final = pa.schema(
    {
        "id": pa.string(),
        "body": pa.binary(),
        "due_ms": pa.int64(),
        "fired_ms": pa.int64(),
        "offset": pa.int64(),
    }
)
_NO_ROWS: Final = pa.Table.from_batches([], _ROWS)  # an array made of a list would import pandas


class AskedCalls:
    """Who makes each call of `AnyStore` for a client."""

    def __init__(self, link: Link) -> None:
        self._link = link
        for name in CALLS.keys() - vars(AskedCalls).keys():
            setattr(self, name, partial(_ask_as_it_is, link, name))

    def ask(self, name: str, arguments: dict[str, Any]) -> Any:
        """Return the result of a call, from JSON."""
        return from_json(self._link.ask(name, arguments)[0]["result"])

    # --- putting

    def put(self, given: Given) -> Any:
        """Put one timer. `given`: the fields of a `Put`."""
        put = Put._make(given)
        said = said_of(put)
        body = check_body(put.body, 0, fmt.MESSAGE_BYTES_MAX)
        return self._link.ask("put", said, [body])[0]["result"]

    def put_many(self, bodies: Bodies, many: Many) -> TimerIds:
        """Put many timers, in pieces that one question can take."""
        topic, at_ms, delay_ms, keys, tag, delay_level, jitter, expires = many
        columns = {"body": binary_array(bodies, "bodies", takes_text=False)}
        count = len(columns["body"])
        if delay_level is None:
            due_ms = check_due_array(count, now_ms(), at_ms, delay_ms, None, jitter)
            columns["at_ms"] = arrow_int64(due_ms)
        else:
            check_alone(at_ms, delay_ms)
        if keys is not None:
            columns["key"] = binary_array(keys, "keys", takes_text=True)
            if len(columns["key"]) != count:
                raise InvalidArgumentError(
                    f"keys has {len(columns['key'])} texts and bodies has {count}. Pass a key "
                    "for each body."
                )
        table = pa.table(columns)
        given: dict[str, Any] = {"topic": topic, "tag": tag, "delay_level": delay_level}
        if expires is not None:
            given["expires_ms"] = resolve_expires_ms(expires, now_ms(), None)
        done: list[TimerIds] = []
        for piece in halved(table):
            try:
                header, parts = self._link.ask("put_many", given, write_table(piece))
            except TimerStoreError as e:
                if isinstance(e.ids, TimerIds):
                    done.append(e.ids)
                if done:
                    e.ids = joined(done)
                raise
            done.append(read_ids(header["result"], parts[0]))
        return joined(done)

    # --- changing

    def cancel_many(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Cancel many timers, in pieces that one question can take."""
        pieces: list[Any] = [ids]
        if not isinstance(ids, str | bytes):
            ids = list(ids)
            starts = range(0, max(len(ids), 1), IDS_AT_ONCE)
            pieces = [ids[start : start + IDS_AT_ONCE] for start in starts]
        verdicts = [self._link.ask("cancel_many", {"ids": each})[1][0] for each in pieces]
        return np.frombuffer(b"".join(verdicts), np.bool_)

    def reschedule(self, id: str, changes: Changes) -> Any:
        """Move a timer to another time, or change its payload."""
        given: dict[str, Any] = {"id": id}
        delay, at, at_ms, body, properties = changes
        times = delay, at, at_ms
        if any(each is not None for each in times) or (body is None and properties is None):
            given["at_ms"] = resolve_due_ms(now_ms(), *times, None)
        if body is not None:
            given["body"] = check_body(body, 0, fmt.MESSAGE_BYTES_MAX)
        if properties is not None:
            encode_properties(None, None, properties)  # it checks them
            given["properties"] = dict(properties)
        return self.ask("reschedule", given)

    # --- looking

    def pending(self, where: Range) -> Iterator[Timer]:
        """Yield pending timers, some from each answer."""
        from timerstore.calls.pending.timers import Timer

        given, make = _said(where), maker_of(Timer)
        while True:
            told = self.ask("pending", given)
            for each in told["timers"]:
                yield make(each)
            if told["listing"] is None:
                return
            given = {"listing": told["listing"]}

    def pending_columns(self, where: Range, columns: Sequence[str] | None) -> pa.Table:
        """Return pending timers as a table."""
        given = _said(where) | {"columns": columns}
        return read_table(self._link.ask("pending_columns", given)[1])

    # --- consuming

    def consume(self, topic: str, group: str, timeout: float | None) -> Iterator[Delivery]:
        """Yield each message of a topic once it is due."""
        return self._iterate(topic, group, check_timeout(timeout))

    def _iterate(self, topic: str, group: str, timeout: float | None) -> Iterator[Delivery]:
        while True:
            try:
                run = self.pull(topic, group, CONSUME_COUNT, timeout)
            except StoreClosedError:
                if self._link.closed.is_set():
                    return
                raise
            if len(run) == 0:
                return
            yield from run.each(now_ms, self._link.closed.is_set)

    def pull(self, topic: str, group: str, max_count: int, timeout: float | None) -> ClientRun:
        """Return due messages by columns."""
        timeout = check_timeout(timeout)
        until_s = None if timeout is None else time.monotonic() + timeout
        while True:
            wait_s = WAIT_S if until_s is None else max(0.0, until_s - time.monotonic())
            given = {"topics": [topic], "group": group, "max_count": max_count}
            header, parts = self._link.ask("pull", given | {"timeout": min(wait_s, WAIT_S)})
            told = header["result"]
            if told is not None:
                return ClientRun(self._link, group, read_table(parts), told)
            if wait_s <= WAIT_S and until_s is not None and time.monotonic() >= until_s:
                told = {"batch": None, "topic": topic, "retry": False}
                return ClientRun(self._link, group, _NO_ROWS, told)

    # --- operating

    def pause(self, what: Paused, group: str | None, duration: object, keep: bool) -> None:
        """Stop something for a while."""
        given: dict[str, Any] = {"what": what, "group": group, "keep": keep}
        if duration is not None:
            given["duration_s"] = check_duration(duration, "duration").total_seconds()
        self.ask("pause", given)


def _ask_as_it_is(link: Link, name: str, *given: Any) -> Any:
    names, make = _described(name)
    said = dict(zip(names, given, strict=True))
    header, _ = link.ask(name, said, is_repeatable=name not in _MADE_BY_PIECES)
    return make(from_json(header["result"]))


@cache
def _described(name: str) -> tuple[list[str], Callable[[Any], Any]]:
    """Return the names of a call's arguments, and what makes its result of what JSON says."""
    call = CALLS[name]
    names = [each for each in signature(call).parameters if each not in ("self", *TURNED)]
    returned = call.__annotations__["return"]  # a text, whose names are loaded now
    return names, maker_of(eval(returned, vars(sys.modules[call.__module__]), _Public()))


class _Public(dict[str, Any]):
    """The public names, each loaded when a type names it."""

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(sys.modules["timerstore"], name)
        except AttributeError:
            raise KeyError(name) from None


def _said(where: Range) -> dict[str, Any]:
    return {name: value for name, value in where._asdict().items() if value is not None}


@cache
def maker_of(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a type, of what JSON says.

    >>> from timerstore.watching.topics import Upcoming
    >>> told = {"overdue_count": 0, "within": [[1000, 2]], "later_count": 1}
    >>> maker_of(Upcoming)(told).within
    ((1000, 2),)
    """
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        new: Any = kind
        hints = get_type_hints(kind)
        makers = [(each.name, maker_of(hints[each.name])) for each in fields(kind)]
        return lambda value: new(**{name: make(value[name]) for name, make in makers})
    if origin is np.ndarray:
        return lambda value: np.array(value, np.int64)
    if origin is list or (origin is tuple and inner[-1:] == (...,)):
        make = maker_of(inner[0])
        return lambda value: origin(make(each) for each in value)
    if origin is tuple:
        makers_of = [maker_of(each) for each in inner]
        return lambda value: tuple(m(v) for m, v in zip(makers_of, value, strict=True))
    if origin in (Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        make = maker_of(next(each for each in inner if each is not type(None)))
        return lambda value: None if value is None else make(value)
    return lambda value: value


# --- the other end: a store's calls


PATIENCE_S: Final = 30.0
"""How long a call waits for an owner."""


class Client(Stays, AnyStore):
    """A store that another process serves; made by `timerstore.connect`.

    It has the calls of `TimerStore`, with the same errors. Any number of threads may use it, and a
    forked child too, as a client of its own. If the owner ends, a call waits for the next owner,
    and is made there once: nothing is put twice. What was pulled and not acknowledged comes again.
    Raises StoreClosedError if no process serves the store for a while.

    Large calls go in pieces: `put_many` takes one fsync for each 16 MiB, `cancel_many` one for each
    500,000 ids. `pull` returns fewer messages if their bodies take more than 32 MiB. If the owner
    ends during a call, `pending` (begin again), `retry_dead_letters` and `drop_dead_letters` raise
    StoreClosedError.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: Duration | None = PATIENCE_S
    ) -> None:
        self._path = check_place(path)
        self._connect(Link(self._path, check_patience(timeout)))

    def _connect(self, link: Link) -> None:
        self._link, self._asked = link, AskedCalls(link)
        self.new_source = self._new_source
        try:
            self._asked.ask("beat", {})
        except BaseException:
            self.close()
            raise

    @property
    def _calls(self) -> AskedCalls | Calls:
        return self._asked

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    @property
    def _may_wait(self) -> bool:
        return not self._link.closed.is_set()

    def __repr__(self) -> str:
        closed = ", closed" if self._link.closed.is_set() else ""
        return f"<{type(self).__name__} of {str(self._path)!r}{closed}>"

    def close(self) -> None:
        """Leave. What was pulled and not acknowledged comes again. Twice does nothing."""
        self._link.close()

    def _new_source(self, settings: ConsumerSettings) -> Source:
        from timerstore.share.clientsource import ClientSource

        return ClientSource(self, self._link, settings)


def connect(path: str | os.PathLike[str], *, timeout: Duration | None = PATIENCE_S) -> Client:
    """Return a client of a store that another process of this machine and user serves.

    It is a context manager. `timeout`: if nobody serves the store, each call, this one included,
    waits this many seconds, then raises StoreClosedError; None: it waits for ever. Raises
    NotAStoreError if the owner is of another version.

    >>> with timerstore.open("timers/", share=True), timerstore.connect("timers/") as client:
    ...     id = client.put(b"hello")
    """
    return Client(path, timeout=timeout)
