"""The units of an open store in the order of the timer log; what is damaged there is an error.

Behind it those of slots, newest first. Code that may go on past damage uses
`timelog/reading/units.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.world.floor import read_floor
from timerstore.timelog.bytes.unit import NO_UNIT, WRONG_UNIT_REASON, Units
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.reading.reader import FEW_MAPS, ReadSegments
from timerstore.timelog.timerlog import (
    CHUNK_ROWS,
    LANE_COUNT,
    WALK_DAMAGED,
    WALK_DONE,
    WALK_UNMAPPED,
    scan_units,
)

SCAN_UNITS: Final = 16_384


def unit_reader(engine: Engine) -> ReadSegments | PinnedLog:
    """Return what reads units through maps of its own: those of the services stay as they are.

    If nothing is written, units that recovery linked are only in the engine's maps. O(segments).
    """
    return own_maps(engine, engine.timerlog) if engine.disk.writes else PinnedLog(engine.timerlog)


def own_maps(engine: Engine, log: SegmentedFile) -> ReadSegments:
    """Return a log's files, of which FEW_MAPS are mapped at most. O(segments)."""
    return ReadSegments(
        log.folder, log.name, log.segment_bytes, engine.disk.at, open_count_max=FEW_MAPS
    )


def all_units(
    engine: Engine,
    start: int,
    stop: int,
    from_slot: int = -1,
    reader: ReadSegments | PinnedLog | None = None,
) -> Iterator[Units]:
    """Yield the units in [start, stop) of slots from `from_slot` on; overwritten by the next.

    `reader`: who reads several ranges makes one for all of them.
    """
    yield from _units(engine, reader or unit_reader(engine), start, stop, from_slot)


def live_units(engine: Engine) -> Iterator[Units]:
    """Yield the units from the read cursor on that are not superseded; overwritten by the next.

    No service runs: they are read through the engine's own maps.
    """
    log, floor = engine.timerlog, read_floor(engine.world)
    for units in _units(engine, PinnedLog(log), log.start, log.end, engine.read_slot):
        kept = ~floor.superseded(units)
        if kept.any():
            yield units if kept.all() else units[kept]


def _units(
    engine: Engine, reader: ReadSegments | PinnedLog, start: int, stop: int, from_slot: int
) -> Iterator[Units]:
    units = Units.room(SCAN_UNITS)
    where = np.array([start, 0], np.int64)
    while where[0] < stop:
        part = read_units(engine, reader, stop, from_slot, units, where)
        if len(part):
            yield part
        if where[1] == WALK_DONE:
            return


def read_units(
    engine: Engine,
    reader: ReadSegments | PinnedLog,
    stop: int,
    from_slot: int,
    units: Units,
    where: Words,
) -> Units:
    """Read units before `stop` as `scan_units` does, mapped on the way; damage is an error.

    Segments that are removed meanwhile are skipped: nobody needs their units.
    """
    log = engine.timerlog
    while True:
        before = where[0] = max(int(where[0]), log.start)
        try:
            is_there = reader.map_from(before)
        except FileNotFoundError:
            is_there = False
        if is_there or before >= log.start:
            break
    count = scan_units(
        reader.table, stop, from_slot, engine.precision_ms, engine.hop_ms, units, where
    )
    if where[1] == WALK_DAMAGED:
        raise CorruptStoreError("timerlog", int(where[0]), WRONG_UNIT_REASON)
    if where[1] == WALK_UNMAPPED and where[0] == before:
        number = int(before) // log.segment_bytes
        offset = (number + (number in log.numbers)) * log.segment_bytes
        raise CorruptStoreError("timerlog", offset, "this segment is missing")
    return units[:count]


# --- Units of slots: their chains walked from the newest, with segments mapped on the way.


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
