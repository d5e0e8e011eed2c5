"""The table `units`: what stands in the timer log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from timerstore.tables import arrays
from timerstore.tables.bounds import Bounds
from timerstore.tables.schema import BIGINT, INT
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import UNIT_GOOD, LoggedUnits
from timerstore.timelog.reading.audit import VERDICTS
from timerstore.timelog.reading.reader import Fault
from timerstore.timelog.reading.units import walk_units

_LOG: Final = "timerlog"


def read_units(view: StoreView, start: int, stop: int) -> Iterator[LoggedUnits]:
    """Yield the units that begin in [start, stop), damaged ones too: see `walk_units`."""
    return walk_units(view.reader.timerlog, start, stop)


def unit_faults(view: StoreView, units: LoggedUnits) -> list[Fault]:
    """Return what is wrong with units."""
    return [
        Fault(_LOG, int(units.offset[i]), VERDICTS[int(units.status[i])])
        for i in np.flatnonzero(units.status != UNIT_GOOD).tolist()
        if not view.cut.is_open or units.offset[i] < view.units_durable
    ]


def _number(column: str, kind: str = BIGINT) -> Callable[[StoreView, LoggedUnits], Any]:
    return lambda view, units: arrays.numbers(getattr(units, column).copy(), kind)


def _time(column: str) -> Callable[[StoreView, LoggedUnits], Any]:
    return lambda view, units: arrays.timestamps(getattr(units, column))


def _bit(bit: int) -> Callable[[StoreView, LoggedUnits], Any]:
    return lambda view, units: arrays.booleans(units.magic & bit != 0)


MAKERS: Final[dict[str, Callable[[StoreView, LoggedUnits], Any]]] = {
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
NUMBERS: Final = {
    "offset": "offset",
    "prev_pos": "prev",
    "magic": "magic",
    "written_ms": "write_ms",
    "due_ms": "ms",
    "message_offset": "message",
    "topic_hash": "topic_hash",
}


def read(
    view: StoreView, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong."""
    makers = [MAKERS[name] for name in columns]
    for units in read_units(view, start, stop):
        yield from unit_faults(view, units)
        chosen = choose_units(units, bounds)
        if len(chosen):
            yield [make(view, chosen) for make in makers]


def choose_units(units: LoggedUnits, bounds: Bounds) -> LoggedUnits:
    """Return the units within the bounds."""
    chosen = bounds.choose(NUMBERS, lambda name: getattr(units, NUMBERS[name]))
    return units if chosen is None else units[chosen]
