"""Where pending timers of an open store stood at an instant: messages, not yet read.

`wheel/judge.py` says what of them is pending. Each raises LapsedError if what is to be read is gone
because the instant's hold has lapsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import get_i32, get_i64
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Flags, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.looking.instant import Instant, Snapshot
from timerstore.services.looking.read_units import all_units, chain_units, slot_units
from timerstore.services.world.state import LevelTable
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts, read_message
from timerstore.timelog.bytes.unit import NO_UNIT, NOT_SAID, Units
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.wheel.judge import IN_MESSAGE

# --- What waits in the delay levels.

_CHUNK: Final = 65_536


def read_held(engine: Engine, row: int, start: int, stop: int, hold: Hold) -> fmt.Entries:
    """Return the entries of a queue in [start, stop) that were captured under a hold.

    Without those that were done with before. Raises LapsedError if others may be missing.
    """
    entries = read_kept(engine, row, start, stop)
    if len(entries) < stop - start:
        hold.check()
    return entries


def read_kept(engine: Engine, row: int, start: int, stop: int) -> fmt.Entries:
    """Return the entries of a queue in [start, stop) whose messages are kept.

    Retention may remove their segments meanwhile, with what was fired or delivered.
    """
    queues = engine.queues
    while True:
        first = max(start, queues.first_kept(row, engine.commitlog.start))
        try:
            return queues.read(row, first, max(0, stop - first))
        except CorruptStoreError:
            if queues.first_index(row) <= first:
                raise


@kernel_ahead
def _still_wait(
    commitlog: SegmentTable, levels: LevelTable, sources: Words, waits: Flags, start: int
) -> int:
    """Tell which messages their loops have not passed, from `start` on; `waits`: bool[n].

    Return the first whose segment is not mapped, or n.
    """
    for i in range(start, len(sources)):
        buf = segment_at(commitlog, sources[i])
        if len(buf) == 0:
            return i
        at = sources[i] % commitlog.segment_bytes
        level = get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT)
        waits[i] = False
        if level >= 0 and level < levels.count:
            waits[i] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT) >= levels.offset[level]
    return len(sources)


def still_wait(engine: Engine, sources: Words) -> Flags:
    """Tell which messages of levels their loops have not passed: bool[n]; before services run."""
    log = engine.commitlog
    waits = (sources >= log.start) & (sources < log.end)
    kept = np.flatnonzero(waits)
    found, done = np.zeros(len(kept), np.bool_), 0
    while True:
        with log.reading() as table:
            done = _still_wait(table, engine.levels, sources[kept], found, done)
        if done == len(kept):
            break
        log.existing(int(sources[kept[done]]) // log.segment_bytes)
    waits[kept] = found
    return waits


_NOTHING: Final = np.zeros(0, np.int64)


def unlinked_messages(engine: Engine, at: Snapshot) -> Words:
    """Return the timer messages that had no unit yet."""
    if at.queue_end <= at.queue_start:
        return _NOTHING
    entries = read_held(engine, 0, at.queue_start, at.queue_end, at.hold)
    return entries["offset"].astype(np.int64)


def slot_messages(engine: Engine, at: Snapshot, slot: int) -> Words:
    """Return the messages of a slot's units that were not claimed, as the snapshot saw them."""
    start = NO_UNIT
    if slot < at.claimed:
        owed = at.owed[at.owed[:, 0] == slot, 1]
        if not len(owed):
            return _NOTHING
        start = int(owed[0])
    units_of = slot_units(engine, slot, start, hold=at.hold)
    parts = [units.message[seen_units(engine, units, at)] for units in units_of]
    return np.concatenate([_NOTHING, *parts])


def seen_units(engine: Engine, units: Units, at: Snapshot) -> Flags:
    """Tell which units the snapshot saw, if they were not superseded."""
    if len(at.floor.passes):
        say_leads(engine, units, at.hold)
    seen: Flags = units.offset < at.timerlog_end
    return seen & ~at.floor.superseded(units)


def level_messages(engine: Engine, instant: Instant) -> tuple[Words, Words]:
    """Return the messages that waited in the delay levels, with their due times. O(waiting)."""
    messages, due_ms = [_NOTHING], [_NOTHING]
    ranges = zip(instant.level_start.tolist(), instant.level_stop.tolist(), strict=True)
    for level, (start, stop) in enumerate(ranges):
        row = int(engine.levels.row[level])
        for index in range(start, stop, _CHUNK) if row >= 0 else ():
            end = min(index + _CHUNK, stop)
            entries = read_held(engine, row, index, end, instant.snapshot.hold)
            entries = entries[entries["size"] != fmt.QUEUE_BLANK_SIZE]
            messages.append(entries["offset"].astype(np.int64))
            due_ms.append(entries["tags_code"].astype(np.int64))
    return np.concatenate(messages), np.concatenate(due_ms)


@kernel_ahead
def _say_leads(
    commitlog: SegmentTable, units: Units, precision_ms: int, found: MessageParts, start: int
) -> int:
    """Write the slots of units from `start` on that do not say them; return how far it came.

    `found`: scratch. It stops at a message whose segment is not mapped. O(n).
    """
    for i in range(start, len(units.offset)):
        message = units.message[i]
        if units.leads_to[i] != NOT_SAID or message < 0 or message >= commitlog.end:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        at = message % commitlog.segment_bytes
        if read_message(buf, at, message, found, False) == GOOD and found.due_ms >= 0:
            units.leads_to[i] = found.due_ms // precision_ms
    return len(units.offset)


def say_leads(engine: Engine, units: Units, hold: Hold | None = None) -> None:
    """Write the slots of units that do not say them; what cannot be read stays NOT_SAID.

    O(units), and a message read for each of those: a broker's rolls, above all.
    """
    if not (units.leads_to == NOT_SAID).any():
        return
    log, found, at = engine.commitlog, MessageParts(), 0
    while at < len(units):
        with log.reading() as table:
            at = int(_say_leads(table, units, engine.precision_ms, found, at))
        if at < len(units):
            try:
                log.existing(int(units.message[at]) // log.segment_bytes)
            except CorruptStoreError:  # removed just now, or lost
                if hold is not None and units.message[at] >= hold.commitlog:
                    hold.check()
                at += 1


# --- Where pending timers stand, in the order of due time: found slot by slot.
#
# A listing asks for some places at a time, so that it reads what it returns and little more. What
# waits elsewhere than in the wheel is known when it begins, with its due time: the claimed slots,
# in memory, and the delay levels, by the entries of their queues.
#
# A unit of a slot is due in it, or a number of hops later: rolls stand on the grid of their timer.
# So what is due from some slot on is found in the order in which the slots, or the next of their
# grids from there on, come. Each slot's units that are due later than the slot are kept, 17 bytes
# each, until their turn has come. If that are too many, those due last are forgotten, and found by
# another pass through the slots. A broker's rolls stand on no grid: their slots are read when it is
# their own turn, or at the beginning.

NEVER_MS: Final = 1 << 62
_SLOTS_AT_FIRST: Final = 1
_SLOTS_AT_ONCE_MAX: Final = 4_096
_RIPE_AT_FIRST: Final = 65_536
_KNOWN_MAX: Final = 1 << 22
"""Places that are kept, 71 MB; of those due at the same time all."""


# What is known of a place's due time.
AT_THE_EARLIEST: Final = 0
IN_A_SLOT: Final = 1  # or in the next one: TIMER_OUT_MS, to which hops lead, may be a slot earlier
EXACT: Final = 2
OF_LEVEL: Final = 3  # exact too: its delay level's entry says it, and the message does not


class Places(NamedTuple):
    """Places at which timers may be pending, one row each."""

    due_ms: Words  # or the earliest that it can be
    message: Words  # commit log offset
    known: Words  # int8[n]: what is known of the due time, see the constants above

    @property
    def in_level(self) -> Flags:
        """Whether it waits in a delay level."""
        return self.known == OF_LEVEL

    def choose(self, which: Flags | Words | slice) -> Places:
        """Return some rows."""
        return Places(*(column[which] for column in self))

    def in_log_order(self) -> tuple[Words, Words]:
        """Return the messages in the order of the log, and the due time of each, as levels say it.

        Of what is in no level IN_MESSAGE.
        """
        order = np.argsort(self.message)
        level_due_ms = np.where(self.in_level, self.due_ms, IN_MESSAGE)
        return self.message[order], level_due_ms[order]

    def last_ms(self, precision_ms: int) -> Words:
        """Return the latest that each can be due."""
        latest_ms = np.where(self.known == IN_A_SLOT, self.due_ms + 2 * precision_ms, self.due_ms)
        return np.where(self.known == AT_THE_EARLIEST, NEVER_MS, latest_ms)


NOWHERE: Final = Places(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8))


def join_places(parts: Iterable[Places]) -> Places:
    """Return all rows of some tables."""
    return Places(*map(np.concatenate, zip(NOWHERE, *parts, strict=True)))


class DueOrder:
    """The places of one instant that may be due in [start_ms, end_ms)."""

    def __init__(
        self, engine: Engine, instant: Instant, start_ms: int = 0, end_ms: int = NEVER_MS
    ) -> None:
        """Take what is known without the wheel. O(near wheel + without a unit + in levels)."""
        self._engine, self._instant = engine, instant
        self._start_ms, self._end_ms = start_ms, end_ms
        self._parts: list[Places] = []  # each in order
        self._known_count, self._known_max = 0, _KNOWN_MAX  # of places in these
        self._ripe, self._ripe_at_once = NOWHERE, _RIPE_AT_FIRST
        self.unit_count = 0
        """Units that were read so far."""
        unlinked = unlinked_messages(engine, instant.snapshot)
        earliest = np.int8(AT_THE_EARLIEST)
        self._elsewhere = [
            (instant.messages, instant.due_ms, earliest),
            (unlinked, np.zeros(len(unlinked), np.int64), earliest),
            (*level_messages(engine, instant), np.int8(OF_LEVEL)),
        ]
        self._begin_pass(-NEVER_MS)

    def _begin_pass(self, from_ms: int) -> None:
        """Find what is due from a time on, which earlier passes did not find. O(used slots)."""
        self._from_ms, self._until_ms = from_ms, self._end_ms
        slots, hop = self._instant.slots, self._engine.world.settings.hop_slots
        # A due time may be in the slot behind the one that its unit leads to.
        first = max(from_ms, self._start_ms) // self._engine.precision_ms - 2
        turns = slots[:, 0]
        if (turns[:1] < first).any():  # else they are in order
            turns = turns + np.maximum(0, -(-(first - turns) // hop)) * hop
            if from_ms < 0:
                is_off_grid = slots[:, 0] < self._engine.wheel.off_grid_until
                turns[is_off_grid] = slots[is_off_grid, 0]
            order = np.argsort(turns, kind="stable")
            slots, turns = slots[order], turns[order]
        self._slots, self._turns = slots, turns
        self._slot, self._slots_at_once = 0, _SLOTS_AT_FIRST
        for each in self._elsewhere:
            self._add(self._wanted(*each))

    def next(self, count: int) -> tuple[Places, tuple[int, int]]:
        """Return up to `count` places, and (due time, message) before which none comes later.

        None at all are returned behind the last one, with (NEVER_MS, −1).
        """
        while not len(self._ripe.message):
            unread_ms = self._unread_ms()
            # A pass's first slot may hold what was overdue when it was linked.
            is_first = self._slot == 0 < len(self._slots)
            if is_first or (unread_ms < self._until_ms and not self._is_known(unread_ms)):
                self._read_slots()
            elif self._parts:
                self._ripen(min(unread_ms, self._until_ms))
            elif self._until_ms < self._end_ms:
                self._begin_pass(self._until_ms)
            else:
                return NOWHERE, (NEVER_MS, -1)
        found, self._ripe = self._ripe.choose(slice(count)), self._ripe.choose(slice(count, None))
        if len(self._ripe.message):
            return found, (int(self._ripe.due_ms[0]), int(self._ripe.message[0]))
        until_ms = self._unread_ms()
        if self._until_ms < self._end_ms:
            until_ms = min(until_ms, self._until_ms)
        return found, (min([until_ms, *(int(part.due_ms[0]) for part in self._parts)]), -1)

    def all(self) -> Iterator[Places]:
        """Yield all places in no order, in place of `next`. O(units of the slots before `end_ms`).

        It keeps none.
        """
        yield from self._parts
        first_ms, slots = (self._turns - 1) * self._engine.precision_ms, self._slots
        chains = slots[: max(1, np.searchsorted(first_ms, self._end_ms))]
        if 2 * len(chains) > len(slots):  # in the order of the log it takes a quarter of the time
            yield from self._places_of(self._logged_units())
            chains = slots[slots[:, 0] < self._instant.snapshot.claimed]
        yield from self._places(chains)

    def _logged_units(self) -> Iterator[Units]:
        """Yield the units of the slots that were not claimed, in the order of the timer log.

        Behind damage they are those that chains lead to.
        """
        engine, at, stop = self._engine, self._instant.snapshot, 0
        try:
            for units in all_units(engine, engine.timerlog.start, at.timerlog_end, at.claimed):
                stop = int(units.offset[-1]) + 1
                yield units
        except CorruptStoreError:
            slots = self._slots[self._slots[:, 0] >= at.claimed]
            for units in chain_units(engine, slots, hold=at.hold):
                yield units[units.offset >= stop]
        if engine.timerlog.start > at.hold.timerlog:
            at.hold.check()  # what was removed may have been read before, or not

    def _is_known(self, unread_ms: int) -> bool:
        """Tell whether anything that is known is due before all that is not."""
        return any(part.due_ms[0] < unread_ms for part in self._parts)

    def _unread_ms(self) -> int:
        """Return the time before which nothing is due that this pass has not read.

        One slot less than where the next one begins: a broker's clock rounds otherwise.
        """
        if self._slot == len(self._slots):
            return NEVER_MS
        return int(self._turns[self._slot] - 1) * self._engine.precision_ms

    def _ripen(self, until_ms: int) -> None:
        """Take what is known, and due before a time, in order; behind the last slot a part of it.

        A few more each time, so that all are sorted in O(n log n), and the first of many in O(n).
        """
        if self._slot == len(self._slots) and (limit_ms := self._kth_ms(self._ripe_at_once)):
            until_ms = min(until_ms, limit_ms)
            self._ripe_at_once *= 4
        taken, self._parts = self._split(until_ms)
        ripe = join_places(taken)
        self._ripe = ripe.choose(np.lexsort((ripe.message, ripe.due_ms)))
        self._known_count -= len(ripe.message)

    def _kth_ms(self, count: int) -> int:
        """Return a time before which more than `count` known places are due, if there are more."""
        if self._known_count <= count:
            return 0
        due_ms = np.concatenate([part.due_ms for part in self._parts])
        return int(np.partition(due_ms, count)[count]) + 1

    def _split(self, until_ms: int) -> tuple[list[Places], list[Places]]:
        """Return what is known and due before a time, and what is due later."""
        early, late = list[Places](), list[Places]()
        for part in self._parts:
            count = int(np.searchsorted(part.due_ms, until_ms))
            early += [part.choose(slice(count))] if count else []
            late += [part.choose(slice(count, None))] if count < len(part.message) else []
        return early, late

    def _read_slots(self) -> None:
        """Read the next slots, more each time."""
        start, self._slot = self._slot, self._slot + self._slots_at_once
        self._slots_at_once = min(2 * self._slots_at_once, _SLOTS_AT_ONCE_MAX)
        self._slot = min(self._slot, len(self._slots))
        for places in self._places(self._slots[start : self._slot]):
            self._add(places)
            self._forget()

    def _places(self, chains: Words) -> Iterator[Places]:
        """Yield the places of some slots that are wanted."""
        yield from self._places_of(
            chain_units(self._engine, chains, hold=self._instant.snapshot.hold)
        )

    def _places_of(self, read: Iterable[Units]) -> Iterator[Places]:
        engine, at = self._engine, self._instant.snapshot
        precision_ms = engine.precision_ms
        for units in read:
            self.unit_count += len(units)
            kept = seen_units(engine, units, at) & (units.magic & fmt.UNIT_DELETE == 0)
            said = units[kept]
            known = np.where(said.due_ms == NOT_SAID, AT_THE_EARLIEST, EXACT)
            # Of a roll it says the slot; of what hopped into its own slot, or a broker linked, that
            # is its own. Only in the read cursor's may be what was overdue by then.
            leads = (said.magic & fmt.UNIT_ROLL != 0) | (said.leads_to > at.read)
            leads &= (known == AT_THE_EARLIEST) & (said.leads_to != NOT_SAID)
            known[leads], said.due_ms[leads] = IN_A_SLOT, said.leads_to[leads] * precision_ms
            said.due_ms[known == AT_THE_EARLIEST] = 0
            yield self._wanted(said.message, said.due_ms, known)

    def _wanted(self, messages: Words, due_ms: Words, known: Words | np.int8) -> Places:
        """Return those places that may be due in the range of this pass."""
        places = Places(due_ms, messages, np.broadcast_to(known, messages.shape))
        is_wanted = (due_ms >= self._from_ms) & (due_ms < self._until_ms)
        is_wanted &= places.last_ms(self._engine.precision_ms) >= self._start_ms
        return places.choose(np.flatnonzero(is_wanted))

    def _add(self, places: Places) -> None:
        """Keep places until their turn."""
        if len(places.message):
            self._parts.append(places.choose(np.argsort(places.due_ms, kind="stable")))
            self._known_count += len(places.message)

    def _forget(self) -> None:
        """Leave what is due last to another pass, if too much is known."""
        if self._known_count > self._known_max:
            self._until_ms = min(self._until_ms, self._kth_ms(_KNOWN_MAX // 2))
            self._parts, _ = self._split(self._until_ms)
            self._known_count = sum(len(part.message) for part in self._parts)
            self._known_max = max(_KNOWN_MAX, 2 * self._known_count)
