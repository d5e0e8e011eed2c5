"""Scrubbing: reads all of an open store again, slowly, so that damage is found before it is met.

One pass goes over the timer log, then the commit log with the queue entries of its messages; a step
reads STEP_BYTES, or STEP_MESSAGES. It only reads: what is damaged is named, and an index of which
that is a part is made anew by the next opening. Nothing is taken off any count here: the services
do that when they come upon it. It reads through maps of its own, and holds no lock. Between two
steps it holds no map either, so what retention removes gives its room back; it goes on behind that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import touch_to_read
from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Words, exchange_word, publish, step_as
from timerstore.services.damage.pass_by import queue_rows_of, wrong_entries
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, TIMERS, WRONG_ENTRY_REASON
from timerstore.services.looking.read_units import own_maps
from timerstore.services.pipeline.dequeue_get import IS_ROLL, NO_DUE, claim_unit, hop
from timerstore.services.world import needs
from timerstore.services.world.state import DEQUEUE_GET, note_walked
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT, UNIT_GOOD, WRONG_UNIT_REASON
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.units import walk_units
from timerstore.wheel.near import OWED, slot_place

STEP_BYTES: Final = 256 << 10
STEP_MESSAGES: Final = 512
"""Of the commit log; some 160 KiB of small ones."""
BYTES_PER_S: Final = 4 << 20
"""A gigabyte takes four minutes; a disk does hundreds of times as much."""
FIRST_PASS_S: Final = 60.0
"""From the opening, which has looked at much, to the first pass."""
PAUSE_S: Final = 3_600.0
"""Between the end of a pass and the next."""


class Scrub:
    """The pass over one engine's files. `step` is called by one thread at a time."""

    def __init__(
        self, engine: Engine, on_damage: Callable[[Damage], object] = lambda damage: None
    ) -> None:
        """Begin a first pass a while after opening, which has looked at much of it.

        `on_damage` is told what is damaged of the commit log, as often as a pass meets it.
        """
        self.engine, self.on_damage = engine, on_damage
        self.pass_count = 0
        self.message_count = 0
        """Sound messages that the pass has read."""
        self.file, self.offset = "", 0
        self._steps: Iterator[int] | None = None
        self._next_s = time.monotonic() + FIRST_PASS_S

    def run(self) -> None:
        """Do one step, if it is time for it."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        done = self.step()
        self._next_s = now_s + (done / BYTES_PER_S if done else PAUSE_S)

    def step(self) -> int:
        """Read on; return how many bytes, 0 if a pass has ended."""
        if self._steps is None:
            self._steps = self._pass()
        try:
            return next(self._steps)
        except StopIteration:
            self.pass_count += 1
        except (CorruptStoreError, OSError):
            pass  # begin again
        self._steps, self.file, self.offset = None, "", 0
        return 0

    def to_dict(self) -> dict[str, Any]:
        """Return the place of the pass, for `stats()`."""
        return {"pass_count": self.pass_count, "file": self.file, "offset": self.offset}

    def _pass(self) -> Iterator[int]:
        self.message_count = 0
        yield from self._read_log(self.engine.timerlog, self._read_units)
        yield from self._read_log(self.engine.commitlog, self._read_messages)

    def _read_log(self, log: SegmentedFile, read: Callable[[int], Iterator[int]]) -> Iterator[int]:
        """Read a log up to its end by now, with `read`, which goes on at `offset`."""
        self.file, self.offset = log.name, log.start
        stop = log.end  # before: what is mapped ahead of the end may be removed, and made again
        while self.offset < stop:
            try:
                return (yield from read(stop))
            except (CorruptStoreError, OSError):
                if log.start <= self.offset:
                    raise
                self.offset = log.start  # retention removed what was about to be read

    # --- the timer log

    def _read_units(self, stop: int) -> Iterator[int]:
        reader = own_maps(self.engine, self.engine.timerlog)
        for part in walk_units(reader, self.offset, stop, chunk=STEP_BYTES // fmt.UNIT_BYTES):
            damaged = part.offset[part.status != UNIT_GOOD]
            for offset in damaged.tolist():
                self._name(TIMERS, "timerlog", offset, WRONG_UNIT_REASON)
            if len(part):
                self.offset = int(part.offset[-1]) + fmt.UNIT_BYTES
            reader.unmap()
            yield STEP_BYTES

    # --- the commit log, with the queues

    def _read_messages(self, stop: int) -> Iterator[int]:
        engine, log = self.engine, self.engine.commitlog
        reader = engine.open_reader(shares=False)
        for item in read_past_damage(reader, self.offset, stop, chunk=STEP_MESSAGES):
            start = self.offset
            if isinstance(item, Damage):
                self.offset = item.resume
                if item.offset >= log.start:
                    engine.damage.note("commitlog", item.offset, item.told(stop))
                    self.on_damage(item)
            else:
                self.offset = int(item.offset[-1] + item.size[-1])
                self.message_count += len(item)
                self._compare(item)
            reader.commitlog.unmap()
            yield max(1, self.offset - start)

    def _compare(self, rows: scan.LoggedMessages) -> None:
        """Compare messages with their queue entries."""
        engine, every = self.engine, np.arange(len(rows))
        queue_rows = queue_rows_of(engine, scan.stored_in(rows))
        for row, index in wrong_entries(engine, rows, queue_rows, every):
            file, place = engine.queues.files[row].name, index * fmt.ENTRY_BYTES
            self._name(QUEUES, file, place, WRONG_ENTRY_REASON)

    def _name(self, index: str, file: str, offset: int, reason: str) -> None:
        """Name a place of an index, which the next opening makes anew."""
        self.engine.damage.note(file, offset, reason)
        if index not in self.engine.wanted.indexes:
            self.engine.wanted.add(index)


# --- Slots whose chain is cut by damage: their sound units are looked for in the timer log and fire
#
# Each unit leads to the one before it in its slot, so a damaged one hides all those. A claim that
# comes to it leaves the rest of the chain, notes in `NearWheel.cut` below which offset units of the
# slot were not met, and goes on with the next slot. The read cursor does not pass a slot that is
# cut, and from there on no plain delete is handed on. A thread that no timer waits for then reads
# the timer log, a copy of nothing that services lock, and claims what it finds, as dequeue-get with
# its token.
#
# The damaged unit stays as it is: the timer index is marked, and the next opening makes it anew.

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
    reader = own_maps(engine, log)
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
