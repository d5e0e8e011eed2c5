"""What a broker would reach, looked at before a store is handed to one.

It fires what the slots from R on lead to, except what a delete beside it names. So the chains must
lead to each unit that counts once, to no message together with its copy, and to no cancelled timer
without its delete.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.errors import TimerStoreError
from timerstore.jit.record import Words
from timerstore.services.broker.cut_chains import used_chains
from timerstore.services.broker.full_files import misleading_units
from timerstore.services.engine.engine import Engine, read_at
from timerstore.services.looking.log_units import live_units
from timerstore.services.looking.read_pending import map_alone, read_timers, reading_for_broker
from timerstore.services.looking.slot_units import chain_units
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.bytes.unit import Units
from timerstore.wheel import judge as pending

Flags = np.ndarray[Any, np.dtype[np.bool_]]

# Columns of what is read of a unit and its message.
_WHO: Final = 0  # what tells a timer from others; a delete has its target's
_MESSAGE: Final = 1
_SLOT: Final = 2
_KIND: Final = 3
_COLUMNS: Final = 4
_TIMER: Final = 0
_CANCELLED: Final = 1
_DELETE: Final = 2  # one that a broker looks at beside timers
_OTHER: Final = 3


def check_reached(engine: Engine) -> None:
    """Check that a broker fires each pending timer once, and nothing else. O(units).

    Nothing else runs. Takes some 40 bytes of memory for each unit. Raises TimerStoreError.
    """
    walked = [units.offset.copy() for units in chain_units(engine, used_chains(engine))]
    reached = np.sort(np.concatenate([np.zeros(0, np.int64), *walked]))
    offsets, rows = [np.zeros(0, np.int64)], [np.zeros((0, _COLUMNS), np.int64)]
    for units in live_units(engine):
        offsets.append(units.offset.copy())
        rows.append(_read(engine, units))
    live, read = np.concatenate(offsets), np.concatenate(rows)
    if not np.array_equal(reached, live):
        strange = np.union1d(np.setxor1d(reached, live), reached[1:][reached[1:] == reached[:-1]])
        _refuse(f"{len(strange)} units of the timer log are not reached exactly once", strange)
    misled = np.concatenate(misleading_units(engine))
    if len(misled):
        _refuse(f"{len(misled)} files of the timer log would be removed too soon", misled)
    is_timer = read[:, _KIND] <= _CANCELLED
    timers = read[is_timer]
    order = np.argsort(timers[:, _MESSAGE])
    twice = np.diff(timers[order, _MESSAGE]) == 0
    if twice.any():
        where = timers[order[1:][twice], _MESSAGE]
        _refuse(f"{len(where)} messages have several units", where)
    _check_copies(engine, timers)
    beside = read[read[:, _KIND] == _DELETE]
    cancelled = timers[timers[:, _KIND] == _CANCELLED]
    fired = cancelled[~np.isin(_in_slot(cancelled), _in_slot(beside))]
    if len(fired):
        _refuse(f"{len(fired)} cancelled timers have no delete beside them", fired[:, _MESSAGE])


def _refuse(what: str, where: Words) -> None:
    raise TimerStoreError(
        "The store was not handed over, because a broker would not fire each timer once: "
        f"{what}, the first at {int(where[0])}. Close the store, run `timerstore validate`, and "
        "report what it finds."
    )


def _in_slot(rows: Words) -> Words:
    """Return what tells timers in their slots from each other."""
    mixed: Words = rows[:, _WHO] ^ (rows[:, _SLOT] * np.int64(0x9E3779B97F4A7C1))
    return mixed


def _check_copies(engine: Engine, timers: Words) -> None:
    """Check that no timer waits beside one that it is a copy of."""
    order = np.argsort(timers[:, _WHO], kind="stable")
    who = timers[order, _WHO]
    same = np.zeros(len(who), np.bool_)
    same[1:] = who[1:] == who[:-1]
    same[:-1] |= same[1:]
    alike = timers[order[same], _MESSAGE]  # few: who sends a message back twice has such
    known, found = set(alike.tolist()), MessageParts()
    for message in alike.tolist():
        while (message := _origin(engine, message, found)) >= engine.commitlog.start:
            if message in known:
                _refuse("a message waits beside its copy", np.array([message]))


def _origin(engine: Engine, message: int, found: MessageParts) -> int:
    """Return of which message this one is a copy, or −1; sources stand before their copies."""
    file = engine.commitlog.readable(message // engine.commitlog.segment_bytes)
    status = read_at(file.view, message % engine.commitlog.segment_bytes, found)
    return found.origin if status == GOOD and found.origin < message else -1


def _read(engine: Engine, units: Units) -> Words:
    """Read what units lead to: int64[n, _COLUMNS]."""
    messages, magic = units.message, units.magic
    reading = reading_for_broker(engine)
    found = read_timers(engine, messages, reading, locate=map_alone)
    verdict, high, low = found.verdict, found.high, found.low
    is_timer = (verdict == pending.PENDING) & (magic & fmt.UNIT_DELETE == 0)
    is_plain = magic & (fmt.UNIT_DELETE | fmt.UNIT_ROLL) == fmt.UNIT_DELETE
    rows = np.full((len(units), _COLUMNS), _OTHER, np.int64)
    rows[is_timer, _KIND] = np.where(
        engine.cancelled.contains(high[is_timer], low[is_timer]), _CANCELLED, _TIMER
    )
    rows[is_plain & (verdict == pending.DELETE), _KIND] = _DELETE
    rows[:, _MESSAGE] = messages
    rows[:, _SLOT] = units.ms // engine.precision_ms
    who = (high ^ found.topic_hash) * np.int64(0x9E3779B97F4A7C1)
    rows[:, _WHO] = (who ^ low) * np.int64(0x7F51AFD7ED558CC)
    return rows
