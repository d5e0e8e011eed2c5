"""What a client can ask, by name: a call of the store, with its values as they are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.control.calls import ask
from timerstore.control.wire import from_json, to_json
from timerstore.errors import InvalidArgumentError, TooLateError
from timerstore.ids import TimerIds
from timerstore.serving.session import Session
from timerstore.serving.tail import find_moved, find_put_by
from timerstore.serving.wire import Part, read_table, write_table
from timerstore.store import TimerStore
from timerstore.timelog.format import PROPERTY_PUT_BY
from timerstore.timelog.frame import encode_property

PLAIN: Final = (
    *("cancel", "cancel_key", "get_key", "get", "count", "horizon", "upcoming", "stats"),
    *("health", "dead_letters", "redrive", "drop_dead_letters", "pause", "resume"),
    *("flush", "clean"),
)
"""Calls of the store that are made as they are."""
WAIT_S: Final = 0.5
"""A pull waits so long here; a client that wants to wait longer asks again."""
REPLY_BYTES: Final = 32 << 20
"""Of the bodies in one batch."""
_WAITING_MAX: Final = 32
"""Pulls that wait at once: a kernel wakes 64 threads, and the owner has some of its own."""
_LISTED_AT_ONCE: Final = 500

Answer = tuple[Any, Sequence[Part]]


@dataclass(slots=True)
class Asked:
    """A question, with who asks it.

    `put_by`: the name of its connection. `since`: where the log ended before it was asked first.
    `again`: it was asked before, and the answer was lost.
    """

    session: Session
    put_by: str
    parts: list[bytes]
    since: int
    again: bool
    pulled: str | None = None  # the batch that the answer brings


class Answers:
    """The calls of one open store."""

    def __init__(self, store: TimerStore) -> None:
        """Ask `store`."""
        self._store, self._core = store, store.core
        self._waiting = threading.BoundedSemaphore(_WAITING_MAX)
        self._plain: dict[str, Callable[..., Any]] = {name: getattr(store, name) for name in PLAIN}
        self._calls: dict[str, Callable[..., Answer]] = {
            "put": self._put,
            "put_many": self._put_many,
            "cancel_many": self._cancel_many,
            "reschedule": self._reschedule,
            "pending": self._pending,
            "pending_columns": self._pending_columns,
            "pull": self._pull,
            "ack": self._ack,
            "nack": self._nack,
            "give_back": self._give_back,
            "describe": self._describe,
            "beat": lambda asked: (None, ()),
        }

    def answer(self, asked: Asked, name: object, arguments: object) -> Answer:
        """Make a call; raises what it raises."""
        if not isinstance(arguments, dict):
            raise InvalidArgumentError("The arguments are no JSON object. Send one.")
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None:
            return to_json(ask(self._plain, str(name), from_json(arguments))), ()
        try:
            return call(asked, **from_json(arguments))
        except TypeError as e:
            raise InvalidArgumentError(f"{name}: {e}. See the call of the same name.") from e

    # --- putting

    def _put(self, asked: Asked, **given: Any) -> Answer:
        if asked.again:
            found = find_put_by(self._core, asked.put_by, asked.since)
            if found:
                self._make_durable()
                id = found[0]
                return TimerIds(np.array([id.due_ms]), np.array([id.offset]), id.tag)[0], ()
        properties = given.pop("properties", None) or {}
        properties[PROPERTY_PUT_BY.decode()] = asked.put_by
        return self._store.put(properties=properties, **given), ()

    def _put_many(self, asked: Asked, **given: Any) -> Answer:
        """Put the rows that were not put when this was asked before."""
        table = read_table(asked.parts)
        tag, done = self._core.engine.store_tag, TimerIds(_int64s([]), _int64s([]), 0)
        if asked.again:
            found = find_put_by(self._core, asked.put_by, asked.since)[: table.num_rows]
            done = TimerIds(
                _int64s([id.due_ms for id in found]), _int64s([id.offset for id in found]), tag
            )
            self._make_durable()
            table = table.slice(len(done))
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        if "body" not in columns or not columns.keys() <= {"body", "at_ms", "key"}:
            raise InvalidArgumentError("Send the columns body, at_ms and key.")
        times = columns.get("at_ms")
        if times is not None and (times.type != pa.int64() or times.null_count):
            raise InvalidArgumentError("at_ms is no int64. Send one for each body.")
        try:
            ids = self._store.putting.put_many(
                columns["body"],
                given.get("topic"),  # type: ignore[arg-type]
                None if times is None else times.to_numpy(),
                None,
                columns.get("key"),
                given.get("tag"),
                given.get("delay_level"),
                encode_property(PROPERTY_PUT_BY, asked.put_by.encode()),
            )
        except Exception as e:
            e.ids = _joined(done, getattr(e, "ids", ()), tag)  # type: ignore[attr-defined]
            raise
        return tag, write_ids(_joined(done, ids, tag))

    def _cancel_many(self, asked: Asked, ids: Any) -> Answer:
        return None, [self._store.cancel_many(ids).tobytes()]

    def _reschedule(self, asked: Asked, id: Any, **given: Any) -> Answer:
        try:
            return self._store.reschedule(id, **given), ()
        except TooLateError:
            due_ms = given.get("at_ms")
            if asked.again and isinstance(id, str):
                moved = find_moved(self._core, id.upper(), due_ms, asked.since)
                if moved is not None:
                    self._make_durable()
                    return moved, ()
            raise

    def _make_durable(self) -> None:
        if self._core.is_group:
            self._core.wait_durable()

    # --- looking

    def _pending(self, asked: Asked, listing: Any = None, **given: Any) -> Answer:
        """Begin a listing, or go on with one; return its next timers, its name if it has more."""
        if listing is None:
            listing = asked.session.begin(self._store.pending(**given))
        timers = list(islice(asked.session.listing(listing), _LISTED_AT_ONCE))
        if len(timers) < _LISTED_AT_ONCE:
            asked.session.end_listing(listing)
            listing = None
        return {"listing": listing, "timers": to_json(timers)}, ()

    def _pending_columns(self, asked: Asked, **given: Any) -> Answer:
        return None, write_table(self._store.pending_columns(**given))

    # --- consuming

    def _pull(self, asked: Asked, topic: Any, group: Any, max_count: Any, timeout: Any) -> Answer:
        wait_s = min(WAIT_S, timeout) if isinstance(timeout, int | float) else WAIT_S
        options = {"group": group, "max_count": max_count}
        batch = self._store.pull(topic, timeout=0, **options)
        if not len(batch) and wait_s > 0:
            if not self._waiting.acquire(timeout=wait_s):
                return None, ()
            try:
                batch = self._store.pull(topic, timeout=wait_s, **options)
            finally:
                self._waiting.release()
        if not len(batch):
            return None, ()
        try:
            ends = np.frombuffer(batch.bodies.buffers()[1], np.int32)[1 : len(batch) + 1]
            count = max(1, int(np.searchsorted(ends, REPLY_BYTES, "right")))
            table = batch.to_arrow().slice(0, count)
            parts = write_table(table)
        except BaseException:
            batch._group.give_back(batch, 0)
            raise
        if count < len(batch):
            batch._group.give_back(batch, count)
        asked.pulled = asked.session.hold(batch, count)
        return asked.pulled, parts

    def _ack(self, asked: Asked, batch: Any, places: Any = None) -> Answer:
        return asked.session.settle(batch, places), ()

    def _nack(self, asked: Asked, batch: Any, place: Any, delay_s: Any = None) -> Answer:
        delay = None if delay_s is None else timedelta(seconds=delay_s)
        return asked.session.send_back(batch, place, delay), ()

    def _give_back(self, asked: Asked, batch: Any, places: Any) -> Answer:
        asked.session.give_back(batch, places)
        return None, ()

    def _describe(self, asked: Asked, batch: Any, count: Any) -> Answer:
        """Return all of a batch's messages but for their bodies; None where it was taken back."""
        held = asked.session.batch(batch)
        if held is None or not isinstance(count, int) or count > len(held):
            return None, ()
        messages = (held.message(i)._asdict() for i in range(count))
        return [{k: v for k, v in each.items() if k != "body"} for each in messages], ()


def write_ids(ids: TimerIds) -> list[Part]:
    """Return ids as they are sent: due times, then offsets."""
    return [np.concatenate((ids.due_ms, ids.offsets)).astype("<i8").tobytes()]


def read_ids(tag: int, part: bytes) -> TimerIds:
    """Return ids that were sent."""
    due_ms, offsets = np.frombuffer(part, "<i8").reshape(2, -1)
    return TimerIds(due_ms, offsets, tag)


def _joined(first: TimerIds, more: Any, tag: int) -> TimerIds:
    if not isinstance(more, TimerIds):
        return first
    due_ms = np.concatenate((first.due_ms, more.due_ms))
    return TimerIds(due_ms, np.concatenate((first.offsets, more.offsets)), tag)


def _int64s(values: list[int]) -> Any:
    return np.array(values, np.int64)
