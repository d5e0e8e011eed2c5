"""The table `problems`: what of a store cannot be read, or is not what was written there.

It names what the other tables pass over. Whether the parts of a store agree with each other is
what validating tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from timerstore.tables import commitlog, queues, timerlog, wheel
from timerstore.tables.bounds import Bounds
from timerstore.tables.schema import ARROW_TYPES, BIGINT, STRING
from timerstore.tables.splits import FILES, LOG, UNITS, WHEEL, Range, file_faults
from timerstore.tables.view import StoreView
from timerstore.timelog.reading.reader import Fault

_BATCH_COUNT: Final = 65_536


def read(view: StoreView, part: Range, names: tuple[str, ...]) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch."""
    faults: list[Fault] = []
    for fault in _faults(view, part):
        faults.append(fault)
        if len(faults) == _BATCH_COUNT:
            yield _columns(faults, names)
            faults = []
    if faults:
        yield _columns(faults, names)


def _faults(view: StoreView, part: Range) -> Iterator[Fault]:
    """Yield what is wrong in one part of a store."""
    name, start, stop = part
    everything = Bounds()
    if name == FILES:
        yield from file_faults(view)
    elif name == LOG:
        for item in commitlog.read_log(view, start, stop):
            if isinstance(item, Fault):
                yield item
    elif name == UNITS:
        for units in timerlog.read_units(view, start, stop):
            yield from timerlog.unit_faults(view, units)
    elif name == WHEEL:
        yield from _of(wheel.read(view, start, stop, (), everything))
    else:
        yield from _of(queues.read(view, name, start, stop, (), everything))


def _of(items: Iterator[list[Any] | Fault]) -> Iterator[Fault]:
    return (item for item in items if isinstance(item, Fault))


def _columns(faults: list[Fault], names: tuple[str, ...]) -> list[Any]:
    made = {
        "file": pa.array([fault.file for fault in faults], ARROW_TYPES[STRING]),
        "offset": pa.array([fault.offset for fault in faults], ARROW_TYPES[BIGINT]),
        "reason": pa.array([fault.reason for fault in faults], ARROW_TYPES[STRING]),
    }
    return [made[name] for name in names]
