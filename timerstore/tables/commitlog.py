"""The tables `messages`, `fired`: what stands in the commit log.

A message whose checksum does not match is still a row if its structure holds, with `crc_ok` false.
What is no message is a fault, and reading goes on at the next sound message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from timerstore.jit.record import Table, Words
from timerstore.tables import arrays
from timerstore.tables.arrays import Log
from timerstore.tables.bounds import BOUNDED, Bounds, Flags
from timerstore.tables.schema import BIGINT, BINARY, BODY, INT, PAYLOAD, STRING, arrow_schema
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.reading.columns import LoggedParts, find_parts
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.reader import Fault
from timerstore.timelog.reading.scan import LoggedMessages

BATCH_BYTES: Final = 64 << 20
"""Of messages, in a batch that has their bodies: Arrow's texts take at most 2 GiB."""
_LOG: Final = "commitlog"


# --- reading, past damage


def read_log(view: StoreView, start: int, stop: int) -> Iterator[LoggedMessages | Fault]:
    """Yield the messages that begin in [start, stop), with what is wrong.

    A message begins at `start`, and at `stop`, unless that is the end. The arrays are overwritten
    by the next step. Their status is GOOD or BAD_CRC.
    """
    for item in read_past_damage(view.reader, start, stop):
        if not isinstance(item, Damage):
            yield item
            continue
        is_last = item.end >= view.log_stop
        if item.is_empty and is_last and item.offset >= view.durable:
            return  # the log ends here
        if _is_torn(view, item, is_last=is_last):
            continue
        yield Fault(_LOG, item.offset, item.told(view.log_stop))
        if len(item.framed):
            yield item.framed


def _is_torn(view: StoreView, damage: Damage, *, is_last: bool) -> bool:
    """Tell whether damage lies in the tail that was not flushed before the store ended.

    A broker does not say how much it flushed; there a tail is what nothing sound follows.
    """
    if not view.cut.is_open or damage.offset < view.durable:
        return False
    return view.ours or (is_last and damage.following < 0)


# --- columns


def in_topic(log: Log, rows: LoggedMessages, topic: bytes) -> Flags:
    """Tell which scanned messages stand in a topic; their segments are mapped. O(messages)."""
    likely: Flags = rows.topic_bytes == len(topic)
    at = np.flatnonzero(likely)
    if len(at):
        names = MessageRows(log, rows[at]).text("topic", BINARY)
        data = np.frombuffer(names.buffers()[2], np.uint8).reshape(-1, len(topic))
        likely[at] = (data == np.frombuffer(topic, np.uint8)).all(axis=1)
    return likely


def in_timer_topic(log: Log, rows: LoggedMessages) -> Flags:
    """Tell which scanned messages wait in the timer topic, queue 0."""
    found: Flags = in_topic(log, rows, fmt.TIMER_TOPIC) & (rows.queue_id == 0)
    return found


class MessageRows:
    """Scanned messages, of which columns are made as they are asked for."""

    def __init__(self, log: Log, rows: LoggedMessages, parts: LoggedParts | None = None) -> None:
        """`parts`: of the same messages, found if not given; their segments are mapped."""
        self.log, self.rows, self._parts = log, rows, parts

    def __len__(self) -> int:
        return len(self.rows)

    def filter(self, chosen: Any) -> MessageRows:
        """Return those that are chosen: bool[n], or a slice."""
        return MessageRows(self.log, self.rows[chosen], self.parts_of(chosen))

    def parts_of(self, chosen: Any) -> LoggedParts | None:
        """Return the parts of those that are chosen, if they are known."""
        return None if self._parts is None else self._parts[chosen]

    @property
    def parts(self) -> LoggedParts:
        """Where the parts of each message lie, see `columns.py`."""
        if self._parts is None:
            self._parts = LoggedParts.room(len(self.rows))
            found = MessageParts()
            find_parts(self.log.table, self.rows, found, self._parts)
        return self._parts

    @cached_property
    def topics(self) -> Any:
        """The topics under which they are stored."""
        return self.text("topic")

    @cached_property
    def is_pending(self) -> Flags:
        """Whether each stands in the timer topic, queue 0."""
        return in_timer_topic(self.log, self.rows)

    @property
    def is_fired(self) -> Flags:
        """Whether each is what a timer became: it has a due time, and waits nowhere."""
        fired: Flags = (self.rows.due_ms >= 0) & ~self.is_pending
        return fired & ~in_topic(self.log, self.rows, fmt.LEVEL_TOPIC)

    def number(self, column: str, kind: str = BIGINT, *, least: int | None = None) -> Any:
        """Return a column of the rows; what is below `least` is null."""
        values = getattr(self.rows, column).copy()  # the rows are overwritten
        return arrays.numbers(values, kind, None if least is None else values >= least)

    def time(self, column: str, *, least: int | None = None) -> Any:
        """Return a column of times as timestamps."""
        values = getattr(self.rows, column)
        return arrays.timestamps(values, None if least is None else values >= least)

    def text(self, name: str, kind: str = STRING) -> Any:
        """Return a text of the rows."""
        return self._text(self.rows, name, kind)

    def part(self, name: str, kind: str = STRING) -> Any:
        """Return a text of the parts."""
        return self._text(self.parts, name, kind)

    def _text(self, table: Table, name: str, kind: str) -> Any:
        places, lengths = getattr(table, f"{name}_at"), getattr(table, f"{name}_bytes")
        return arrays.texts(self.log, places, lengths, kind)

    def part_number(self, column: str) -> Any:
        """Return a number that stands among the parts."""
        return arrays.numbers(getattr(self.parts, column), INT)

    def flag(self, column: str) -> Any:
        """Return a column of the rows as booleans."""
        return arrays.booleans(getattr(self.rows, column) != 0)

    def properties(self) -> Any:
        """Return all properties."""
        return arrays.maps(self.log, self.parts.properties_at, self.parts.properties_bytes)

    def user_properties(self, *, and_expires: bool = False) -> Any:
        """Return the properties that are not the system's own, with that by which `put` expires."""
        hidden = fmt.RESERVED_PROPERTIES
        if and_expires:
            hidden -= {fmt.PROPERTY_EXPIRES.decode()}
        places, lengths = self.parts.properties_at, self.parts.properties_bytes
        lengths = np.where(self.parts.is_plain == 1, 0, lengths)
        return arrays.maps(self.log, places, lengths, hidden=hidden)

    def lateness(self) -> Any:
        """Return how late each was appended, ms."""
        values = self.rows.stored_ms - self.rows.exact_due_ms
        return arrays.numbers(values, BIGINT)


Maker = Callable[[MessageRows], Any]
_SHARED: Final[dict[str, Maker]] = {
    "offset": lambda m: m.number("offset"),
    "size": lambda m: m.number("size", INT),
    "queue_id": lambda m: m.number("queue_id", INT),
    "queue_offset": lambda m: m.number("queue_index"),
    "topic": lambda m: m.topics,
    "key": lambda m: m.part("keys"),
    "tag": lambda m: m.part("tags"),
    "properties": lambda m: m.properties(),
    "roll_count": lambda m: m.number("roll_times", INT),
    "origin": lambda m: m.number("origin", least=0),
    "identity_high": lambda m: m.number("identity_high"),
    "identity_low": lambda m: m.number("identity_low"),
    "due": lambda m: m.time("exact_due_ms", least=0),
    "due_ms": lambda m: m.number("exact_due_ms", least=0),
    "crc_ok": lambda m: arrays.booleans(m.rows.status == GOOD),
    BODY: lambda m: m.part("body", BINARY),
}
MAKERS: Final[dict[str, dict[str, Maker]]] = {
    "messages": {
        **_SHARED,
        "born": lambda m: m.time("born_ms"),
        "born_ms": lambda m: m.number("born_ms"),
        "stored": lambda m: m.time("stored_ms"),
        "stored_ms": lambda m: m.number("stored_ms"),
        "unique_key": lambda m: m.text("key"),
        "reconsume_times": lambda m: m.part_number("reconsumes"),
        "flag": lambda m: m.part_number("flag"),
        "system_flag": lambda m: m.part_number("system_flag"),
        "body_size": lambda m: m.part_number("body_bytes"),
        "tags_code": lambda m: m.number("tags_code"),
        "real_topic": lambda m: m.text("real_topic"),
        "real_queue_id": lambda m: m.number("real_queue", INT, least=0),
        "out_ms": lambda m: m.number("due_ms", least=0),
        "is_pending": lambda m: arrays.booleans(m.is_pending),
        "is_delete": lambda m: m.flag("is_delete"),
        "is_replacement": lambda m: m.flag("is_replacement"),
        "level": lambda m: m.number("level", INT, least=0),
    },
    "fired": {
        **_SHARED,
        "id": lambda m: m.text("key"),
        "properties": lambda m: m.user_properties(),
        "fired": lambda m: m.time("stored_ms"),
        "fired_ms": lambda m: m.number("stored_ms"),
        "put": lambda m: m.time("born_ms"),
        "put_ms": lambda m: m.number("born_ms"),
        "lateness_ms": lambda m: m.lateness(),
    },
}


def choose_rows(table: str, messages: MessageRows, bounds: Bounds) -> MessageRows:
    """Return the rows that belong to the table, and are within the bounds."""
    if table == "fired":
        fired = messages.is_fired
        if not fired.all():
            messages = messages.filter(fired)
    rows, numbers = messages.rows, BOUNDED[table]
    chosen = bounds.choose(numbers, lambda name: getattr(rows, numbers[name]))
    if chosen is not None:
        messages = messages.filter(chosen)
    if "topic" in bounds.texts and len(messages):
        messages = filter_topic(messages, messages.topics, bounds)
    return messages


def filter_topic(messages: MessageRows, topics: Any, bounds: Bounds) -> MessageRows:
    """Return the messages with an allowed topic."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(bounds.texts["topic"]), pa.string())
    chosen = pc.is_in(topics, wanted).to_numpy(zero_copy_only=False)
    return messages if chosen.all() else messages.filter(chosen)


def pieces(messages: MessageRows, sizes: Words, *, with_body: bool) -> Iterator[MessageRows]:
    """Cut messages so that the bodies of each piece fit into a batch."""
    if not with_body or not len(messages):
        if len(messages):
            yield messages
        return
    number = np.cumsum(sizes) // BATCH_BYTES
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for first, last in zip(starts, [*starts[1:], len(messages)], strict=True):
        yield messages.filter(slice(first, last))


def message_batches(
    view: StoreView, table: str, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong."""
    makers = [MAKERS[table][name] for name in columns]
    for rows in read_log(view, start, stop):
        if isinstance(rows, Fault):
            yield rows
            continue
        messages = choose_rows(table, MessageRows(view.reader.commitlog, rows), bounds)
        sizes = messages.rows.size
        for piece in pieces(messages, sizes, with_body=BODY in columns):
            yield [make(piece) for make in makers]


ExportTable = Literal["pending", "fired", "messages"]
_FIRED_TIMES: Final = ("fired_ms", "lateness_ms")
_TIMER: Final = ("put_ms", "roll_count", "offset", "key", *PAYLOAD)
_PLACE: Final = ("offset", "size", "topic", "queue_id", "queue_offset", "born_ms", "stored_ms")
EXPORT_SCHEMAS: Final[dict[str, Any]] = {
    "pending": arrow_schema("fired", ("id", "topic", "due_ms", *_TIMER)),
    "fired": arrow_schema("fired", ("id", "topic", "due_ms", *_FIRED_TIMES, *_TIMER)),
    "messages": arrow_schema(
        "messages", (*_PLACE, "reconsume_times", "unique_key", "key", *PAYLOAD)
    ),
}


def _id(messages: MessageRows) -> Any:
    ids = messages.text("key")
    return ids.fill_null("") if ids.null_count else ids


_FIRED: Final[dict[str, Maker]] = {**MAKERS["fired"], "id": _id}
EXPORT_MAKERS: Final[dict[str, dict[str, Maker]]] = {
    "pending": {
        **_FIRED,
        "topic": lambda m: m.text("real_topic"),
        "properties": lambda m: m.user_properties(and_expires=True),
    },
    "fired": _FIRED,
    "messages": MAKERS["messages"],
}
"""How each column of `EXPORT_SCHEMAS` is made."""
