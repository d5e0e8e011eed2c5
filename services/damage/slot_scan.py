"""Slots whose chain is cut by damage: their sound units are looked for in the timer log, and fire.

Each unit leads to the one before it in its slot, so a damaged one hides all those. A claim that
comes to it leaves the rest of the chain, notes in `NearWheel.cut` below which offset units of the
slot were not met, and goes on with the next slot. The read cursor does not pass a slot that is cut,
and from there on no plain delete is handed on. A thread that no timer waits for then reads the
timer log, a copy of nothing that services lock, and claims what it finds, as dequeue-get with its
token.

The damaged unit stays as it is: the timer index is marked, and the next opening makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.acting import step_as
from timerstore.jit.intrinsics import touch_to_read
from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Words, exchange_word, publish
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import TIMERS
from timerstore.services.pipeline.dequeue_get import IS_ROLL, NO_DUE, claim_unit, hop
from timerstore.services.world import needs
from timerstore.services.world.state import DEQUEUE_GET, note_walked
from timerstore.services.world.world import World
from timerstore.timelog.bytes.unit import NO_UNIT, UNIT_GOOD, WRONG_UNIT_REASON
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.reading.reader import ReadSegments
from timerstore.timelog.reading.units import walk_units
from timerstore.wheel.near import OWED, slot_place

_HOLD_COUNT: Final = 64
"""Units that are claimed in one hold of near."""


class Cut(NamedTuple):
    """A slot whose chain is cut."""

    slot: int
    below: int  # its units before this offset were not met


class FoundUnits(NamedTuple):
    """Units of a slot that is cut."""

    slot: int
    offsets: Words  # the newest first


def leave_slot(engine: Engine, offset: int) -> None:
    """Leave the chain that leads to a damaged unit; answers a need of dequeue-get."""
    engine.damaged_units.append(offset)
    leave_chain(engine.world, offset)


def scan_slots(engine: Engine, waits: Callable[[], bool]) -> None:
    """Name damaged units that were met; claim what is sound of the slots that are cut. O(log).

    `waits` is called when dequeue-get has a need or no room, or somebody plays it; False: give up.
    What was claimed stays claimed, so this can be called again at any time.
    """
    cuts = _cuts(engine)  # first: the read cursor passes none of these before the mark is durable
    while engine.damaged_units:
        engine.damage.note("timerlog", engine.damaged_units.pop(), WRONG_UNIT_REASON)
        engine.wanted.add(TIMERS)
    for units in _find_units(engine, cuts) if cuts else ():
        done, cut = 0, engine.near.cut
        place = units.slot % len(cut)
        while cut[place]:
            before = done
            done = int(claim_found(engine.world, units, done, engine.clock.now_ms))
            engine.wake(DEQUEUE_GET)
            if done == before and cut[place] and not waits():
                return


def _cuts(engine: Engine) -> list[Cut]:
    """Return the slots that are cut; they stay so until this thread has claimed their units."""
    get, cut = engine.world.dequeue_get, engine.near.cut
    slots = np.arange(get.walked_slot, get.claimed_slot)
    slots = slots[cut[slots % len(cut)] != 0]
    return [Cut(slot, int(cut[slot % len(cut)])) for slot in slots.tolist()]


def _find_units(engine: Engine, cuts: list[Cut]) -> list[FoundUnits]:
    """Return what is sound of these slots; name what is not sound of the timer log."""
    log = engine.timerlog
    reader = ReadSegments(
        log.folder, "timerlog", log.segment_bytes, engine.disk.at, open_count_max=4
    )
    found = [[np.zeros(0, np.int64)] for _ in cuts]
    for part in walk_units(reader, log.start, max(cut.below for cut in cuts)):
        sound = part.status == UNIT_GOOD
        for offset in part.offset[~sound].tolist():
            engine.damage.note("timerlog", offset, WRONG_UNIT_REASON)
        slots = part.ms // engine.precision_ms
        for units, cut in zip(found, cuts, strict=True):
            units.append(part.offset[sound & (slots == cut.slot) & (part.offset < cut.below)])
    return [
        FoundUnits(cut.slot, np.concatenate(units)[::-1].copy())
        for cut, units in zip(cuts, found, strict=True)
    ]


@kernel_later
def leave_chain(world: World, offset: int) -> None:
    """Leave the rest of the chain that is claimed from `offset` on. Takes near. O(1)."""
    get, near = world.dequeue_get, world.near
    lock_acquire(world.near_lock)
    for slot in (get.owed_slot, get.claimed_slot - 1):
        place = slot_place(near, slot)
        if get.owed_slot <= slot < get.claimed_slot and near.owed[place] == offset:
            near.cut[place] = near.below[place]
            near.owed[place] = NO_UNIT
            note_walked(get, near)
    lock_release(world.near_lock)


@kernel_later
def claim_found(world: World, units: FoundUnits, start: int, now_ms: int) -> int:
    """Claim units of a slot that is cut from the place `start` on; return where it ended.

    Not at the end if there is a need or no room, or if another thread runs dequeue-get's step: call
    again. With the last one the slot is walked whole. Takes near, for rolls wheel too. O(units).
    """
    mine, near, done = world.dequeue_get.thread, world.near, start
    place = slot_place(near, units.slot)
    if exchange_word(mine, "token", 1) != 0:
        return start
    before = step_as(DEQUEUE_GET)
    exchange_word(mine, "step", mine.step + 1)
    stop = start
    while mine.need == needs.NOTHING and near.cut[place] != 0 and done == stop:
        stop = min(len(units.offsets), done + _HOLD_COUNT)
        for i in range(done, stop):  # without a lock their pages come into memory
            buf = segment_at(world.timerlog, units.offsets[i])
            if len(buf) > 0:
                touch_to_read(buf, units.offsets[i] % world.timerlog.segment_bytes)
        lock_acquire(world.near_lock)
        done = _claim_some(world, units, done, stop, now_ms)
        if done == len(units.offsets):
            near.cut[place] = 0
            note_walked(world.dequeue_get, near)
        lock_release(world.near_lock)
    publish(mine, "step", mine.step + 1)
    step_as(before)
    publish(mine, "token", 0)
    return done


@inlined
def _claim_some(world: World, units: FoundUnits, start: int, stop: int, now_ms: int) -> int:
    """Claim units from `start` on; return where it ended: before `stop` if it must wait."""
    mine, slot = world.dequeue_get.thread, units.slot
    for i in range(start, stop):
        offset = units.offsets[i]
        previous = claim_unit(world, slot, OWED, offset, now_ms)
        if previous == IS_ROLL:
            lock_acquire(world.wheel_lock)
            previous = hop(world, slot, offset, now_ms)
            lock_release(world.wheel_lock)
        if previous == NO_DUE:
            if mine.need != needs.DAMAGED_TIMERLOG:
                return i
            mine.need = needs.NOTHING  # it was damaged since it was found
        # Who begins anew does not claim it again.
        world.near.cut[slot_place(world.near, slot)] = offset
    return stop
