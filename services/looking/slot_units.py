"""Units of slots: their chains walked from the newest, with segments mapped on the way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.timelog.bytes.unit import NO_UNIT, Units
from timerstore.timelog.timerlog import CHUNK_ROWS, LANE_COUNT


def slot_units(
    engine: Engine,
    slot: int,
    start: int = NO_UNIT,
    chunk_rows: int = CHUNK_ROWS,
    hold: Hold | None = None,
) -> Iterator[Units]:
    """Yield a slot's units in chunks, newest first, from `start` on: see `chain_units`."""
    if start == NO_UNIT:
        used = engine.wheel.get(slot)
        start = NO_UNIT if used is None else used.last
    yield from chain_units(engine, np.array([[slot, start]], np.int64), chunk_rows, 1, hold)


def chain_units(
    engine: Engine,
    chains: Words,
    chunk_rows: int = CHUNK_ROWS,
    lane_count: int = LANE_COUNT,
    hold: Hold | None = None,
) -> Iterator[Units]:
    """Yield the units of chains in chunks, each chain newest first.

    `chains`: int64[n, 2], a slot with the unit to begin at. `lane_count`: so many chains are walked
    in turn. A chain ends if its next units were removed as done with, or are damaged. `hold`: under
    which the chains were captured, so that a unit which is gone may be needed still: LapsedError.
    A chunk is written over by the next.
    """
    log = engine.timerlog
    yield from log.chains(
        chains,
        engine.precision_ms,
        engine.hop_ms,
        chunk_rows,
        lane_count,
        (lambda offset: None) if hold is None else partial(hold.pass_missing, log),
    )
