"""The tables `units`, `slots`, `queues`: what stands in the timer log, the wheel, queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables import arrays
from timerstore.tables.bounds import Bounds, Flags
from timerstore.tables.rows import TableRows
from timerstore.tables.schema import STRING, Column
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT, UNIT_GOOD, LoggedUnits
from timerstore.timelog.reading.audit import VERDICTS
from timerstore.timelog.reading.reader import Fault, read_entries
from timerstore.timelog.reading.units import walk_units

_TIMERLOG: Final = "timerlog"


def unit_faults(view: StoreView, units: LoggedUnits) -> list[Fault]:
    """Return what is wrong with units."""
    return [
        Fault(_TIMERLOG, int(units.offset[i]), VERDICTS[int(units.status[i])])
        for i in np.flatnonzero(units.status != UNIT_GOOD).tolist()
        if not view.cut.is_open or units.offset[i] < view.units_durable
    ]


class UnitRows(TableRows):
    """Units of the timer log."""

    def __init__(self, units: LoggedUnits, precision_ms: int) -> None:
        self.units, self.precision_ms = units, precision_ms

    def __len__(self) -> int:
        return len(self.units)

    def filter(self, chosen: Any) -> UnitRows:
        """Return those that are chosen."""
        return UnitRows(self.units[chosen], self.precision_ms)

    def value(self, name: str) -> Any:
        """Return numbers or flags of the units."""
        if name == "crc_ok":
            return self.units.status == UNIT_GOOD
        if name == "slot":
            return self.units.ms // self.precision_ms
        return self.units.magic & _BITS[name] if name in _BITS else getattr(self.units, name)


_BITS: Final = {"is_roll": fmt.UNIT_ROLL, "is_hop": fmt.UNIT_HOP, "is_delete": fmt.UNIT_DELETE}


def unit_batches(
    view: StoreView, start: int, stop: int, columns: Sequence[Column], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong."""
    for units in walk_units(view.reader.timerlog, start, stop):
        yield from unit_faults(view, units)
        chosen = UnitRows(units, view.reader.precision_ms).within("units", bounds)
        if len(chosen):
            yield chosen.columns(columns)


# --- slots


_WHEEL: Final = "timerwheel"
_CHUNK_SLOTS: Final = 65_536
_TIME_MAX: Final = 1 << 52
"""Larger numbers of slots are damage, and shown as times they would overflow."""


class SlotRows(TableRows):
    """Used slots: their indexes, and their fields as NumPy sees them."""

    def __init__(self, precision_ms: int, indexes: Any, fields: Any) -> None:
        """`indexes`: int64[n]. `fields`: SLOT[n]."""
        self.precision_ms, self.index, self.fields = precision_ms, indexes, fields
        self.time = fields["time"].astype(np.int64)
        within = (self.time >= 0) & (self.time < _TIME_MAX)
        self.time_ms = np.where(within, self.time, -1) * precision_ms

    def __len__(self) -> int:
        return len(self.index)

    def filter(self, chosen: Any) -> SlotRows:
        """Return those that are chosen."""
        return SlotRows(self.precision_ms, self.index[chosen], self.fields[chosen])

    def value(self, name: str) -> Any:
        """Return numbers of the slots."""
        if name in ("first", "last", "count", "magic"):
            return self.fields[name].astype(np.int64)
        return getattr(self, name)


def slot_batches(
    view: StoreView, start: int, stop: int, columns: Sequence[Column], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of the used slots with indexes in [start, stop), with what is wrong."""
    slots, used = view.slots, view.used_slots
    used = used[(used >= start) & (used < stop)]
    for at in range(0, len(used), _CHUNK_SLOTS):
        indexes = used[at : at + _CHUNK_SLOTS]
        fields = np.array(slots[indexes], fmt.SLOT)
        held = SlotRows(view.reader.precision_ms, indexes, fields).filter(~emptied(fields))
        yield from _slot_faults(held, len(slots))
        chosen = held.within("slots", bounds)
        if len(chosen):
            yield chosen.columns(columns)


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
    for i in np.flatnonzero(misplaced(rows.index, rows.fields, slot_count)).tolist():
        offset = int(rows.index[i]) * fmt.SLOT_BYTES + fmt.SLOT_TIME_AT
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


class EntryRows(TableRows):
    """Entries of one queue."""

    def __init__(self, topic: str, queue_id: int, index: Words, fields: Any) -> None:
        """`fields`: QUEUE_ENTRY[n]; `index`: int64[n], their places in the queue."""
        self.topic, self.number = topic, queue_id
        self.queue_id, self.index = np.full(len(index), queue_id), index
        self.fields = fields
        self.offset = fields["offset"].astype(np.int64)
        self.size = fields["size"].astype(np.int64)
        self.tags_code = fields["tags_code"].astype(np.int64)

    def __len__(self) -> int:
        return len(self.index)

    def filter(self, chosen: Any) -> EntryRows:
        """Return those that are chosen."""
        return EntryRows(self.topic, self.number, self.index[chosen], self.fields[chosen])

    def text(self, name: str, kind: str = STRING) -> Any:
        """Return the topic of each."""
        return arrays.repeated(self.topic, len(self))

    @property
    def is_empty(self) -> Flags:
        """Which were never written, or are the blanks that a queue can begin with."""
        kept: Flags = (self.offset != 0) | (self.tags_code != 0)
        empty: Flags = ~kept & ((self.size == 0) | (self.size == fmt.QUEUE_BLANK_SIZE))
        return empty


def entry_batches(
    view: StoreView, name: str, start: int, stop: int, columns: Sequence[Column], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of the entries with indexes in [start, stop) of one queue.

    Empty entries, and entries behind what is read of the log, are no rows.
    """
    topic, queue_id = find_queue(name)
    queue = view.reader.queues[topic, queue_id]
    for at in range(start, stop, _CHUNK_ENTRIES):
        count = min(_CHUNK_ENTRIES, stop - at)
        fields = read_entries(queue, at, count)
        rows = EntryRows(topic, queue_id, np.arange(at, at + len(fields)), fields)
        odd = ~rows.is_empty & ((rows.size <= 0) | (rows.offset < 0))
        for index in rows.index[odd].tolist():
            yield Fault(name, index * fmt.ENTRY_BYTES, "the entry points to no message")
        kept = rows.filter(~rows.is_empty & (rows.offset < view.log_stop)).within("queues", bounds)
        if len(kept):
            yield kept.columns(columns)
