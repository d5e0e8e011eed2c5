"""Pending timers as objects: decoded from their messages, one or many at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from timerstore.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.moments import moment
from timerstore.services.timer_parts import (
    PART_COLUMNS,
    PART_ROW,
    PART_STATUS,
    find_parts,
)
from timerstore.timelog.decode import decode_message, decode_properties, text, user_properties
from timerstore.timelog.format import KEY_DIGITS
from timerstore.timelog.jit.record import Bytes
from timerstore.timelog.message import FOUND_WORDS, GOOD

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Timer:
    """A pending timer; `due_ms`, `put_ms` are epoch milliseconds, `due` is a datetime in UTC."""

    id: str
    topic: str
    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    due_ms: int
    put_ms: int
    roll_count: int

    @property
    def due(self) -> datetime:
        """When it falls due, in UTC."""
        return moment(self.due_ms)


class _Draft:
    """A `Timer` while it is made.

    A frozen dataclass sets each of its fields by a call, which takes 2 µs; this takes 0.3.
    """

    __slots__ = (
        *("id", "topic", "body", "key", "tag", "properties", "due_ms", "put_ms", "roll_count"),
    )

    def __init__(
        self,
        id: str,
        topic: str,
        body: bytes,
        key: str | None,
        tag: str | None,
        properties: dict[str, str],
        due_ms: int,
        put_ms: int,
        roll_count: int,
    ) -> None:
        self.id, self.topic, self.body, self.key, self.tag = id, topic, body, key, tag
        self.properties, self.due_ms, self.put_ms = properties, due_ms, put_ms
        self.roll_count = roll_count
        self.__class__ = Timer  # type: ignore[assignment]


_new_timer: Callable[..., Timer] = _Draft  # type: ignore[assignment]


def decode_timers(core: Core, messages: Int64s, due_ms: Int64s) -> list[Timer]:
    """Decode pending messages; those that were fired, consumed and removed since are left out."""
    log, queues, timers = core.engine.commitlog, core.engine.queues, []
    parts, found = np.empty(len(messages) * PART_COLUMNS, np.int64), np.zeros(FOUND_WORDS, np.int64)
    ids = np.zeros(len(messages) * KEY_DIGITS, np.uint8)
    numbers = messages // log.segment_bytes
    views: dict[int, memoryview] = {}  # a slice of one costs less than of an array
    with log.reading() as table:
        for number in np.unique(numbers).tolist():
            try:
                views[number] = memoryview(log.existing(number).view)  # type: ignore[arg-type]
            except CorruptStoreError:
                if number * log.segment_bytes >= log.start:
                    raise
        find_parts(table, queues.table, messages, found, parts, ids)
        text_of_ids, topics = ids.tobytes().decode("latin-1"), {-1: ""}
        rows = parts.reshape(-1, PART_COLUMNS).tolist()
        columns = (numbers.tolist(), messages.tolist(), due_ms.tolist(), rows)
        at = -KEY_DIGITS
        for number, message, due, part in zip(*columns, strict=True):
            at += KEY_DIGITS
            view = views.get(number)
            if view is None:
                continue
            if part[PART_STATUS] != GOOD:
                try:  # where its map was dropped just now
                    timers.append(read_timer(core, message, due))
                except CorruptStoreError:
                    if message >= log.start:
                        raise
                continue
            row = part[PART_ROW]
            if row not in topics:
                topics[row] = text(queues.topics[row])
            timers.append(
                from_parts(view, part, text_of_ids[at : at + KEY_DIGITS], topics[row], due)
            )
    return timers


def from_parts(
    view: Bytes | memoryview, part: list[int], id: str, topic: str, due_ms: int
) -> Timer:
    """Return a timer whose parts were noted; `id`, `topic`: for where PART_ROW is no −1."""
    (
        _,
        body_at,
        body_end,
        properties_at,
        properties_end,
        born_ms,
        row,
        key_at,
        key_end,
        tag_at,
        tag_end,
    ) = part
    body = view[body_at:body_end].tobytes()
    if row < 0:
        properties = decode_properties(view[properties_at:properties_end].tobytes())
        return to_timer(properties, body, due_ms, born_ms)
    key = text(view[key_at:key_end].tobytes()) if key_at >= 0 else None
    tag = text(view[tag_at:tag_end].tobytes()) if tag_at >= 0 else None
    return _new_timer(id, topic, body, key, tag, {}, due_ms, born_ms, 0)


def read_timer(core: Core, offset: int, due_ms: int) -> Timer:
    """Decode the pending message at `offset`."""
    message = decode_message(core.engine.commitlog.view(offset), offset)
    return to_timer(message.properties, message.body, due_ms, message.born_ms, message.topic)


def to_timer(
    properties: dict[str, str], body: bytes, due_ms: int, put_ms: int, topic: str = ""
) -> Timer:
    """Return a decoded message as a timer; `topic`: where it is, if it names no other."""
    return _new_timer(
        id=properties.get("UNIQ_KEY", ""),
        topic=properties.get("REAL_TOPIC", topic),
        body=body,
        key=properties.get("KEYS"),
        tag=properties.get("TAGS"),
        properties=user_properties(properties),
        due_ms=due_ms,
        put_ms=put_ms,
        roll_count=int(properties.get("TIMER_ROLL_TIMES", "0")),
    )
