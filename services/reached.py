"""What a broker would reach, looked at before a store is handed to one.

It fires what the slots from R on lead to, but for what a delete beside it names. So the chains must
lead to each unit that counts once, to no message together with its copy, and to no cancelled timer
without its delete.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.errors import TimerStoreError
from timerstore.services.cut_chains import used_chains
from timerstore.services.engine import Engine
from timerstore.services.recover_deletes import live_units
from timerstore.services.slot_units import chain_units
from timerstore.services.world import World
from timerstore.timelog.format import UNIT_DELETE, UNIT_ROLL
from timerstore.timelog.jit.intrinsics import wrapping_multiply
from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.timelog.jit.record import Bytes, Rows, Words
from timerstore.timelog.message import (
    FOUND_WORDS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    ORIGIN,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    identify_target,
    identify_timer,
    java_hash,
    read_message,
)
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.wheel import chain
from timerstore.wheel.cancelled import cancelled_contains

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
    walked = [
        units[:, chain.WALK_OFFSET].copy() for units in chain_units(engine, used_chains(engine))
    ]
    reached = np.sort(np.concatenate([np.zeros(0, np.int64), *walked]))
    offsets, rows = [np.zeros(0, np.int64)], [np.zeros((0, _COLUMNS), np.int64)]
    for units in live_units(engine):
        offsets.append(units[:, chain.WALK_OFFSET].copy())
        rows.append(_read(engine, units))
    live, read = np.concatenate(offsets), np.concatenate(rows)
    if not np.array_equal(reached, live):
        strange = np.union1d(np.setxor1d(reached, live), reached[1:][reached[1:] == reached[:-1]])
        _refuse(f"of the units of the timer log {len(strange)} are not reached once", strange)
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
        f"A broker would not fire each timer once: {what}, first at {int(where[0])}. The store "
        "stays yours. Close it, run `timerstore validate`, and report what it finds."
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
    known, found = set(alike.tolist()), np.zeros(FOUND_WORDS, np.int64)
    for message in alike.tolist():
        while (message := _origin(engine, message, found)) >= engine.commitlog.start:
            if message in known:
                _refuse("a message waits beside its copy", np.array([message]))


def _origin(engine: Engine, message: int, found: Words) -> int:
    """Return of which message this one is a copy, or −1; sources stand before their copies."""
    file = engine.commitlog.readable(message // engine.commitlog.segment_bytes)
    status = _read_at(file.view, message % engine.commitlog.segment_bytes, found)
    return int(found[ORIGIN]) if status == GOOD and found[ORIGIN] < message else -1


@kernel_ahead
def _read_at(buf: Bytes, at: int, found: Words) -> int:
    return read_message(buf, at, found, False)


def _read(engine: Engine, units: Words) -> Words:
    log, done = engine.commitlog, 0
    rows, found = np.zeros((len(units), _COLUMNS), np.int64), np.zeros(FOUND_WORDS, np.int64)
    while True:
        with log.reading() as commitlog:
            done = _read_units(engine.world, commitlog, units, rows, found, done)
        if done == len(units):
            return rows
        log.trim()
        log.readable(int(units[done, chain.WALK_MESSAGE]) // log.segment_bytes)


@kernel_ahead
def _read_units(
    world: World, commitlog: SegmentTable, units: Rows, rows: Rows, found: Words, start: int
) -> int:
    """Read what units from `start` on lead to; return the first whose message is not mapped."""
    for i in range(start, len(units)):
        message, magic = units[i, chain.WALK_MESSAGE], units[i, chain.WALK_MAGIC]
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        row = rows[i]
        row[_MESSAGE] = message
        row[_SLOT] = units[i, chain.WALK_UNIT_MS] // world.settings.precision_ms
        row[_KIND] = _OTHER
        at = message % commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) != GOOD or found[REAL_TOPIC_BYTES] < 0:
            continue
        if magic & UNIT_DELETE == 0:
            identify_timer(buf, found, world.settings.store_tag)
            high, low = found[IDENTITY_HIGH], found[IDENTITY_LOW]
            row[_KIND] = _CANCELLED if cancelled_contains(world.cancelled, high, low) else _TIMER
        else:
            identify_target(buf, found, world.settings.store_tag)
            row[_KIND] = _OTHER if magic & UNIT_ROLL != 0 else _DELETE
        topic = java_hash(buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES])
        who = wrapping_multiply(found[IDENTITY_HIGH] ^ topic, 0x9E3779B97F4A7C1)
        row[_WHO] = wrapping_multiply(who ^ found[IDENTITY_LOW], 0x7F51AFD7ED558CC)
    return len(units)
