"""The tables `units`, `slots`, `queues`: what stands in the timer log, the wheel, queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables import arrays
from timerstore.tables.bounds import BOUNDED, Bounds, Flags
from timerstore.tables.schema import BIGINT, INT, find_table
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT, UNIT_GOOD, LoggedUnits
from timerstore.timelog.reading.audit import VERDICTS
from timerstore.timelog.reading.reader import Fault, read_entries
from timerstore.timelog.reading.units import walk_units

_TIMERLOG: Final = "timerlog"


def read_units(view: StoreView, start: int, stop: int) -> Iterator[LoggedUnits]:
    """Yield the units that begin in [start, stop), damaged ones too: see `walk_units`."""
    return walk_units(view.reader.timerlog, start, stop)


def unit_faults(view: StoreView, units: LoggedUnits) -> list[Fault]:
    """Return what is wrong with units."""
    return [
        Fault(_TIMERLOG, int(units.offset[i]), VERDICTS[int(units.status[i])])
        for i in np.flatnonzero(units.status != UNIT_GOOD).tolist()
        if not view.cut.is_open or units.offset[i] < view.units_durable
    ]


def _number(column: str, kind: str = BIGINT) -> Callable[[StoreView, LoggedUnits], Any]:
    return lambda view, units: arrays.numbers(getattr(units, column).copy(), kind)


def _time(column: str) -> Callable[[StoreView, LoggedUnits], Any]:
    return lambda view, units: arrays.timestamps(getattr(units, column))


def _bit(bit: int) -> Callable[[StoreView, LoggedUnits], Any]:
    return lambda view, units: arrays.booleans(units.magic & bit != 0)


_UNIT_MAKERS: Final[dict[str, Callable[[StoreView, LoggedUnits], Any]]] = {
    "offset": _number("offset"),
    "prev_pos": _number("prev"),
    "magic": _number("magic", INT),
    "is_roll": _bit(fmt.UNIT_ROLL),
    "is_hop": _bit(fmt.UNIT_HOP),
    "is_delete": _bit(fmt.UNIT_DELETE),
    "written": _time("write_ms"),
    "written_ms": _number("write_ms"),
    "due": _time("ms"),
    "due_ms": _number("ms"),
    "message_offset": _number("message"),
    "message_size": _number("size", INT),
    "topic_hash": _number("topic_hash", INT),
    "crc_ok": lambda view, units: arrays.booleans(units.status == UNIT_GOOD),
    "slot": lambda view, units: arrays.numbers(units.ms // view.reader.precision_ms, BIGINT),
    "extra": _number("extra"),
    "by_broker": lambda view, units: arrays.booleans(units.by_broker != 0),
    "status": _number("status", INT),
}


def unit_batches(
    view: StoreView, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong."""
    makers = [_UNIT_MAKERS[name] for name in columns]
    for units in read_units(view, start, stop):
        yield from unit_faults(view, units)
        chosen = choose_units(units, bounds)
        if len(chosen):
            yield [make(view, chosen) for make in makers]


def choose_units(units: LoggedUnits, bounds: Bounds) -> LoggedUnits:
    """Return the units within the bounds."""
    names = BOUNDED["units"]
    chosen = bounds.choose(names, lambda name: getattr(units, names[name]))
    return units if chosen is None else units[chosen]


# --- slots


_WHEEL: Final = "timerwheel"
_CHUNK_SLOTS: Final = 65_536
_TIME_MAX: Final = 1 << 52
"""Larger numbers of slots are damage, and shown as times they would overflow."""


class SlotRows:
    """Used slots: their indexes, and their fields as NumPy sees them."""

    def __init__(self, view: StoreView, indexes: Any, fields: Any) -> None:
        """`indexes`: int64[n]. `fields`: SLOT[n]."""
        self.indexes, self.fields = indexes, fields
        self.time = fields["time"].astype(np.int64)
        self.within = (self.time >= 0) & (self.time < _TIME_MAX)
        self.time_ms = np.where(self.within, self.time, -1) * view.reader.precision_ms

    def number(self, name: str) -> Any:
        """Return a column that can have bounds."""
        if name in ("index", "time_ms"):
            return self.indexes if name == "index" else self.time_ms
        return self.fields[name]

    def field(self, name: str, kind: str = BIGINT) -> Any:
        """Return a field of the slots."""
        return arrays.numbers(self.fields[name].astype(np.int64), kind)


_SLOT_MAKERS: Final[dict[str, Callable[[SlotRows], Any]]] = {
    "index": lambda s: arrays.numbers(s.indexes, BIGINT),
    "time": lambda s: arrays.timestamps(s.time_ms, s.within),
    "time_ms": lambda s: arrays.numbers(s.time_ms, BIGINT, s.within),
    "first": lambda s: s.field("first"),
    "last": lambda s: s.field("last"),
    "count": lambda s: s.field("count", INT),
    "slot": lambda s: arrays.numbers(s.time, BIGINT),
    "magic": lambda s: s.field("magic", INT),
}


def slot_batches(
    view: StoreView, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of the used slots with indexes in [start, stop), with what is wrong."""
    slots, used = view.slots, view.used_slots
    used = used[(used >= start) & (used < stop)]
    for at in range(0, len(used), _CHUNK_SLOTS):
        indexes = used[at : at + _CHUNK_SLOTS]
        fields = np.array(slots[indexes], fmt.SLOT)
        held = ~emptied(fields)
        rows = SlotRows(view, indexes[held], fields[held])
        yield from _slot_faults(rows, len(slots))
        chosen = bounds.choose(BOUNDED["slots"], rows.number)
        if chosen is not None:
            rows = SlotRows(view, rows.indexes[chosen], rows.fields[chosen])
        if len(rows.indexes):
            yield [_SLOT_MAKERS[name](rows) for name in columns]


def emptied(fields: Any) -> Flags:
    """Tell which used slots hold nothing any more: opening took their units back."""
    found: Flags = (fields["time"] == NO_UNIT) & (fields["last"] == NO_UNIT)
    found &= fields["magic"] == 0
    return found


def misplaced(indexes: Words, fields: Any, slot_count: int) -> Flags:
    """Tell of which used slots the time does not belong to their index, or that hold no slot.

    `indexes`: int64[n]. `fields`: SLOT[n].
    """
    time = fields["time"].astype(np.int64)
    wrong = (time < 0) | (time >= _TIME_MAX) | (time % max(1, slot_count) != indexes)
    found: Flags = (wrong | (fields["magic"] != 0)) & ~emptied(fields)
    return found


def _slot_faults(rows: SlotRows, slot_count: int) -> Iterator[Fault]:
    for i in np.flatnonzero(misplaced(rows.indexes, rows.fields, slot_count)).tolist():
        offset = int(rows.indexes[i]) * fmt.SLOT_BYTES + fmt.SLOT_TIME_AT
        yield Fault(_WHEEL, offset, f"the slot's time, {rows.time[i]}, does not belong here")


# --- queues


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


def entry_batches(
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
        chosen = bounds.choose(BOUNDED["queues"], rows.value)
        if chosen is not None:
            kept &= chosen
        if kept.any():
            yield [_entry_column(column, topic, rows, kept) for column in columns]


def _entry_column(column: str, topic: str, rows: EntryRows, kept: Flags) -> Any:
    if column == "topic":
        return arrays.repeated(topic, int(kept.sum()))
    return arrays.numbers(rows.value(column)[kept], find_table("queues").find(column).kind)
