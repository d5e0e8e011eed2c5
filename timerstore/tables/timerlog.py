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
from timerstore.timelog.bytes.unit import UNIT_GOOD
from timerstore.timelog.jit.record import Words
from timerstore.timelog.reading import units as kernels
from timerstore.timelog.reading.audit import VERDICTS
from timerstore.timelog.reading.reader import Fault
from timerstore.timelog.reading.units import walk_units

_LOG: Final = "timerlog"


def read_units(view: StoreView, start: int, stop: int) -> Iterator[Words]:
    """Yield the units that begin in [start, stop), damaged ones too: see `walk_units`."""
    return walk_units(view.reader.timerlog, start, stop)


def unit_faults(view: StoreView, offsets: Words, status: Words) -> list[Fault]:
    """Return what is wrong with units."""
    return [
        Fault(_LOG, int(offsets[i]), VERDICTS[int(status[i])])
        for i in np.flatnonzero(status != UNIT_GOOD).tolist()
        if not view.cut.is_open or offsets[i] < view.units_durable
    ]


def _number(column: int, kind: str = BIGINT) -> Callable[[StoreView, Words], Any]:
    return lambda view, units: arrays.numbers(units[column].copy(), kind)


def _time(column: int) -> Callable[[StoreView, Words], Any]:
    return lambda view, units: arrays.timestamps(units[column])


def _bit(bit: int) -> Callable[[StoreView, Words], Any]:
    return lambda view, units: arrays.booleans(units[kernels.UNIT_MAGIC] & bit != 0)


MAKERS: Final[dict[str, Callable[[StoreView, Words], Any]]] = {
    "offset": _number(kernels.UNIT_OFFSET),
    "prev_pos": _number(kernels.UNIT_PREV),
    "magic": _number(kernels.UNIT_MAGIC, INT),
    "is_roll": _bit(fmt.UNIT_ROLL),
    "is_delete": _bit(fmt.UNIT_DELETE),
    "written": _time(kernels.UNIT_WRITE_MS),
    "written_ms": _number(kernels.UNIT_WRITE_MS),
    "due": _time(kernels.UNIT_MS),
    "due_ms": _number(kernels.UNIT_MS),
    "message_offset": _number(kernels.UNIT_MESSAGE),
    "message_size": _number(kernels.UNIT_MESSAGE_SIZE, INT),
    "topic_hash": _number(kernels.UNIT_HASH, INT),
    "crc_ok": lambda view, units: arrays.booleans(units[kernels.UNIT_STATUS] == UNIT_GOOD),
    "slot": lambda view, units: arrays.numbers(
        units[kernels.UNIT_MS] // view.reader.precision_ms, BIGINT
    ),
    "extra": _number(kernels.UNIT_EXTRA),
    "by_broker": lambda view, units: arrays.booleans(units[kernels.UNIT_BY_BROKER] != 0),
    "status": _number(kernels.UNIT_STATUS, INT),
}
NUMBERS: Final = {
    "offset": kernels.UNIT_OFFSET,
    "prev_pos": kernels.UNIT_PREV,
    "magic": kernels.UNIT_MAGIC,
    "written_ms": kernels.UNIT_WRITE_MS,
    "due_ms": kernels.UNIT_MS,
    "message_offset": kernels.UNIT_MESSAGE,
    "topic_hash": kernels.UNIT_HASH,
}


def read(
    view: StoreView, start: int, stop: int, columns: tuple[str, ...], bounds: Bounds
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong."""
    makers = [MAKERS[name] for name in columns]
    for units in read_units(view, start, stop):
        yield from unit_faults(view, units[kernels.UNIT_OFFSET], units[kernels.UNIT_STATUS])
        chosen = choose_units(units, bounds)
        if chosen.shape[1]:
            yield [make(view, chosen) for make in makers]


def choose_units(units: Words, bounds: Bounds) -> Words:
    """Return the units within the bounds."""
    chosen = bounds.choose(NUMBERS, lambda name: units[NUMBERS[name]])
    return units if chosen is None else units[:, chosen]
