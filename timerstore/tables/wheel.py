"""The table `slots`: what the timer wheel holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables import arrays
from timerstore.tables.bounds import Bounds, Flags
from timerstore.tables.schema import BIGINT, INT
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.timelog.reading.reader import Fault

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


_NUMBERS: Final = ("index", "time_ms", "first", "last", "count")
MAKERS: Final[dict[str, Callable[[SlotRows], Any]]] = {
    "index": lambda s: arrays.numbers(s.indexes, BIGINT),
    "time": lambda s: arrays.timestamps(s.time_ms, s.within),
    "time_ms": lambda s: arrays.numbers(s.time_ms, BIGINT, s.within),
    "first": lambda s: s.field("first"),
    "last": lambda s: s.field("last"),
    "count": lambda s: s.field("count", INT),
    "slot": lambda s: arrays.numbers(s.time, BIGINT),
    "magic": lambda s: s.field("magic", INT),
}


def read(
    view: StoreView, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of the used slots with indexes in [start, stop), with what is wrong."""
    slots, used = view.reader.slots, view.reader.used_slots
    used = used[(used >= start) & (used < stop)]
    for at in range(0, len(used), _CHUNK_SLOTS):
        indexes = used[at : at + _CHUNK_SLOTS]
        fields = np.array(slots[indexes], fmt.SLOT)
        held = ~emptied(fields)
        rows = SlotRows(view, indexes[held], fields[held])
        yield from _faults(rows, len(slots))
        chosen = bounds.choose(_NUMBERS, rows.number)
        if chosen is not None:
            rows = SlotRows(view, rows.indexes[chosen], rows.fields[chosen])
        if len(rows.indexes):
            yield [MAKERS[name](rows) for name in columns]


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


def _faults(rows: SlotRows, slot_count: int) -> Iterator[Fault]:
    for i in np.flatnonzero(misplaced(rows.indexes, rows.fields, slot_count)).tolist():
        offset = int(rows.indexes[i]) * fmt.SLOT_BYTES + fmt.SLOT_TIME_AT
        yield Fault(_WHEEL, offset, f"the slot's time, {rows.time[i]}, does not belong here")
