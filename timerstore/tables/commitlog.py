"""The tables `messages`, `fired`: what stands in the commit log.

A message whose checksum does not match is still a row if its structure holds, with `crc_ok` false.
What is no message is a fault, and reading goes on at the next sound message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables import arrays
from timerstore.tables.arrays import Log
from timerstore.tables.bounds import Bounds, Flags
from timerstore.tables.rows import TableRows
from timerstore.tables.schema import BINARY, BODY, PAYLOAD, STRING, Column, find_table, schema_of
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.reader import Fault
from timerstore.timelog.reading.scan import LoggedMessages, LoggedParts, find_parts

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


class MessageRows(TableRows):
    """Scanned messages, of which columns are made as they are asked for."""

    def __init__(self, log: Log, rows: LoggedMessages, parts: LoggedParts | None = None) -> None:
        """`parts`: of the same messages, found if not given; their segments are mapped."""
        self.log, self.rows, self._parts = log, rows, parts

    def __len__(self) -> int:
        return len(self.rows)

    def filter(self, chosen: Any) -> MessageRows:
        """Return those that are chosen."""
        return MessageRows(self.log, self.rows[chosen], self.parts_of(chosen))

    def parts_of(self, chosen: Any) -> LoggedParts | None:
        """Return the parts of those that are chosen, if they are known."""
        return None if self._parts is None else self._parts[chosen]

    @property
    def parts(self) -> LoggedParts:
        """Where the parts of each message lie, see `scan.py`."""
        if self._parts is None:
            self._parts = LoggedParts.room(len(self.rows))
            found = MessageParts()
            find_parts(self.log.table, self.rows, found, self._parts)
        return self._parts

    @cached_property
    def is_pending(self) -> Flags:
        """Whether each stands in the timer topic, queue 0."""
        return in_timer_topic(self.log, self.rows)

    @property
    def is_fired(self) -> Flags:
        """Whether each is what a timer became: it has a due time, and waits nowhere."""
        fired: Flags = (self.rows.due_ms >= 0) & ~self.is_pending
        return fired & ~in_topic(self.log, self.rows, fmt.LEVEL_TOPIC)

    @property
    def crc_ok(self) -> Flags:
        """Whether each has a checksum that matches."""
        ok: Flags = self.rows.status == GOOD
        return ok

    @property
    def lateness_ms(self) -> Words:
        """How late each was appended."""
        return self.rows.stored_ms - self.rows.exact_due_ms

    def value(self, name: str) -> Any:
        """Return numbers of the rows, or of their parts, or flags."""
        if name in _ROWS:
            return getattr(self.rows, name)
        return getattr(self.parts if name in _PARTS else self, name)

    def text(self, name: str, kind: str = STRING) -> Any:
        """Return texts of the rows, or of their parts; `id`: the key, "" if there is none."""
        if name == "id":
            return self.text("key").fill_null("")
        places, lengths = self.value(f"{name}_at"), self.value(f"{name}_bytes")
        return arrays.texts(self.log, places, lengths, kind)

    def properties(self, name: str) -> Any:
        """Return all properties, or those that the user gave: see `_HIDDEN`."""
        hidden, parts = _HIDDEN[name], self.parts
        lengths = np.where((parts.is_plain == 1) & bool(hidden), 0, parts.properties_bytes)
        return arrays.maps(self.log, parts.properties_at, lengths, hidden)


_ROWS: Final = frozenset(LoggedMessages.columns())
_PARTS: Final = frozenset(LoggedParts.columns())
_HIDDEN: Final[dict[str, frozenset[str]]] = {
    "properties": frozenset(),
    "user_properties": fmt.RESERVED_PROPERTIES,
    "put_properties": fmt.RESERVED_PROPERTIES - {fmt.PROPERTY_EXPIRES.decode()},
}
"""The system's own, which are left out; `put` can be given one of them, by which a timer expires.
"""


def pieces(messages: MessageRows, columns: Sequence[Column]) -> Iterator[MessageRows]:
    """Cut messages so that the bodies of each piece fit into a batch."""
    if all(each.name != BODY for each in columns):
        if len(messages):
            yield messages
        return
    number = np.cumsum(messages.rows.size) // BATCH_BYTES
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for first, last in zip(starts, [*starts[1:], len(messages)][: len(starts)], strict=True):
        yield messages.filter(slice(first, last))


def message_batches(
    view: StoreView, table: str, start: int, stop: int, columns: Sequence[Column], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong."""
    for rows in read_log(view, start, stop):
        if isinstance(rows, Fault):
            yield rows
            continue
        messages = MessageRows(view.reader.commitlog, rows)
        if table == "fired":
            messages = messages.only(messages.is_fired)
        for piece in pieces(messages.within(table, bounds), columns):
            yield piece.columns(columns)


ExportTable = Literal["pending", "fired", "messages"]
_FIRED_TIMES: Final = ("fired_ms", "lateness_ms")
_TIMER: Final = ("put_ms", "roll_count", "offset", "key", *PAYLOAD)
_PLACE: Final = ("offset", "size", "topic", "queue_id", "queue_offset", "born_ms", "stored_ms")


def _exported(table: str, *names: str, **of: str) -> list[Column]:
    """Return columns of a table; `of`: what those are made of that are another thing here."""
    columns = find_table(table).choose(names)
    return [each._replace(of=of.get(each.name, each.of)) for each in columns]


EXPORTED: Final[dict[str, list[Column]]] = {
    "pending": _exported(
        "fired",
        *("id", "topic", "due_ms", *_TIMER),
        id="id",
        topic="real_topic",
        properties="put_properties",
    ),
    "fired": _exported("fired", "id", "topic", "due_ms", *_FIRED_TIMES, *_TIMER, id="id"),
    "messages": _exported("messages", *_PLACE, "reconsume_times", "unique_key", "key", *PAYLOAD),
}
EXPORT_SCHEMAS: Final = {table: schema_of(columns) for table, columns in EXPORTED.items()}
