"""What waits in the oldest part of the log, which passes of cleaning go over.

Only units say which messages a pass needs, and these are anywhere in the timer log. So
one read of it, a *round*, makes a table of what waits, in the order of the commit log, and many
passes go over that: what is due so late that a pass copies it waits still. It is read through maps
of its own, so those of the services stay as they are. A part of the timer log all of whose units
name other messages is passed over (`UnitRanges`): what has not hopped was linked in the order of
the commit log, so all rounds together read such units about once.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Words, act_as
from timerstore.services.looking.read_units import own_maps, read_units
from timerstore.services.looking.timer_places import say_leads
from timerstore.services.pipeline.copying import read_source
from timerstore.services.world.state import CLEANING
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import identify_target
from timerstore.timelog.bytes.unit import NOT_SAID, Units
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.timerlog import WALK_DONE
from timerstore.timelog.writing.tally import PENDING_BYTES, TALLY_WORDS
from timerstore.wheel.cancelled import is_our_timer

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine

# --- The deletes that a pass of cleaning drops.
#
# A delete is needed for as long as its timer can still be found. Everything that its timer has in
# the log lies before it, if it was appended since the store was opened: a cancelled timer is never
# appended again. So a pass that comes to the delete has dropped the timer as well, or has left it
# to fire before the pass's first slot, and nothing of the delete has to be copied. A delete of an
# earlier life is copied: a broker, or an older store, rolls by message, so the timer may lie behind
# it.
#
# The timer's entry in the cancelled set stays until the floor is past the delete, because what was
# left to fire has come to its slot only then. If the store is killed before that, the delete is
# found again.

NO_TARGET: Final = -1


@kernel_ahead
def read_targets(world: World, source: SegmentTable, units: Units, targets: Words) -> None:
    """Write the offset of the timer that each delete to be dropped cancels; else NO_TARGET.

    `source`: the commit log's segments. A delete that cannot be read, that cancels a broker's
    timer, or a message of a delay level, is not dropped. O(bytes of the deletes).
    """
    before = act_as(CLEANING)
    found, tag = world.cleaning.thread.found, world.settings.store_tag
    for i in range(len(units.offset)):
        targets[i] = NO_TARGET
        message = units.message[i]
        if units.magic[i] & fmt.UNIT_DELETE == 0 or message < world.cleaning.opened_at:
            continue
        buf = segment_at(source, message)
        if len(buf) == 0 or not read_source(world, buf, found, message, units.size[i]):
            continue
        identify_target(buf, found, tag)
        if is_our_timer(found.identity_high, found.identity_low):
            targets[i] = found.identity_low
    act_as(before)


def live_bytes(engine: Engine, waits_bytes: int, dropped_count: int) -> int:
    """Return about how many of the bytes that wait are of pending timers. O(queues).

    The others are of timers of ours that were cancelled, and of their deletes, of which passes have
    dropped `dropped_count` already. The bodies of pending timers are known; all else is taken to be
    spread evenly over the messages.
    """
    dead_count = engine.cancelled.set.timer_count - dropped_count
    if dead_count <= 0:
        return waits_bytes
    count = engine.pending_count()
    row_count = len(engine.queues.files)
    words = engine.queues.table.tally.words[: row_count * TALLY_WORDS]
    bodies_bytes = int(np.sum(words[PENDING_BYTES::TALLY_WORDS]))
    rest_bytes = max(0, waits_bytes - bodies_bytes)
    return min(waits_bytes, bodies_bytes + rest_bytes * count // (count + 2 * dead_count))


ROWS_MAX: Final = 1 << 20
"""Rows of a round, about: if more wait, it ends sooner in the commit log. 50 MB."""


class _Part(NamedTuple):
    """Some units that follow each other, and which messages they name."""

    offset: int
    stop: int
    first: int
    last: int


class UnitRanges:
    """Which messages the units of each part of the timer log name, as far as they were read.

    A unit that is written again names the same message.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._parts: list[_Part] = []  # in order

    def note(self, units: Units) -> None:
        """Note units as they were read, none left out; what is known of them already stays."""
        first = int(np.searchsorted(units.offset, self._parts[-1].stop)) if self._parts else 0
        if first < len(units):
            messages, stop = units.message[first:], int(units.offset[-1]) + fmt.UNIT_BYTES
            named = int(messages.min()), int(messages.max())
            self._parts.append(_Part(int(units.offset[first]), stop, *named))

    def forget(self, start: int) -> None:
        """Forget the parts before `start`, which were removed. O(parts), if there are any."""
        if self._parts and self._parts[0].stop <= start:
            self._parts = [part for part in self._parts if part.stop > start]

    def next_offset(self, offset: int, start: int, stop: int) -> int:
        """Return where to read on from `offset` for units of messages from `start` to `stop`.

        O(parts that are passed over).
        """
        parts = self._parts
        for at in range(bisect_right(parts, offset, key=attrgetter("stop")), len(parts)):
            if parts[at].first < stop and parts[at].last >= start:
                return max(offset, parts[at].offset)
        return max(offset, parts[-1].stop) if parts else offset


@dataclass
class Pass:
    """Messages from `start` to `stop`; none is needed once the read cursor is past `last_slot`."""

    start: int
    stop: int
    last_slot: int  # the latest that what it leaves in place leads to
    first_slot: int = -1  # what leads there or later is copied; also in `Cleaning.passes`
    targets: Words = field(default_factory=lambda: np.zeros(0, np.int64))  # of deletes it dropped


class Linked(NamedTuple):
    """What was linked at one moment."""

    end: int  # of the timer log
    read_slot: int
    linked_bytes: int  # of the messages whose units were linked
    settled_bytes: int  # and of those that are done with


def linked_by_now(world: World) -> Linked:
    """Return what is linked now."""
    words = np.zeros(len(Linked._fields), np.int64)
    _see_linked(world, words)
    return Linked(*words.tolist())


@kernel_ahead
def _see_linked(world: World, words: Words) -> None:
    lock_acquire(world.wheel_lock)
    words[0] = world.timerlog.end
    words[1] = world.dequeue_put.passed_slot
    words[2] = world.enqueue_put.linked_bytes
    words[3] = world.dequeue_put.settled_bytes + world.cleaning.settled_bytes
    lock_release(world.wheel_lock)


class Round:
    """What waits of the messages from `start` to `stop`, which all have a unit.

    It costs 52 bytes read for each unit of the parts of the timer log that name any of these.
    """

    def __init__(
        self, engine: Engine, start: int, stop: int, units_at_once: int, ranges: UnitRanges
    ) -> None:
        """Read nothing yet; `read_on` reads so many units at a time."""
        log, linked = engine.timerlog, linked_by_now(engine.world)
        # What the read cursor has passed by then has gone on before `end`.
        self._end, self._read_ms = linked.end, linked.read_slot * engine.precision_ms
        self.engine, self.start, self.stop, self._ranges = engine, start, stop, ranges
        self.is_read = False
        self._parts: list[Units] = []  # once it is read: one, with a unit of each message
        self._offset = log.start
        ranges.forget(log.start)
        self._reader = own_maps(engine, log)
        self._buffer = Units.room(units_at_once)

    def read_on(self) -> None:
        """Read the next units; those of ROWS_MAX messages are kept, or of half as many."""
        first = self._ranges.next_offset(self._offset, self.start, self.stop)
        where = np.array([first, 0], np.int64)
        found = read_units(self.engine, self._reader, self._end, -1, self._buffer, where)
        self._ranges.note(found)
        wanted = (found.message >= self.start) & (found.message < self.stop)
        parts = [*self._parts, found[wanted & (found.ms >= self._read_ms)]]
        is_read, stop, offset = bool(where[1] == WALK_DONE), self.stop, int(where[0])
        if is_read or sum(map(len, parts)) > ROWS_MAX:
            parts = [_in_order(parts)]
            say_leads(self.engine, parts[0])
            if len(parts[0]) > ROWS_MAX:
                stop = int(parts[0].message[ROWS_MAX // 2])
                parts = [parts[0][np.arange(ROWS_MAX // 2)]]
        # In one piece: Python looks for signals only at calls and jumps.
        self._parts, self._offset, self.stop, self.is_read = parts, offset, stop, is_read

    def waiting(self, start: int, stop: int, first_slot: int) -> tuple[Units, int]:
        """Return what leads to `first_slot` or later of the messages from `start` to `stop`.

        With it the latest slot that the others lead to, −1 if there is none.
        """
        units = self._parts[0]
        first, last = np.searchsorted(units.message, (start, stop)).tolist()
        units = units[first:last]
        # What does not say where it leads to cannot be read: a pass names it.
        is_far = (units.leads_to >= first_slot) | (units.leads_to == NOT_SAID)
        return units[is_far], int(units.leads_to[~is_far].max(initial=-1))


class Walk:
    """How far the copying of a pass has come among what waits."""

    def __init__(self, engine: Engine, mine: Pass, units: Units) -> None:
        """`units`: what it looks at, in the order of the commit log."""
        self.engine, self.mine, self.units, self.at = engine, mine, units, 0
        self._targets, self._read_count = np.full(len(units), NO_TARGET), 0
        self.claimed_slot = engine.world.dequeue_get.claimed_slot
        """The claim cursor when it began."""
        self.source = own_maps(engine, engine.commitlog)
        self.source.map_from(mine.start, 1)
        self.source.table.end = mine.stop

    def next_units(self, count: int) -> tuple[Units, Words, int]:
        """Return the next units, the targets of those that are dropped as deletes: int64[n].

        With them comes the cursor's place once all are done with.
        """
        stop = self.at + count
        is_last = stop >= len(self.units)
        cursor = self.mine.stop if is_last else int(self.units.message[stop])
        new = slice(self._read_count, stop)  # a batch takes a part, so most come again
        read_targets(self.engine.world, self.source.table, self.units[new], self._targets[new])
        self._read_count = max(self._read_count, stop)
        return self.units[self.at : stop], self._targets[self.at : stop], cursor

    def dropped_targets(self) -> Words:
        """Return the targets of the deletes that the pass, which has ended, dropped: int64[n]."""
        done = self._targets[: np.searchsorted(self.units.message, self.mine.stop)]
        return done[done != NO_TARGET]

    def go_to(self, cursor: int) -> None:
        """Go to the first unit whose message is not before `cursor`."""
        self.at = int(np.searchsorted(self.units.message, cursor))


def _in_order(parts: list[Units]) -> Units:
    """Join units in the order of their messages, the last one of each. O(n log n)."""
    names = Units.columns()
    joined = Units(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))
    order = np.argsort(joined.message, kind="stable")  # nearly in order: few runs to merge
    message = joined.message[order]
    is_last = np.append(message[1:] != message[:-1], True)[: len(message)]
    return joined[order[is_last]]
