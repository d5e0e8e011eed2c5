"""Hash sets that kernels look into.

Both are open-addressing tables in int64 arrays, two words for each entry, with linear probing; an
entry is (0, 0) if free. Python makes them larger before they are more than half full. All calls
happen under fire, if services run.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.intrinsics import wrapping_multiply
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Words

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
