"""One slot's units: its chain walked from the newest, with segments mapped on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from timerstore.services.engine import Engine
from timerstore.timelog.record import Words
from timerstore.wheel import chain
from timerstore.wheel.slots import NO_UNIT

CHUNK_ROWS: Final = 65_536


def slot_units(
    engine: Engine, slot: int, start: int = NO_UNIT, chunk_rows: int = CHUNK_ROWS
) -> Iterator[Words]:
    """Yield a slot's units in chunks, newest first, from `start` on: int64[n, WALK_COLUMNS].

    It ends where the units were removed since the slot was passed, or are damaged. A chunk is
    written over by the next.
    """
    units = np.empty((chunk_rows, chain.WALK_COLUMNS), np.int64)
    where, scratch = np.array([start, 0], np.int64), np.zeros(64, np.uint8)
    timerlog = engine.timerlog
    while True:
        count = chain.walk_chain(
            timerlog.table, engine.world.wheel, slot, engine.precision_ms, units, scratch, where
        )
        if count:
            yield units[:count]
        if where[1] == chain.WALK_UNMAPPED:
            if where[0] < timerlog.start:
                return
            timerlog.existing(int(where[0]) // timerlog.segment_bytes)
        elif where[1] != chain.WALK_FULL:
            return
