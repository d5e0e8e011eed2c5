"""The tables `messages`, `fired`: what stands in the commit log.

A message whose checksum does not match is still a row where its structure holds, with `crc_ok`
false. What is no message is a fault, and reading goes on at the next sound message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np

from timerstore.tables import arrays
from timerstore.tables.arrays import Log
from timerstore.tables.bounds import Bounds, Flags
from timerstore.tables.schema import BIGINT, BINARY, BODY, INT, STRING
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.jit.record import Words
from timerstore.timelog.reading import columns as kernels
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.reader import Fault

BATCH_BYTES: Final = 64 << 20
"""Of messages, in a batch that has their bodies: Arrow's texts take at most 2 GiB."""
_LOG: Final = "commitlog"


# --- reading, past damage


def read_log(view: StoreView, start: int, stop: int) -> Iterator[Words | Fault]:
    """Yield the messages that begin in [start, stop), as rows of `scan.py`, with what is wrong.

    A message begins at `start`, and at `stop`, unless that is the end. The arrays are overwritten
    by the next step. ROW_STATUS is GOOD or BAD_CRC.
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
        reason = item.reason
        if not len(item.framed) and not (is_last and item.following < 0):
            reason += f"; {item.resume - item.offset} bytes from here are lost"
        yield Fault(_LOG, item.offset, reason)
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


def in_topic(log: Log, rows: Words, topic: bytes) -> Flags:
    """Tell which scanned messages stand in a topic; their segments are mapped. O(messages)."""
    likely: Flags = rows[:, scan.ROW_TOPIC_BYTES] == len(topic)
    at = np.flatnonzero(likely)
    if len(at):
        names = MessageRows(log, rows[at]).text(scan.ROW_TOPIC, BINARY)
        data = np.frombuffer(names.buffers()[2], np.uint8).reshape(-1, len(topic))
        likely[at] = (data == np.frombuffer(topic, np.uint8)).all(axis=1)
    return likely


def in_timer_topic(log: Log, rows: Words) -> Flags:
    """Tell which scanned messages wait in the timer topic, queue 0."""
    found: Flags = in_topic(log, rows, fmt.TIMER_TOPIC) & (rows[:, scan.ROW_QUEUE_ID] == 0)
    return found


class MessageRows:
    """Scanned messages, of which columns are made as they are asked for."""

    def __init__(self, log: Log, rows: Words, parts: Words | None = None) -> None:
        """`rows`: int64[n, ROW_COLUMNS]; `parts`: of the same messages, found where not given.

        Their segments are mapped.
        """
        self.log, self.rows, self._parts = log, rows, parts

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def filter(self, chosen: Any) -> MessageRows:
        """Return those that are chosen: bool[n], or a slice."""
        return MessageRows(self.log, self.rows[chosen], self.parts_of(chosen))

    def parts_of(self, chosen: Any) -> Words | None:
        """Return the parts of those that are chosen, where they are known."""
        return None if self._parts is None else self._parts[chosen]

    @property
    def parts(self) -> Words:
        """Where the parts of each message lie, see `columns.py`."""
        if self._parts is None:
            self._parts = np.zeros((len(self.rows), kernels.PART_COLUMNS), np.int64)
            found = MessageParts()
            kernels.find_parts(self.log.table, self.rows, found, self._parts)
        return self._parts

    @cached_property
    def topics(self) -> Any:
        """The topics under which they are stored."""
        return self.text(scan.ROW_TOPIC)

    @cached_property
    def is_pending(self) -> Flags:
        """Whether each stands in the timer topic, queue 0."""
        return in_timer_topic(self.log, self.rows)

    @property
    def is_fired(self) -> Flags:
        """Whether each is what a timer became: it has a due time, and waits nowhere."""
        fired: Flags = (self.rows[:, scan.ROW_DUE_MS] >= 0) & ~self.is_pending
        return fired & ~in_topic(self.log, self.rows, fmt.LEVEL_TOPIC)

    def number(self, column: int, kind: str = BIGINT, *, least: int | None = None) -> Any:
        """Return a column of the rows; what is below `least` is null."""
        values = self.rows[:, column]
        return arrays.numbers(values, kind, None if least is None else values >= least)

    def time(self, column: int, *, least: int | None = None) -> Any:
        """Return a column of times as timestamps."""
        values = self.rows[:, column]
        return arrays.timestamps(values, None if least is None else values >= least)

    def text(self, column: int, kind: str = STRING) -> Any:
        """Return a text; its length stands in the next column."""
        return arrays.texts(self.log, self.rows[:, column], self.rows[:, column + 1], kind)

    def part(self, column: int, kind: str = STRING) -> Any:
        """Return a part; its length stands in the next column."""
        return arrays.texts(self.log, self.parts[:, column], self.parts[:, column + 1], kind)

    def part_number(self, column: int) -> Any:
        """Return a number that stands among the parts."""
        return arrays.numbers(self.parts[:, column], INT)

    def flag(self, column: int) -> Any:
        """Return a column of the rows as booleans."""
        return arrays.booleans(self.rows[:, column] != 0)

    def properties(self) -> Any:
        """Return all properties."""
        places = self.parts[:, kernels.PART_PROPERTIES]
        return arrays.maps(self.log, places, self.parts[:, kernels.PART_PROPERTIES_BYTES])

    def user_properties(self) -> Any:
        """Return the properties that are not the system's own."""
        places, lengths = (self.parts[:, kernels.PART_PROPERTIES + i] for i in (0, 1))
        lengths = np.where(self.parts[:, kernels.PART_IS_PLAIN] == 1, 0, lengths)
        return arrays.maps(self.log, places, lengths, hidden=fmt.RESERVED_PROPERTIES)

    def lateness(self) -> Any:
        """Return how late each was appended, ms."""
        values = self.rows[:, scan.ROW_STORED_MS] - self.rows[:, scan.ROW_EXACT_DUE_MS]
        return arrays.numbers(values, BIGINT)


Maker = Callable[[MessageRows], Any]
_SHARED: Final[dict[str, Maker]] = {
    "offset": lambda m: m.number(scan.ROW_OFFSET),
    "size": lambda m: m.number(scan.ROW_SIZE, INT),
    "queue_id": lambda m: m.number(scan.ROW_QUEUE_ID, INT),
    "queue_offset": lambda m: m.number(scan.ROW_QUEUE_INDEX),
    "topic": lambda m: m.topics,
    "key": lambda m: m.part(kernels.PART_KEYS),
    "tag": lambda m: m.part(kernels.PART_TAGS),
    "properties": lambda m: m.properties(),
    "roll_count": lambda m: m.number(scan.ROW_ROLL_TIMES, INT),
    "origin": lambda m: m.number(scan.ROW_ORIGIN, least=0),
    "identity_high": lambda m: m.number(scan.ROW_IDENTITY_HIGH),
    "identity_low": lambda m: m.number(scan.ROW_IDENTITY_LOW),
    "due": lambda m: m.time(scan.ROW_EXACT_DUE_MS, least=0),
    "due_ms": lambda m: m.number(scan.ROW_EXACT_DUE_MS, least=0),
    "crc_ok": lambda m: arrays.booleans(m.rows[:, scan.ROW_STATUS] == GOOD),
    BODY: lambda m: m.part(kernels.PART_BODY, BINARY),
}
MAKERS: Final[dict[str, dict[str, Maker]]] = {
    "messages": {
        **_SHARED,
        "born": lambda m: m.time(scan.ROW_BORN_MS),
        "born_ms": lambda m: m.number(scan.ROW_BORN_MS),
        "stored": lambda m: m.time(scan.ROW_STORED_MS),
        "stored_ms": lambda m: m.number(scan.ROW_STORED_MS),
        "unique_key": lambda m: m.text(scan.ROW_KEY),
        "reconsume_times": lambda m: m.part_number(kernels.PART_RECONSUMES),
        "flag": lambda m: m.part_number(kernels.PART_FLAG),
        "system_flag": lambda m: m.part_number(kernels.PART_SYSTEM_FLAG),
        "body_size": lambda m: m.part_number(kernels.PART_BODY_BYTES),
        "tags_code": lambda m: m.number(scan.ROW_TAGS_CODE),
        "real_topic": lambda m: m.text(scan.ROW_REAL_TOPIC),
        "real_queue_id": lambda m: m.number(scan.ROW_REAL_QUEUE, INT, least=0),
        "out_ms": lambda m: m.number(scan.ROW_DUE_MS, least=0),
        "is_pending": lambda m: arrays.booleans(m.is_pending),
        "is_delete": lambda m: m.flag(scan.ROW_IS_DELETE),
        "is_replacement": lambda m: m.flag(scan.ROW_IS_REPLACEMENT),
        "level": lambda m: m.number(scan.ROW_LEVEL, INT, least=0),
    },
    "fired": {
        **_SHARED,
        "id": lambda m: m.text(scan.ROW_KEY),
        "properties": lambda m: m.user_properties(),
        "fired": lambda m: m.time(scan.ROW_STORED_MS),
        "fired_ms": lambda m: m.number(scan.ROW_STORED_MS),
        "put": lambda m: m.time(scan.ROW_BORN_MS),
        "put_ms": lambda m: m.number(scan.ROW_BORN_MS),
        "lateness_ms": lambda m: m.lateness(),
    },
}

NUMBERS: Final[dict[str, dict[str, int]]] = {
    "messages": {
        "offset": scan.ROW_OFFSET,
        "size": scan.ROW_SIZE,
        "queue_id": scan.ROW_QUEUE_ID,
        "queue_offset": scan.ROW_QUEUE_INDEX,
        "born_ms": scan.ROW_BORN_MS,
        "stored_ms": scan.ROW_STORED_MS,
        "due_ms": scan.ROW_EXACT_DUE_MS,
        "origin": scan.ROW_ORIGIN,
    },
    "fired": {
        "offset": scan.ROW_OFFSET,
        "size": scan.ROW_SIZE,
        "queue_id": scan.ROW_QUEUE_ID,
        "queue_offset": scan.ROW_QUEUE_INDEX,
        "put_ms": scan.ROW_BORN_MS,
        "fired_ms": scan.ROW_STORED_MS,
        "due_ms": scan.ROW_EXACT_DUE_MS,
        "origin": scan.ROW_ORIGIN,
    },
}
"""Columns by which rows are left out before their texts are read."""


def choose_rows(table: str, messages: MessageRows, bounds: Bounds) -> MessageRows:
    """Return the rows that belong to the table, and are within the bounds."""
    if table == "fired":
        fired = messages.is_fired
        if not fired.all():
            messages = messages.filter(fired)
    rows, numbers = messages.rows, NUMBERS[table]
    chosen = bounds.choose(numbers, lambda name: rows[:, numbers[name]])
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


def read(
    view: StoreView, table: str, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong."""
    makers = [MAKERS[table][name] for name in columns]
    for rows in read_log(view, start, stop):
        if isinstance(rows, Fault):
            yield rows
            continue
        messages = choose_rows(table, MessageRows(view.reader.commitlog, rows), bounds)
        sizes = messages.rows[:, scan.ROW_SIZE]
        for piece in pieces(messages, sizes, with_body=BODY in columns):
            yield [make(piece) for make in makers]
