"""The cancelled set: the identities of timers that were cancelled before their time.

An entry is an identity, as `timelog/bytes/message.py` tells it. It joins when a timer is cancelled.
It leaves when the read cursor passes the timer's delete; a delay level's message, when its loop
passes it. If the read cursor is past the delete of such a message first, the entry is *held*: no
unit names it any more, so the copies cursor stays at the oldest delete of those held, and recovery
finds it from there.

The counts, of all entries and of those of levels, change only here, with what they count; the test
for room is only here. The table grows before it is full, beside those who use it. Everything is
under fire, except in recovery, in which nothing else runs.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.jit.guards import Lock
from timerstore.jit.intrinsics import copy_bytes, prefetch, wrapping_multiply
from timerstore.jit.kernel import inlined, inlined_view, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release, new_lock
from timerstore.jit.mapping import Lent, is_lent, lend, lent_bytes, lent_words, new_lent
from timerstore.jit.record import ALONE, Bytes, Flags, Words, acting_as, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_HELD, IDENTITY_OURS

# --- Hash sets that kernels look into.
#
# Both are open-addressing tables in int64 arrays, two words for each entry, with linear probing; an
# entry is (0, 0) if free. Python makes them larger before they are more than half full. All calls
# happen under fire, if services run.

SET_ENTRY_WORDS: Final = 2
ROOM_WORDS: Final = 2 * SET_ENTRY_WORDS
"""A table has so many words for each entry at least: it is half full at most."""
LENGTH_MIN: Final = 2 * 1024


@inlined
def spread(high: int, low: int) -> int:
    """Mix two words into one (the finalizer of MurmurHash3)."""
    code = high ^ wrapping_multiply(low, 0x9E3779B97F4A7C1)
    code = wrapping_multiply(code ^ ((code >> 33) & 0x7FFFFFFF), 0x7F51AFD7ED558CC)
    return code ^ ((code >> 33) & 0x7FFFFFFF)


@inlined
def set_home(table: Words, high: int, low: int) -> int:
    """Return the index from which an entry is looked for."""
    return (spread(high, low) & (len(table) // SET_ENTRY_WORDS - 1)) * SET_ENTRY_WORDS


@inlined
def _find(table: Words, high: int, low: int) -> int:
    """Return the index of the entry, or of the free place where it would go."""
    at = set_home(table, high, low)
    while True:
        if table[at] == high and table[at + 1] == low:
            return at
        if table[at] == 0 and table[at + 1] == 0:
            return at
        at = (at + SET_ENTRY_WORDS) & (len(table) - 1)


@inlined
def set_contains(table: Words, high: int, low: int) -> bool:
    """Tell whether (high, low) is in the set. O(1) expected."""
    at = _find(table, high, low)
    return table[at] != 0 or table[at + 1] != 0


@inlined
def set_add(table: Words, high: int, low: int) -> bool:
    """Add (high, low), which is not (0, 0); tell whether it is new. O(1) expected."""
    at = _find(table, high, low)
    if table[at] != 0 or table[at + 1] != 0:
        return False
    table[at] = high
    table[at + 1] = low
    return True


@inlined
def set_remove(table: Words, high: int, low: int) -> bool:
    """Remove (high, low); tell whether it was there. O(1) expected.

    The entries behind it move up, so that no search is cut short (Knuth, TAOCP 6.4, algorithm R).
    """
    at = _find(table, high, low)
    if table[at] == 0 and table[at + 1] == 0:
        return False
    mask = len(table) // SET_ENTRY_WORDS - 1
    hole = at // SET_ENTRY_WORDS
    place = hole
    while True:
        place = (place + 1) & mask
        at = place * SET_ENTRY_WORDS
        if table[at] == 0 and table[at + 1] == 0:
            break
        home = spread(table[at], table[at + 1]) & mask
        # Move it up unless its home lies behind the hole, on the way to its place.
        if (place - home) & mask >= (place - hole) & mask:
            table[hole * SET_ENTRY_WORDS] = table[at]
            table[hole * SET_ENTRY_WORDS + 1] = table[at + 1]
            hole = place
    table[hole * SET_ENTRY_WORDS] = 0
    table[hole * SET_ENTRY_WORDS + 1] = 0
    return True


@inlined
def place_among(ascending: Words, value: int) -> int:
    """Return the index of the first word that is not less than a value. O(log n)."""
    start, stop = 0, len(ascending)
    while start < stop:
        middle = (start + stop) // 2
        if ascending[middle] < value:
            start = middle + 1
        else:
            stop = middle
    return start


@inlined
def map_get(table: Words, offset: int) -> int:
    """Return what `map_put` stored for an offset, or −1. O(1) expected."""
    mask = len(table) // SET_ENTRY_WORDS - 1
    place = spread(0, offset) & mask
    while True:
        at = place * SET_ENTRY_WORDS
        if table[at + 1] == 0:
            return -1
        if table[at] == offset + 1:
            return table[at + 1] - 1
        place = (place + 1) & mask


@kernel_ahead
def map_put_all(table: Words, offsets: Words, values: Words) -> None:
    """Store a value >= 0 for each offset >= 0; the smallest if one comes twice. O(n)."""
    mask = len(table) // SET_ENTRY_WORDS - 1
    for i in range(len(offsets)):
        place = spread(0, offsets[i]) & mask
        while True:
            at = place * SET_ENTRY_WORDS
            if table[at + 1] == 0 or table[at] == offsets[i] + 1:
                if table[at + 1] == 0 or values[i] + 1 < table[at + 1]:
                    table[at] = offsets[i] + 1
                    table[at + 1] = values[i] + 1
                break
            place = (place + 1) & mask


def map_keys(table: Words) -> Words:
    """Return the offsets for which anything is stored, in no order. O(table)."""
    offsets, values = table.reshape(-1, SET_ENTRY_WORDS).T
    return offsets[values != 0] - 1


@kernel_ahead
def _copy_entries(table: Words, larger: Words) -> None:
    for i in range(0, len(table), SET_ENTRY_WORDS):
        if table[i] != 0 or table[i + 1] != 0:
            set_add(larger, table[i], table[i + 1])


def new_table(count: int) -> Words:
    """Return an empty table that `count` entries fill by half at most."""
    length = LENGTH_MIN
    while length < ROOM_WORDS * count:
        length *= 2
    return np.zeros(length, np.int64)


def grown(table: Words, count: int) -> Words:
    """Return the table itself, or a larger copy, so that `count` entries fit."""
    larger = new_table(count)
    if len(larger) <= len(table):
        return table
    _copy_entries(table, larger)
    return larger


# --- The set of what was cancelled.

NO_OFFSET: Final = 1 << 62

_ASKED_AT_ONCE: Final = 4_096
"""So many identities are looked for while fire is held: some 0.2 ms."""


@record
class CancelledSet:
    """What kernels know of the set."""

    lent: Lent  # its table, see above: Python replaces it by a larger one
    length: int = 0  # of its table in words
    count: int = 0
    timer_count: int = 0  # entries that are of timers of ours
    level_count: int = 0  # entries that are of delay levels
    held_count: int = 0  # of these, those held: IDENTITY_HELD
    held_from: int = NO_OFFSET  # commit log offset of the oldest of their deletes


@inlined_view
def _table(cancelled: CancelledSet) -> Any:
    return lent_words(cancelled.lent, 0, cancelled.length)


@inlined
def is_of_level(high: int, low: int) -> bool:
    """Tell whether an identity is that of a message that was put into a delay level by us."""
    return high == IDENTITY_OURS and low >= fmt.LEVEL_MARK


@inlined
def is_our_timer(high: int, low: int) -> bool:
    """Tell whether an identity is that of a timer of ours, which no delay level has."""
    return high == IDENTITY_OURS and low < fmt.LEVEL_MARK


@inlined
def names_timer(table: Words, high: int, low: int) -> bool:
    """Tell whether an identity is in a set's table, or in a copy of it, held or not."""
    if set_contains(table, high, low):
        return True
    return is_of_level(high, low) and set_contains(table, IDENTITY_HELD, low)


@inlined
def cancelled_contains(cancelled: CancelledSet, high: int, low: int) -> bool:
    """Tell whether an identity is in the set, held or not. O(1) expected."""
    return cancelled.count > 0 and names_timer(_table(cancelled), high, low)


@inlined
def cancelled_prefetch(cancelled: CancelledSet, high: int, low: int) -> None:
    """Ask for the place of an identity that is looked for, or added, a little later."""
    table = lent_bytes(cancelled.lent, 0, 8 * cancelled.length)
    prefetch(table, 8 * set_home(_table(cancelled), high, low))


@inlined
def cancelled_has_room(cancelled: CancelledSet) -> bool:
    """Tell whether one more can be added; else `CancelledTimers.grow` makes room."""
    return ROOM_WORDS * (cancelled.count + 1) <= cancelled.length


@inlined
def cancelled_add(cancelled: CancelledSet, high: int, low: int) -> bool:
    """Add an identity, for which there is room; tell whether it is new. O(1) expected."""
    if not set_add(_table(cancelled), high, low):
        return False
    cancelled.count += 1
    if is_our_timer(high, low):
        cancelled.timer_count += 1
    if is_of_level(high, low):
        cancelled.level_count += 1
    return True


@inlined
def cancelled_add_held(cancelled: CancelledSet, low: int, delete: int) -> bool:
    """Add a level's message, if it is not there, as held for its delete at this offset."""
    if names_timer(_table(cancelled), IDENTITY_OURS, low):
        return False
    set_add(_table(cancelled), IDENTITY_HELD, low)
    cancelled.count += 1
    cancelled.level_count += 1
    _hold_from(cancelled, delete)
    return True


@inlined
def _hold_from(cancelled: CancelledSet, delete: int) -> None:
    cancelled.held_count += 1
    cancelled.held_from = min(cancelled.held_from, delete)


@inlined
def cancelled_remove(cancelled: CancelledSet, high: int, low: int) -> bool:
    """Remove an identity, held or not; tell whether it was there. O(1) expected."""
    table, of_level = _table(cancelled), is_of_level(high, low)
    if not set_remove(table, high, low):
        if not of_level or not set_remove(table, IDENTITY_HELD, low):
            return False
        cancelled.held_count -= 1
        if cancelled.held_count == 0:
            cancelled.held_from = NO_OFFSET
    cancelled.count -= 1
    if is_our_timer(high, low):
        cancelled.timer_count -= 1
    if of_level:
        cancelled.level_count -= 1
    return True


@inlined
def cancelled_pass_delete(cancelled: CancelledSet, high: int, low: int, delete: int) -> None:
    """Remove the target of a delete that is passed; one that its level has not passed is held."""
    if not is_of_level(high, low):
        cancelled_remove(cancelled, high, low)
    elif set_remove(_table(cancelled), IDENTITY_OURS, low):
        set_add(_table(cancelled), IDENTITY_HELD, low)
        _hold_from(cancelled, delete)


@inlined
def copy_cancelled(cancelled: CancelledSet, into: Bytes) -> None:
    """Copy the table into uint8[8 * length]."""
    table = lent_bytes(cancelled.lent, 0, 8 * cancelled.length)
    copy_bytes(into, 0, table, 0, 8 * cancelled.length)


@kernel_ahead
def _copy_table(cancelled: CancelledSet, fire_lock: Words, into: Bytes) -> None:
    """Copy the table under fire."""
    lock_acquire(fire_lock)
    copy_cancelled(cancelled, into)
    lock_release(fire_lock)


@kernel_ahead
def _move(
    cancelled: CancelledSet, fire_lock: Words, seen: Words, larger: Words, lent: Lent
) -> None:
    """Have kernels use a larger table, made of the one that was seen.

    Under fire it is given what came and went since. An entry that did has another place, or none,
    in one of the two: so only places that differ are looked at. O(table), 1 ns for each entry.
    """
    lock_acquire(fire_lock)
    now = _table(cancelled)
    for at in range(0, len(seen), SET_ENTRY_WORDS):
        if now[at] != seen[at] or now[at + 1] != seen[at + 1]:
            if seen[at] != 0 or seen[at + 1] != 0:
                if not set_contains(now, seen[at], seen[at + 1]):
                    set_remove(larger, seen[at], seen[at + 1])
            if now[at] != 0 or now[at + 1] != 0:
                set_add(larger, now[at], now[at + 1])
    cancelled.lent[0] = lent[0]
    cancelled.length = len(larger)
    lock_release(fire_lock)


@kernel_ahead
def _add_all(cancelled: CancelledSet, high: Words, low: Words) -> None:
    for i in range(len(low)):
        cancelled_add(cancelled, high[i], low[i])


@kernel_ahead
def _add_all_held(cancelled: CancelledSet, low: Words, deletes: Words) -> None:
    for i in range(len(low)):
        cancelled_add_held(cancelled, low[i], deletes[i])


@kernel_ahead
def _contains_all(
    cancelled: CancelledSet, fire_lock: Words, high: Words, low: Words, named: Flags
) -> None:
    lock_acquire(fire_lock)
    for i in range(len(low)):
        named[i] = cancelled_contains(cancelled, high[i], low[i])
    lock_release(fire_lock)


@kernel_ahead
def _remove_ours(cancelled: CancelledSet, fire_lock: Words, low: Words) -> None:
    lock_acquire(fire_lock)
    for i in range(len(low)):
        cancelled_remove(cancelled, IDENTITY_OURS, low[i])
    lock_release(fire_lock)


def are_of_level(high: Words, low: Words) -> Flags:
    """Tell which identities are those of messages that we put into a delay level: bool[n]."""
    return (high == IDENTITY_OURS) & (low >= fmt.LEVEL_MARK)


class CancelledTimers:
    """The set as Python has it: its memory, and what is done for many at once, each under fire."""

    def __init__(self) -> None:
        self.set, self.fire_lock = CancelledSet(new_lent(1)), new_lock()
        self._one_grows = Lock()
        self._tables = [new_table(1)]
        lend(self.set.lent, 0, self._tables[0])
        self.set.length = len(self._tables[0])

    @property
    def table(self) -> Words:
        """The table that kernels use."""
        return next(each for each in self._tables if is_lent(self.set.lent, 0, each))

    def grow(self, more: int) -> None:
        """Make room for `more`, beside who uses the set. O(length).

        The entries are hashed anew without a lock. Fire is held while the table is copied, and
        while what came and went since is added.
        """
        with self._one_grows.guard():
            seen = np.full(self.set.length, 0, np.int64)  # with its pages, before fire is taken
            _copy_table(self.set, self.fire_lock, seen.view(np.uint8))
            larger, lent = grown(seen, self.set.count + more), new_lent(1)
            if larger is not seen:
                # Those before take as much together. Only who has fire may drop one.
                self._tables.append(larger)
                lend(lent, 0, larger)
                with acting_as(ALONE):
                    _move(self.set, self.fire_lock, seen, larger, lent)

    def prepare(self) -> None:
        """Grow before there is no room: if three quarters of it are used."""
        if 4 * ROOM_WORDS * self.set.count > 3 * self.set.length:
            self.grow(self.set.count)

    def contains(self, high: Words, low: Words) -> Flags:
        """Tell which identities are in the set, held or not: bool[n]."""
        named = np.zeros(len(low), np.bool_)
        for start in range(0, len(low), _ASKED_AT_ONCE):
            part = slice(start, start + _ASKED_AT_ONCE)
            _contains_all(self.set, self.fire_lock, high[part], low[part], named[part])
        return named

    def remove_ours(self, low: Words) -> None:
        """Remove messages of this store, held or not, as far as they are there. O(n)."""
        with acting_as(ALONE):
            for at in range(0, len(low), _ASKED_AT_ONCE):
                _remove_ours(self.set, self.fire_lock, low[at : at + _ASKED_AT_ONCE])

    def add(self, high: Words, low: Words) -> None:
        """Add identities, and make room for them, before any service runs."""
        self._reserve(len(low))
        with acting_as(ALONE):
            _add_all(self.set, high, low)

    def add_held(self, low: Words, deletes: Words) -> None:
        """Add levels' messages that are not there, as held; `deletes`: their deletes' offsets."""
        self._reserve(len(low))
        with acting_as(ALONE):
            _add_all_held(self.set, low, deletes)

    def _reserve(self, more: int) -> None:
        if ROOM_WORDS * (self.set.count + more) > self.set.length:
            self.grow(more)
