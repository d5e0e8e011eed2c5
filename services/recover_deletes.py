"""Recovering the cancelled set: the targets of all deletes that still count."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine import Engine
from timerstore.services.floor import read_floor
from timerstore.services.level_timers import still_wait
from timerstore.services.world import World
from timerstore.timelog import scan
from timerstore.timelog.format import LEVEL_MARK, UNIT_DELETE
from timerstore.timelog.jit.kernel import kernel_later
from timerstore.timelog.jit.record import Flags, Words
from timerstore.timelog.message import (
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    identify_target,
    identify_timer,
    read_message,
)
from timerstore.timelog.segmenttable import SEGMENT_BYTES, segment_at
from timerstore.wheel import chain

CHUNK_ROWS: Final = 65_536


def live_units(engine: Engine) -> Any:
    """Yield the units of slots at or after R that are not superseded, in the order of the log.

    In chunks, which the next one overwrites.
    """
    timerlog, floor = engine.timerlog, read_floor(engine.world.cleaning)
    units = np.zeros((CHUNK_ROWS, chain.WALK_COLUMNS), np.int64)
    where = np.array([timerlog.start, 0], np.int64)
    while True:
        timerlog.trim()
        before = int(where[0])
        number = before // timerlog.segment_bytes
        for each in (number, number + 1):
            if each in timerlog.numbers:
                timerlog.ensure(each)
        with timerlog.reading() as table:
            count = chain.scan_units(
                table,
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
            slots = units[:count, chain.WALK_UNIT_MS] // engine.precision_ms
            kept = ~floor.superseded(units[:count, chain.WALK_MESSAGE], slots)
            yield units[:count] if kept.all() else units[:count][kept]
        if where[1] == chain.WALK_DONE:
            return
        if where[1] == chain.WALK_UNMAPPED and where[0] == before:  # what is there was mapped
            offset = (number + (number in timerlog.numbers)) * timerlog.segment_bytes
            raise CorruptStoreError("timerlog", offset, "this segment is missing")


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
            done = _identities(engine.world, messages, high, low, done, True)
            if done == len(messages):
                break
            engine.commitlog.trim()
            engine.commitlog.readable(int(messages[done]) // engine.commitlog.segment_bytes)
        known = (high != 0) | (low != 0)
        levels = np.flatnonzero(_of_level(high, low))
        known[levels] = still_wait(engine, low[levels] & ~LEVEL_MARK)
        engine.cancelled.add(high[known], low[known])
    _hold(engine, level_deletes)


def level_deletes(rows: Words) -> Words:
    """Return (target, offset) of each delete of a level's message among scanned rows."""
    of_level = _of_level(rows[:, scan.ROW_IDENTITY_HIGH], rows[:, scan.ROW_IDENTITY_LOW])
    found = rows[(rows[:, scan.ROW_IS_DELETE] == 1) & of_level]
    return found[:, (scan.ROW_IDENTITY_LOW, scan.ROW_OFFSET)].copy()


def _of_level(high: Words, low: Words) -> Flags:
    return (high == IDENTITY_OURS) & (low >= LEVEL_MARK)


def _hold(engine: Engine, level_deletes: list[Words]) -> None:
    """Put in the targets of those deletes whose unit R has passed; L stays at them."""
    found = np.concatenate([np.zeros((0, 2), np.int64), *level_deletes])
    found = found[still_wait(engine, found[:, 0] & ~LEVEL_MARK)]
    engine.cancelled.add_held(found[:, 0].copy(), found[:, 1].copy())


def find_timer(engine: Engine, high: int, low: int) -> int:
    """Return the message of the timer with this identity that has a live unit, or −1. O(units)."""
    latest = -1
    for units in live_units(engine):
        messages = units[units[:, chain.WALK_MAGIC] & UNIT_DELETE == 0, chain.WALK_MESSAGE].copy()
        found, done = np.zeros((2, len(messages)), np.int64), 0
        while True:
            done = _identities(engine.world, messages, found[0], found[1], done, False)
            if done == len(messages):
                break
            engine.commitlog.trim()
            engine.commitlog.readable(int(messages[done]) // engine.commitlog.segment_bytes)
        same = messages[(found[0] == high) & (found[1] == low)]
        latest = max(latest, int(same.max(initial=-1)))
    return latest


@kernel_later
def _identities(
    world: World, messages: Words, high: Words, low: Words, start: int, of_targets: bool
) -> int:
    """Read who timers are, or the targets of deletes; return how many before one was unmapped."""
    for i in range(start, len(messages)):
        buf = segment_at(world.commitlog, messages[i])
        if len(buf) == 0:
            return i
        at = messages[i] % world.commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, world.found, True) == GOOD:
            if of_targets:
                identify_target(buf, world.found, world.settings.store_tag)
            else:
                identify_timer(buf, world.found, world.settings.store_tag)
            high[i] = world.found[IDENTITY_HIGH]
            low[i] = world.found[IDENTITY_LOW]
    return len(messages)
