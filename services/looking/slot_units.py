"""Units of slots: their chains walked from the newest, with segments mapped on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.timelog.bytes.unit import Units
from timerstore.wheel import chain
from timerstore.wheel.slots import NO_UNIT

CHUNK_ROWS: Final = 65_536
_ROWS_AT_FIRST: Final = 256
"""Most slots have few units: the first chunks are small."""
_LANE_COUNT: Final = 16


def slot_units(
    engine: Engine,
    slot: int,
    start: int = NO_UNIT,
    chunk_rows: int = CHUNK_ROWS,
    hold: Hold | None = None,
) -> Iterator[Units]:
    """Yield a slot's units in chunks, newest first, from `start` on: see `chain_units`."""
    if start == NO_UNIT:
        slots = engine.wheel.slots
        used = slots[slot % len(slots)]
        start = int(used["last"]) if int(used["time"]) == slot else NO_UNIT
    yield from chain_units(engine, np.array([[slot, start]], np.int64), chunk_rows, 1, hold)


def chain_units(
    engine: Engine,
    chains: Words,
    chunk_rows: int = CHUNK_ROWS,
    lane_count: int = _LANE_COUNT,
    hold: Hold | None = None,
) -> Iterator[Units]:
    """Yield the units of chains in chunks, each chain newest first.

    `chains`: int64[n, 2], a slot with the unit to begin at. `lane_count`: so many chains are walked
    in turn. A chain ends if its next units were removed as done with, or are damaged. `hold`: under
    which the chains were captured, so that a unit which is gone may be needed still: LapsedError.
    A chunk is written over by the next.
    """
    units = Units.room(min(chunk_rows, _ROWS_AT_FIRST))
    lanes = np.full((lane_count, 2), NO_UNIT, np.int64)
    where, timerlog = np.zeros(3, np.int64), engine.timerlog
    while True:
        with timerlog.reading() as table:
            count = chain.walk_chains(
                table, chains, engine.precision_ms, engine.hop_ms, units, lanes, where
            )
        if count:
            yield units[:count]
        if where[1] == chain.WALK_DONE:
            return
        offset = int(lanes[where[2], 1])
        if where[1] == chain.WALK_UNMAPPED:
            try:
                timerlog.existing(offset // timerlog.segment_bytes)
                continue
            except CorruptStoreError:
                if offset >= timerlog.start:
                    raise
                if hold is not None:
                    hold.pass_missing(timerlog, offset)
        if where[1] == chain.WALK_FULL:
            if len(units) < chunk_rows:
                units = Units.room(min(chunk_rows, 8 * len(units)))
        else:
            lanes[where[2], 1] = NO_UNIT
