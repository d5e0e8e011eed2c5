"""What a store holds, in numbers that can be added: slots, due times, lateness, growth, rolls.

It is counted on the way of a validation, from what that reads anyway, if a `Scope` asks for it.
`timerstore.pipeline` makes tables of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.record import Words
from timerstore.timelog.reading.rowsums import summed

# Columns of a slot's row; each slot ahead has one.
SLOT_NUMBER: Final = 0
SLOT_INDEX: Final = 1  # its place in the ring; −1: the wheel does not know it
SLOT_UNITS: Final = 2  # all of them, dead ones and deletes too
SLOT_DELETES: Final = 3
SLOT_SUPERSEDED: Final = 4  # moved by cleaning, or hopped: their timers wait elsewhere
SLOT_ROLLS: Final = 5  # on their way to a later slot, and not cancelled
SLOT_LATE: Final = 6  # live ones whose own slot had passed when they came
SLOT_LIVE: Final = 7  # neither a delete nor superseded
SLOT_EXPECTED: Final = 8  # live ones that belong here by what their messages say
SLOT_DEPTH: Final = 9  # units that the chain leads to
SLOT_MESSAGE_BYTES: Final = 10  # of the live ones' messages
SLOT_PAGES: Final = 11  # of the commit log that firing them reads
SLOT_TOP_HASH: Final = 12  # of the topic that has most of them
SLOT_TOP: Final = 13  # how many it has
SLOT_FIRES: Final = 14  # due in it, and not cancelled
SLOT_COLUMNS: Final = 15

# Tables of sums: so many columns say what is counted, the others how often.
DUE: Final = "due"  # minute, topic; timers
LATENESS: Final = "lateness"  # topic, hour, lateness in ms; fired
GROWTH: Final = "growth"  # hour, kind; messages, bytes
ROLLS: Final = "rolls"  # hops to come; timers that are not cancelled, bytes of one hop of all
_SHAPES: Final = {DUE: (2, 1), LATENESS: (3, 1), GROWTH: (2, 2), ROLLS: (1, 2)}
_EXACT_BITS: Final = 10
_LOOSE_MAX: Final = 1 << 20
"""Rows that are kept before equal ones are added up."""

# Kinds of messages, of `GROWTH`.
KINDS: Final = ("put", "fired", "moved", "cancelled", "other")
PUT, FIRED, MOVED, CANCELLED, OTHER = range(5)

PAGE_BYTES: Final = 4_096


class GroupFound(NamedTuple):
    """How far a group is in a queue; of a retry queue the group's own."""

    topic: str
    group: str
    queue_id: int
    committed: int
    end: int
    oldest_ms: int  # when the first message that it has not read was stored; −1: there is none


@dataclass
class Measured:
    """Counts of one store; merging is associative, and the order does not matter."""

    slots: list[Words] = field(default_factory=list)
    groups: list[GroupFound] = field(default_factory=list)
    _sums: dict[str, list[Words]] = field(default_factory=dict)
    _loose: int = 0

    def add(self, name: str, *columns: Any) -> None:
        """Count rows of a table of sums, given by their columns; without the last: each once."""
        keys, values = _SHAPES[name]
        if len(columns) < keys + values:
            columns = (*columns, np.ones(len(columns[0]), np.int64))
        rows = np.column_stack([np.asarray(each, np.int64) for each in columns])
        self._take(name, summed(rows, keys))

    def _take(self, name: str, rows: Words) -> None:
        if not len(rows):
            return
        self._sums.setdefault(name, []).append(rows)
        self._loose += len(rows)
        if self._loose > _LOOSE_MAX:
            self._sums = {each: [self.table(each)] for each in self._sums}
            self._loose = -self.held_rows

    def table(self, name: str) -> Words:
        """Return a table of sums: int64[n, columns], sorted, no two rows about the same."""
        keys, values = _SHAPES[name]
        nothing = np.zeros((0, keys + values), np.int64)
        return summed(np.concatenate([nothing, *self._sums.get(name, [])]), keys)

    @property
    def held_rows(self) -> int:
        """How many rows of sums are held."""
        return sum(len(rows) for parts in self._sums.values() for rows in parts)

    def slot_rows(self) -> Words:
        """Return all slots by their numbers: int64[n, SLOT_COLUMNS]."""
        rows = np.concatenate([np.zeros((0, SLOT_COLUMNS), np.int64), *self.slots])
        return rows[np.argsort(rows[:, SLOT_NUMBER])]

    def merge(self, other: Measured) -> None:
        """Take in what another one counted."""
        self.slots += other.slots
        self.groups += other.groups
        for name, parts in other._sums.items():
            for rows in parts:
                self._take(name, rows)


# --- lateness


def lateness_told(late_ms: Words) -> Words:
    """Return lateness as it is counted: early is 0, a large one keeps its ten highest bits. O(n).

    So up to 1,023 ms it is exact, and above less than 0.2 % off.
    """
    late_ms = np.maximum(late_ms, 0)
    bits = np.frexp(late_ms.astype(np.float64))[1] - _EXACT_BITS
    shift = np.maximum(bits, 0).astype(np.int64)
    told: Words = (late_ms >> shift) << shift
    return told


# --- a slot


def pages_of(offset: Words, size: Words) -> tuple[Words, Words]:
    """Return the first and the last page of each message: int64[n] each."""
    return offset // PAGE_BYTES, (offset + np.maximum(size, 1) - 1) // PAGE_BYTES


def hops_to_come(hops: Words, hop: int, window: int) -> Words:
    """Return how often timers are passed on that are so many hops away: int64[n].

    A timer that is put down again goes as far as the window allows: see `wheel/place.py`.
    """
    rolled = hops > 0
    far = rolled & (hops * hop >= window)
    left = (hops * hop - window) // hop + 1  # after the first time, in hops
    limit = -(-window // hop)  # from so many hops on a timer is passed on again
    again = np.maximum(0, -((limit - 1 - left) // max(1, limit - 1)))
    found: Words = np.where(rolled, 1, 0) + np.where(far, 1 + again, 0)
    return found
