"""Recovering the cancelled set: the targets of all deletes that still count."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine import Engine
from timerstore.services.level_timers import still_wait
from timerstore.services.levels import LEVEL_CANCELLED, LEVEL_HELD, LEVEL_HELD_FROM
from timerstore.timelog import scan
from timerstore.timelog.format import LEVEL_MARK, UNIT_DELETE
from timerstore.timelog.kernel import kernel
from timerstore.timelog.message import (
    GOOD,
    IDENTITY_HELD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    identify_target,
    read_message,
)
from timerstore.timelog.record import Words
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.wheel import chain, state
from timerstore.wheel.sets import ENTRY_WORDS, set_add_all, set_contains_all

CHUNK_ROWS: Final = 65_536
Flags = np.ndarray[Any, np.dtype[np.bool_]]


def live_units(engine: Engine) -> Any:
    """Yield the units of slots at or after R, in chunks, in the order of the log."""
    timerlog = engine.timerlog
    units = np.zeros((CHUNK_ROWS, chain.WALK_COLUMNS), np.int64)
    where = np.array([timerlog.start, 0], np.int64)
    while True:
        timerlog.trim()
        number = int(where[0]) // timerlog.segment_bytes
        for each in (number, number + 1):
            if each in timerlog.numbers:
                timerlog.ensure(each)
        count = chain.scan_units(
            timerlog.table,
            timerlog.end,
            engine.read_slot,
            engine.precision_ms,
            units,
            engine.world.scratch,
            where,
        )
        if where[1] == chain.WALK_DAMAGED:
            offset = int(where[0])
            raise CorruptStoreError("timerlog", offset, "this is not the unit that was written")
        if count:
            yield units[:count]
        if where[1] == chain.WALK_DONE:
            return


def find_cancelled(engine: Engine, level_deletes: list[Words]) -> None:
    """Put the targets of all live deletes into the cancelled set; before any service fires.

    `level_deletes`: what `level_deletes` found from L on. Of a delay level's targets only those are
    put in that their loops have not passed: these alone take their entries out again.
    """
    for units in live_units(engine):
        deletes = units[units[:, chain.WALK_MAGIC] & UNIT_DELETE != 0]
        if not len(deletes):
            continue
        high, low = np.zeros(len(deletes), np.int64), np.zeros(len(deletes), np.int64)
        messages = deletes[:, chain.WALK_MESSAGE].copy()
        done = 0
        while True:
            done = _targets(engine.world, messages, high, low, done)
            if done == len(messages):
                break
            engine.commitlog.trim()
            engine.commitlog.existing(int(messages[done]) // engine.commitlog.segment_bytes)
        known = (high != 0) | (low != 0)
        levels = np.flatnonzero(_of_level(high, low))
        known[levels] = still_wait(engine, low[levels] & ~LEVEL_MARK)
        _add(engine, high[known], low[known])
    _hold(engine, level_deletes)
    entries = engine.cancelled.reshape(-1, ENTRY_WORDS)
    of_level = _of_level(entries[:, 0], entries[:, 1]) | (entries[:, 0] == IDENTITY_HELD)
    engine.levels.words[LEVEL_CANCELLED] = int(of_level.sum())


def level_deletes(rows: Words) -> Words:
    """Return (target, offset) of each delete of a level's message among scanned rows."""
    of_level = _of_level(rows[:, scan.ROW_IDENTITY_HIGH], rows[:, scan.ROW_IDENTITY_LOW])
    found = rows[(rows[:, scan.ROW_IS_DELETE] == 1) & of_level]
    return found[:, (scan.ROW_IDENTITY_LOW, scan.ROW_OFFSET)].copy()


def _of_level(high: Words, low: Words) -> Flags:
    return (high == IDENTITY_OURS) & (low >= LEVEL_MARK)


def _add(engine: Engine, high: Words, low: Words) -> int:
    engine.reserve_cancelled(len(low))
    count = int(set_add_all(engine.cancelled, high, low, np.zeros(len(low), np.bool_)))
    engine.words[state.CANCELLED_COUNT] += count
    return count


def _hold(engine: Engine, level_deletes: list[Words]) -> None:
    """Put in the targets of those deletes whose unit R has passed; L stays at them."""
    found = np.concatenate([np.zeros((0, 2), np.int64), *level_deletes])
    found = found[still_wait(engine, found[:, 0] & ~LEVEL_MARK)]
    low, offsets = found[:, 0].copy(), found[:, 1]
    known = np.zeros(len(low), np.bool_)
    set_contains_all(engine.cancelled, np.full(len(low), IDENTITY_OURS), low, known)
    low = low[~known]
    if len(low):
        count = _add(engine, np.full(len(low), IDENTITY_HELD), low)
        engine.levels.words[LEVEL_HELD] = count
        engine.levels.words[LEVEL_HELD_FROM] = int(offsets[~known].min())


@kernel
def _targets(world: Any, messages: Any, high: Any, low: Any, start: int) -> int:
    """Read the targets of delete messages; return how many were read before one was unmapped."""
    for i in range(start, len(messages)):
        buf = segment_at(world.commitlog, messages[i])
        if len(buf) == 0:
            return i
        at = messages[i] % world.commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, world.found, False) == GOOD:
            identify_target(buf, world.found, world.words[state.STORE_TAG])
            high[i] = world.found[IDENTITY_HIGH]
            low[i] = world.found[IDENTITY_LOW]
    return len(messages)
