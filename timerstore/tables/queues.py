"""The table `queues`: the entries of all consume queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables import arrays
from timerstore.tables.bounds import Bounds, Flags
from timerstore.tables.schema import BIGINT, INT
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.reading.reader import Fault, read_entries

_CHUNK_ENTRIES: Final = 65_536


def queue_name(topic: str, queue_id: int) -> str:
    """Return the name under which a split and a fault know a queue."""
    return f"consumequeue/{topic}/{queue_id}"


def find_queue(name: str) -> tuple[str, int]:
    """Return topic and queue id of a queue's name."""
    _, topic, queue_id = name.split("/")
    return topic, int(queue_id)


def queue_stop(view: StoreView, topic: str, queue_id: int) -> int:
    """Return the index behind the last entry that is not empty."""
    return -(-view.reader.queues[topic, queue_id].used_end() // fmt.ENTRY_BYTES)


class EntryRows:
    """Entries of one queue."""

    def __init__(self, queue_id: int, index: Words, fields: Any) -> None:
        """`fields`: QUEUE_ENTRY[n]; `index`: int64[n], their places in the queue."""
        self.queue_id, self.index = queue_id, index
        self.offset = fields["offset"].astype(np.int64)
        self.size = fields["size"].astype(np.int64)
        self.tags_code = fields["tags_code"].astype(np.int64)

    @property
    def is_empty(self) -> Flags:
        """Which were never written, or are the blanks that a queue can begin with."""
        kept: Flags = (self.offset != 0) | (self.tags_code != 0)
        empty: Flags = ~kept & ((self.size == 0) | (self.size == fmt.QUEUE_BLANK_SIZE))
        return empty

    def value(self, name: str) -> Words:
        """Return a column that can have bounds."""
        if name == "queue_id":
            return np.full(len(self.index), self.queue_id, np.int64)
        found: Words = getattr(self, name)
        return found


_KINDS: Final = {"queue_id": INT, "index": BIGINT, "offset": BIGINT, "size": INT}
_KINDS["tags_code"] = BIGINT


def read(
    view: StoreView, name: str, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of the entries with indexes in [start, stop) of one queue.

    Empty entries, and entries behind what is read of the log, are no rows.
    """
    topic, queue_id = find_queue(name)
    queue = view.reader.queues[topic, queue_id]
    for at in range(start, stop, _CHUNK_ENTRIES):
        count = min(_CHUNK_ENTRIES, stop - at)
        fields = read_entries(queue, at, count)
        rows = EntryRows(queue_id, np.arange(at, at + len(fields), dtype=np.int64), fields)
        odd = ~rows.is_empty & ((rows.size <= 0) | (rows.offset < 0))
        for index in rows.index[odd].tolist():
            yield Fault(name, index * fmt.ENTRY_BYTES, "the entry points to no message")
        kept = ~rows.is_empty & (rows.offset < view.log_stop)
        chosen = bounds.choose(_KINDS, rows.value)
        if chosen is not None:
            kept &= chosen
        if kept.any():
            yield [_make(column, topic, rows, kept) for column in columns]


def _make(column: str, topic: str, rows: EntryRows, kept: Flags) -> Any:
    """Return one column of the entries that are kept."""
    if column == "topic":
        return arrays.repeated(topic, int(kept.sum()))
    return arrays.numbers(rows.value(column)[kept], _KINDS[column])
