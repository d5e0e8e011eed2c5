"""Recovering the cancelled set: the targets of all deletes that still count."""

from __future__ import annotations

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.durable.cancelled_file import read_cancelled
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.level_timers import still_wait
from timerstore.services.looking.log_units import live_units
from timerstore.services.looking.read_pending import map_alone, read_timers, reading_all
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.derived import Stamp
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.wheel import judge as pending
from timerstore.wheel.cancelled import are_of_level


def find_cancelled(engine: Engine, level_deletes: list[Words]) -> None:
    """Put the targets of all live deletes into the cancelled set; before any service fires.

    `level_deletes`: what `level_deletes` found from the copies cursor on. Of a delay level's
    targets only those are put in that their loops have not passed, because only these take their
    entries out again.
    """
    reading = reading_all(engine)
    for units in live_units(engine):
        deletes = units[units.magic & fmt.UNIT_DELETE != 0]
        if not len(deletes):
            continue
        messages = deletes.message
        found = read_timers(engine, messages, reading, locate=map_alone)
        high, low = found.high, found.low
        known = found.verdict == pending.DELETE
        levels = np.flatnonzero(are_of_level(high, low))
        known[levels] = still_wait(engine, low[levels] & ~fmt.LEVEL_MARK)
        engine.cancelled.add(high[known], low[known])
    _hold(engine, level_deletes)


def take_cancelled(engine: Engine, stamp: Stamp, level_deletes: list[Words]) -> None:
    """Take the set that a clean close stored, else find it. O(set)."""
    stored = read_cancelled(engine, stamp)
    if stored is None:
        find_cancelled(engine, level_deletes)
        return
    engine.cancelled.add(*stored.T.copy())
    _hold(engine, level_deletes)


def level_deletes(rows: LoggedMessages) -> Words:
    """Return (target, offset) of each delete of a level's message among scanned rows."""
    of_level = are_of_level(rows.identity_high, rows.identity_low)
    found = rows[(rows.is_delete == 1) & of_level]
    return np.stack((found.identity_low, found.offset), axis=1)


def _hold(engine: Engine, level_deletes: list[Words]) -> None:
    """Put in the targets of deletes that were passed; the copies cursor stays at these deletes."""
    found = np.concatenate([np.zeros((0, 2), np.int64), *level_deletes])
    found = found[still_wait(engine, found[:, 0] & ~fmt.LEVEL_MARK)]
    engine.cancelled.add_held(found[:, 0].copy(), found[:, 1].copy())


def find_timer(engine: Engine, high: int, low: int) -> int:
    """Return the message of the timer with this identity that has a live unit, or −1. O(units)."""
    latest, reading = -1, reading_all(engine)
    for units in live_units(engine):
        messages = units.message[units.magic & fmt.UNIT_DELETE == 0]
        found = read_timers(engine, messages, reading, locate=map_alone)
        same = found.verdict == pending.PENDING
        same &= (found.high == high) & (found.low == low)
        latest = max(latest, int(messages[same].max(initial=-1)))
    return latest
