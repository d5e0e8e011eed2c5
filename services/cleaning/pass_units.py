"""The units of a pass of cleaning, read through maps of its own.

So those of the services stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from timerstore.services.looking.log_units import read_units
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.reading.reader import ReadSegments
from timerstore.wheel import chain

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine

_NO_UNITS: Final = Units.room(0)


@dataclass
class Pass:
    """Messages from `start` to `stop` that nothing is needed of once R is at `first_slot`."""

    start: int
    stop: int
    first_slot: int  # S
    copies: bool  # it stands in `Cleaning.passes` as well


class Walk:
    """How far the copying of a pass has come among its units."""

    def __init__(self, engine: Engine, mine: Pass, offset: int, units_at_once: int) -> None:
        """`offset`: of a unit at or before the first of the pass."""
        log, commitlog = engine.timerlog, engine.commitlog
        self.engine, self.mine = engine, mine
        self.end = log.end  # all units of the pass stand before it
        self.offset = offset  # the next pass begins to look here
        self.units = _NO_UNITS
        self.at, self.is_last = 0, False
        self.source = ReadSegments(
            commitlog.folder, "commitlog", commitlog.segment_bytes, open_count_max=2
        )
        self.source.map_from(mine.start, 1)
        self._reader = ReadSegments(log.folder, "timerlog", log.segment_bytes, open_count_max=4)
        self._buffer = Units.room(units_at_once)
        self._scratch = np.zeros(64, np.uint8)

    @property
    def stop_at(self) -> int:
        """Where the cursor stands once the units that are at hand are done with."""
        if self.is_last:
            return self.mine.stop
        return int(self.units.message[-1]) + 1 if len(self.units) else self.mine.start

    def read_on(self) -> None:
        """Read the next units of the pass; `is_last` then says whether there are no more."""
        where = np.array([self.offset, 0], np.int64)
        self.units, self.at = _NO_UNITS, 0  # first: their place is written to
        units = read_units(
            self.engine, self._reader, self.end, -1, self._buffer, self._scratch, where
        )
        first, stop = np.searchsorted(units.message, (self.mine.start, self.mine.stop)).tolist()
        is_last = stop < len(units) or bool(where[1] == chain.WALK_DONE)
        offset = int(units.offset[stop]) if stop < len(units) else int(where[0])
        # In one piece: Python looks for signals at calls and jumps alone.
        units = units[first:stop]
        self.units, self.offset, self.is_last = units, offset, is_last

    def go_to(self, cursor: int) -> None:
        """Go to the first unit whose message is not before `cursor`."""
        left = self.units.message[self.at :]
        self.at += int(np.searchsorted(left, cursor))

    def unit_at(self) -> int:
        """Return the offset of the unit that is next."""
        if self.at < len(self.units):
            return int(self.units.offset[self.at])
        return self.offset
