"""The table `units`: what stands in the timer log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from timerstore.tables import arrays
from timerstore.tables.bounds import Bounds
from timerstore.tables.schema import BIGINT, INT
from timerstore.tables.view import StoreView
from timerstore.timelog import columns as kernels
from timerstore.timelog.audit import VERDICTS
from timerstore.timelog.format import UNIT_DELETE, UNIT_ROLL
from timerstore.timelog.reader import Fault, ReadSegments
from timerstore.timelog.record import Words
from timerstore.timelog.unit import UNIT_GOOD

CHUNK_UNITS: Final = 65_536
"""Units of one batch: 6 MB of columns."""
_LOG: Final = "timerlog"


def read_units(view: StoreView, start: int, stop: int) -> Iterator[Words]:
    """Yield the units that begin in [start, stop), damaged ones too: int64[UNIT_COLUMNS, n].

    The arrays are overwritten by the next step.
    """
    log = view.reader.timerlog
    units = np.zeros((kernels.UNIT_COLUMNS, CHUNK_UNITS), np.int64)
    state, scratch = np.array([start, 0], np.int64), np.zeros(64, np.uint8)
    for count in step_units(
        log, state, lambda: kernels.read_units(log.table, stop, units, scratch, state)
    ):
        yield units[:, :count]


def step_units(log: ReadSegments, state: Words, step: Callable[[], int]) -> Iterator[int]:
    """Yield the counts that a kernel returns which reads units, from `state[0]` on.

    It stops where `state[1]` asks for a segment, which is mapped; a gap is passed over, for the
    reader of the files names it.
    """
    while True:
        before = int(state[0])
        log.map_from(before)
        count = step()
        if count:
            yield count
        if state[1] == 0 and count < CHUNK_UNITS:
            return
        if state[1] == 1 and not log.map_from(int(state[0])):
            starts = [number * log.segment_bytes for number in log.numbers]
            behind = [start for start in starts if start > state[0]]
            if not behind:
                return
            state[0] = min(behind)


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
    "is_roll": _bit(UNIT_ROLL),
    "is_delete": _bit(UNIT_DELETE),
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
