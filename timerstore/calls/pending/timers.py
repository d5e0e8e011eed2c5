"""Pending timers as objects: decoded from their messages, one or many at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

import numpy as np

from timerstore.core.core import Core
from timerstore.jit.record import Bytes
from timerstore.services.engine.holds import Hold
from timerstore.services.looking.read_pending import (
    SPAN_BODY,
    SPAN_BODY_END,
    SPAN_COLUMNS,
    SPAN_ROW,
    SPAN_STATUS,
    find_timer_parts,
    look_held,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import (
    Message,
    decode_message,
    decode_properties,
    text,
    told_expires_ms,
    told_ms,
    user_properties,
)
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.values.amounts import Moment, html_table, shown_time
from timerstore.values.ids import Int64s


@dataclass(frozen=True, slots=True)
class Timer:
    """A pending timer; `due_ms`, `put_ms` are epoch milliseconds, `due`, `put` datetimes in UTC.

    `roll_count`: how often its message was appended again on its way. `first_put_ms`: of
    a timer that was put with `debounce`, when the first of these puts was. `expires_ms`: after when
    it is not handed out, if `put` said so.
    """

    id: str
    topic: str
    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    due_ms: int
    put_ms: int
    roll_count: int
    first_put_ms: int | None = None
    expires_ms: int | None = None

    due = Moment[datetime]("When it falls due, in UTC.")
    put = Moment[datetime]("When it was put, in UTC.")
    first_put = Moment[datetime | None]("When the first put of a debounce was, in UTC.")
    expires = Moment[datetime | None]("After when it is not handed out, in UTC.")

    def _repr_html_(self) -> str:
        """Show it in a notebook; of a long body the beginning."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["due_ms"], shown["put_ms"] = shown_time(self.due_ms), shown_time(self.put_ms)
        names = {"due_ms": "due", "put_ms": "put"}
        rows = [(names.get(name, name), str(value)) for name, value in shown.items() if value]
        return html_table("Timer", rows)


(
    _set_id,
    _set_topic,
    _set_body,
    _set_key,
    _set_tag,
    _set_properties,
    _set_due_ms,
    _set_put_ms,
    _set_roll_count,
    _set_first_put_ms,
    _set_expires_ms,
) = (getattr(Timer, each.name).__set__ for each in fields(Timer))


def _new_timer(
    id: str,
    topic: str,
    body: bytes,
    key: str | None,
    tag: str | None,
    properties: dict[str, str],
    due_ms: int,
    put_ms: int,
    roll_count: int,
    first_put_ms: int | None,
    expires_ms: int | None,
) -> Timer:
    """Return a timer; to set its slots takes half as long as a frozen dataclass does."""
    timer = object.__new__(Timer)
    _set_id(timer, id)
    _set_topic(timer, topic)
    _set_body(timer, body)
    _set_key(timer, key)
    _set_tag(timer, tag)
    _set_properties(timer, properties)
    _set_due_ms(timer, due_ms)
    _set_put_ms(timer, put_ms)
    _set_roll_count(timer, roll_count)
    _set_first_put_ms(timer, first_put_ms)
    _set_expires_ms(timer, expires_ms)
    return timer


BYTES_AT_ONCE: Final = 8 << 20
"""So many bytes of bodies a listing holds, and one body more."""


def decode_timers(
    core: Core, messages: Int64s, due_ms: Int64s, hold: Hold
) -> tuple[list[Timer], int]:
    """Decode pending messages that were captured under a hold. Raises LapsedError.

    Return the timers, and how many messages they are of: once the bodies have `BYTES_AT_ONCE`, the
    rest is left.
    """
    log, queues, timers = core.engine.commitlog, core.engine.queues, []
    parts, found = np.empty(len(messages) * SPAN_COLUMNS, np.int64), MessageParts()
    ids = np.zeros(len(messages) * fmt.KEY_DIGITS, np.uint8)
    numbers = messages // log.segment_bytes
    views: dict[int, memoryview] = {}  # a slice of one costs less than of an array
    with log.reading() as table:
        for number in np.unique(numbers).tolist():
            start = number * log.segment_bytes
            file = look_held(log, start, hold, lambda: log.existing(number))  # noqa: B023
            if file is not None:
                views[number] = memoryview(file.view)  # type: ignore[arg-type]
        find_timer_parts(table, queues.table, messages, found, parts, ids)
        text_of_ids, topics = ids.tobytes().decode("latin-1"), {-1: ""}
        rows = parts.reshape(-1, SPAN_COLUMNS).tolist()
        columns = (numbers.tolist(), messages.tolist(), due_ms.tolist(), rows)
        at, done, bytes_left = -fmt.KEY_DIGITS, 0, BYTES_AT_ONCE
        for number, message, due, part in zip(*columns, strict=True):
            if bytes_left <= 0:
                break
            at, done, view = at + fmt.KEY_DIGITS, done + 1, views.get(number)
            if view is None:
                continue
            if part[SPAN_STATUS] != GOOD:
                rest = np.frombuffer(view, np.uint8)[message % log.segment_bytes :]
                timers.append(message_timer(decode_message(rest, message), due))
                bytes_left -= len(timers[-1].body)
                continue
            bytes_left -= part[SPAN_BODY_END] - part[SPAN_BODY]
            row = part[SPAN_ROW]
            if row not in topics:
                topics[row] = text(queues.topics[row])
            timers.append(
                from_parts(view, part, text_of_ids[at : at + fmt.KEY_DIGITS], topics[row], due)
            )
    return timers, done


def from_parts(
    view: Bytes | memoryview, part: list[int], id: str, topic: str, due_ms: int
) -> Timer:
    """Return a timer whose parts were noted; `id`, `topic`: used if SPAN_ROW is not −1."""
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
    return _new_timer(id, topic, body, key, tag, {}, due_ms, born_ms, 0, None, None)


def read_timer(core: Core, offset: int, due_ms: int) -> Timer:
    """Decode the pending message at `offset`."""
    return message_timer(decode_message(core.engine.commitlog.view(offset), offset), due_ms)


def message_timer(message: Message, due_ms: int) -> Timer:
    """Return a decoded message as a timer that is due then."""
    return to_timer(message.properties, message.body, due_ms, message.born_ms, message.topic)


def to_timer(
    properties: dict[str, str], body: bytes, due_ms: int, put_ms: int, topic: str = ""
) -> Timer:
    """Return a decoded message as a timer; `topic`: used if it names none."""
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
        first_put_ms=told_ms(properties, fmt.PROPERTY_FIRST_PUT),
        expires_ms=told_expires_ms(properties),
    )
