"""Pending timers as objects, decoded one or many at a time; the short way to one by its id.

What is out of the ordinary in a `get`, `cancel` or `reschedule` (a delay level's message, a
broker's key, a timer that may have been taken, or may have rolled, a segment that is not mapped, a
store that is being closed) goes the long way, `cancel.py`. The kernels pass the store's gate by
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np

from timerstore.calls.putting.putting import compose_timer
from timerstore.core.core import Core
from timerstore.jit.locks import Gate
from timerstore.jit.record import Bytes
from timerstore.services.calls import by_id
from timerstore.services.calls.appending import delete_template
from timerstore.services.calls.by_id import Kernels, Place, Templates, new_place
from timerstore.services.calls.cancel import CANCELLED_BEFORE, CANCELLED_NOW, NOT_JUDGED
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.looking.read_units import (
    SPAN_BODY,
    SPAN_BODY_END,
    SPAN_COLUMNS,
    SPAN_PROPERTIES,
    SPAN_PROPERTIES_END,
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
from timerstore.timelog.bytes.limits import DESCRIPTION_BYTES_MAX
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.writing.compose import Staged
from timerstore.timelog.writing.frame import encode_expires, encode_property, new_template
from timerstore.values.amounts import Moment, html_table, shown_time
from timerstore.values.check_arguments import check_body, check_description, encode_properties
from timerstore.values.ids import Int64s, format_id
from timerstore.values.puts import resolve_expires_ms


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


# --- what a timer is moved with


KEPT: Final = -1
"""Of a time in a payload: as it was."""


class Payload(NamedTuple):
    """What comes in the place of a timer's payload; None: as it was."""

    body: bytes | None = None
    properties: Mapping[str, str] | None = None
    """The user's own, all of them; key and tag stay."""
    tag: str | None = None
    keeps_tag: bool = True
    """False: `tag` comes in the place of the old one, too."""
    first_put_ms: int | None = KEPT
    """When the first put of a debounce was; None: it is of none."""
    expires_ms: int | None = KEPT
    """When it expires; None: never."""


UNCHANGED: Final = Payload()


def check_payload(core: Core, body: object, properties: Mapping[str, str] | None) -> Payload:
    """Return what replaces a payload, or refuse it."""
    encoded = encode_properties(None, None, properties)
    if body is not None:
        body = check_body(body, len(encoded), core.engine.content_bytes_max)
    return Payload(body, None if properties is None else dict(properties))


def compose_moved(core: Core, timer: Timer, due_ms: int, id: str, payload: Payload) -> Staged:
    """Compose the timer that comes in the place of another one, and return where it is staged."""
    own = timer.properties if payload.properties is None else payload.properties
    tag = timer.tag if payload.keeps_tag else payload.tag
    described = {"TAGS": tag, "KEYS": timer.key, **own}
    first_ms = timer.first_put_ms if payload.first_put_ms == KEPT else payload.first_put_ms
    properties = encode_described({k: v for k, v in described.items() if v is not None})
    if payload.properties is not None:
        check_description(len(properties))
    body = timer.body if payload.body is None else payload.body
    expires_ms = payload.expires_ms
    if expires_ms == KEPT:
        expires_ms = resolve_expires_ms(timer.expires_ms, 0, due_ms)
    described_bytes = len(properties) + len(encode_expires(expires_ms))
    check_body(body, described_bytes, core.engine.content_bytes_max)
    topic = timer.topic.encode("utf-8", "surrogateescape")
    said = encode_first_put(first_ms) + properties
    timed = due_ms, said, tag
    return compose_timer(core.engine, topic, body, *timed, replaces=id, expires_ms=expires_ms)


def encode_described(properties: dict[str, str]) -> bytes:
    """Return tag, key and the user's own of a message's properties as they stand in one."""
    first = [(name, properties[name]) for name in ("TAGS", "KEYS") if name in properties]
    described = [*first, *user_properties(properties).items()]
    encoded = "".join([f"{name}\x01{value}\x02" for name, value in described])
    return encoded.encode("utf-8", "surrogateescape")


def encode_first_put(first_ms: int | None) -> bytes:
    """Return when the first put of a debounce was as it stands in a message; nothing for None."""
    return b"" if first_ms is None else encode_property(fmt.PROPERTY_FIRST_PUT, b"%d" % first_ms)


# --- one ordinary timer by its id, in a kernel or two


_EXPIRES: Final = fmt.PROPERTY_EXPIRES.decode()
TOPICS_MAX: Final = 1_024
"""Topics whose templates are kept: 2 KB each."""


class Taken(NamedTuple):
    """What one call at a time works with."""

    place: Place
    message: memoryview
    """The one that was got, from its first byte on."""


class ById:
    """The short way into one engine; any number of threads may use it.

    Everything goes the long way while it is known that messages are damaged, because a later copy
    of a timer may be one of them.
    """

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine, self._log, self._gate = engine, engine.commitlog, gate
        self._tag, self._kernels, self._uncounted = engine.store_tag, Kernels(), engine.uncounted
        self._taken: list[Taken] = []
        self._topics: dict[int, str] = {}
        self._templates: dict[int, Templates] = {}
        self._last = self._new_templates(b"t", -1)  # those of the topic that came last

    def cancel(self, id: object) -> bool | None:
        """Cancel a timer that lies ahead: True, or False if it is too late; None: the long way.

        Its delete is not durable yet.
        """
        verdict = self._cancel(id)
        if verdict == CANCELLED_NOW:
            return True
        return None if verdict == NOT_JUDGED else verdict == CANCELLED_BEFORE

    def cancel_once(self, id: object) -> bool | None:
        """Do the same; False if it had been cancelled before."""
        verdict = self._cancel(id)
        return None if verdict == NOT_JUDGED else verdict == CANCELLED_NOW

    def _cancel(self, id: object) -> int:
        if self._uncounted:
            return NOT_JUDGED
        clock, kernels = self._engine.clock, self._kernels
        now_ms = clock.now_ms if clock.manual else 0
        taken = self._take()
        try:
            with self._log.reading():
                verdict = kernels.cancel(taken.place, self._last, id, now_ms)
                if verdict <= by_id.ID_OTHER_TOPIC:
                    templates = self._templates_of(by_id.ID_OTHER_TOPIC - verdict)
                    verdict = kernels.cancel(taken.place, templates, id, now_ms)
            return verdict
        finally:
            self._taken.append(taken)

    def get(self, id: object) -> Timer | None:
        """Return a pending timer; None: go the long way."""
        if self._uncounted:
            return None
        taken = self._take()
        place, message = taken
        try:
            with self._log.reading():
                verdict = self._kernels.get(place, id)
            if verdict != by_id.ID_PENDING:
                return None
            told = place.told.tolist()
            row = told[by_id.ID_ROW]
            topic = self._topics.get(row)
            if topic is None:
                topic = self._topics[row] = text(self._engine.queues.topics[row])
            due_ms = told[by_id.ID_DUE_MS]
            return from_parts(message, told[:SPAN_COLUMNS], id, topic, due_ms)  # type: ignore[arg-type]
        finally:
            self._taken.append(taken)

    def is_pending(self, id: object) -> bool | None:
        """Tell whether a timer is pending; None: go the long way."""
        if self._uncounted:
            return None
        taken = self._take()
        try:
            with self._log.reading():
                verdict = self._kernels.get(taken.place, id)
            return None if verdict == NOT_JUDGED else verdict >= by_id.ID_PENDING
        finally:
            self._taken.append(taken)

    def reschedule(self, id: object, due_ms: int, now_ms: int, payload: Payload) -> str | None:
        """Move a timer that lies ahead; return its new id, or None: go the long way.

        Neither message is durable yet.
        """
        if self._uncounted or payload.expires_ms not in (None, KEPT):
            return None
        taken, offset = self._take(), by_id.NOT_PLAIN
        given = id, due_ms, payload.body
        try:
            with self._log.reading():
                if payload.properties is None and payload.keeps_tag:
                    offset = self._reschedule(taken.place, *given, None, now_ms)
                if offset == by_id.NOT_PLAIN:
                    described = self._describe(taken, id, payload)
                    if described is None:
                        return None
                    offset = self._reschedule(taken.place, *given, described, now_ms)
            return format_id(due_ms, int(offset), self._tag) if offset > NOT_JUDGED else None
        finally:
            self._taken.append(taken)

    def _reschedule(
        self,
        place: Place,
        id: object,
        due_ms: int,
        body: bytes | None,
        described: tuple[bytes, int] | None,
        now_ms: int,
    ) -> int:
        move = self._kernels.reschedule
        offset = move(place, self._last, id, due_ms, body, described, now_ms)
        if offset <= by_id.ID_OTHER_TOPIC:
            templates = self._templates_of(by_id.ID_OTHER_TOPIC - offset)
            offset = move(place, templates, id, due_ms, body, described, now_ms)
        return offset

    def _describe(self, taken: Taken, id: object, payload: Payload) -> tuple[bytes, int] | None:
        """Return what describes the timer that comes in a timer's place, and its tag as a number.

        None: go the long way.
        """
        place, message = taken
        if self._kernels.get(place, id) < by_id.ID_PENDING:
            return None
        told, own = place.told.tolist(), payload.properties
        properties = decode_properties(
            message[told[SPAN_PROPERTIES] : told[SPAN_PROPERTIES_END]].tobytes()
        )
        if payload.expires_ms == KEPT and _EXPIRES in properties:
            return None
        first_ms = payload.first_put_ms
        if first_ms == KEPT:
            first_ms = told_ms(properties, fmt.PROPERTY_FIRST_PUT)
        if own is not None:
            properties = {k: v for k, v in properties.items() if k in ("TAGS", "KEYS")} | dict(own)
        if not payload.keeps_tag:
            properties.pop("TAGS", None)
            properties |= {} if payload.tag is None else {"TAGS": payload.tag}
        described = encode_first_put(first_ms) + encode_described(properties)
        if own is not None and len(described) > DESCRIPTION_BYTES_MAX:
            return None
        replaced = encode_property(fmt.PROPERTY_REPLACES, str(id).encode())
        return replaced + described, java_hash_of(properties.get("TAGS", ""))

    def _take(self) -> Taken:
        try:
            return self._taken.pop()
        except IndexError:
            place = new_place(self._engine.world, self._gate)
            return Taken(place, memoryview(place.stage.buffer))  # type: ignore[arg-type]

    def _templates_of(self, row: int) -> Templates:
        """Return those for a topic, by its queue's row."""
        found = self._templates.get(row)
        if found is None:
            if len(self._templates) >= TOPICS_MAX:
                self._templates.clear()
            topic = self._engine.queues.topics[row]
            found = self._templates[row] = self._new_templates(topic, row)
        self._last = found
        return found

    def _new_templates(self, topic: bytes, row: int) -> Templates:
        timer = new_template(
            topic, tag=self._tag, pending_row=row, change=1, tags_code=0, extra=b""
        )
        return Templates(timer, delete_template(topic, row, self._tag))
