"""The floor: which units are superseded, so that nobody reads their messages any more.

It is a commit log offset: every unit whose message lies before it is superseded, in any slot.
Above it a *pass* of cleaning supersedes units piece by piece: those of its range whose
message lies before its cursor and which lead to its first slot or later (`cleaning.py`). It asks
where a unit leads to, which is the same for all units of one message, and not where it waits: a
roll waits in many slots. Of the units of one message the last one counts: what an earlier life's
hops linked later supersedes those before (`World.hopped`). The commit log segments below the
durable floor go, and timer log segments with them; so a chain is walked until NO_UNIT, or until it
leads to before the timer log's start, and a unit is asked whether it is superseded before its
message is read.

A pass begins and ends, and the floor moves, under fire, near and wheel; a cursor moves under fire
and wheel, together with the append of the copies behind it, and only while no slot from its first
one on is claimed. So dequeue-get may ask under only near, Python under all three.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.lent import lent_words
from timerstore.jit.record import Words
from timerstore.services.world.state import (
    PASS_COLUMNS,
    PASS_CURSOR,
    PASS_FIRST_SLOT,
    PASS_START,
    OffsetMap,
)
from timerstore.services.world.world import World
from timerstore.timelog.bytes.unit import Units
from timerstore.wheel.sets import map_get

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@inlined
def find_in(known: OffsetMap, message: int) -> int:
    """Return what a map of recovery holds for a message, or −1. O(1)."""
    if known.count == 0 or message < 0:
        return -1
    return map_get(lent_words(known.lent, 0, known.length), message)


@inlined
def is_superseded(world: World, message: int, leads_to: int, offset: int) -> bool:
    """Tell whether the unit of a message, at `offset`, is superseded. O(passes), mostly none.

    `leads_to`: NOT_SAID if the unit does not say it; then ask again with what the message says.
    """
    cleaning = world.cleaning
    if message < cleaning.floor or find_in(world.hopped, message) > offset:
        return True
    for i in range(cleaning.pass_count):
        at = i * PASS_COLUMNS
        if (
            cleaning.passes[at + PASS_START] <= message < cleaning.passes[at + PASS_CURSOR]
            and leads_to >= cleaning.passes[at + PASS_FIRST_SLOT]
        ):
            return True
    return False


@kernel_ahead
def _find_later(hopped: OffsetMap, units: Units, later: Words) -> None:
    """Write 1 for each unit whose message has a later one; `later`: int64[n], zeros."""
    for i in range(len(units.offset)):
        if find_in(hopped, units.message[i]) > units.offset[i]:
            later[i] = 1


class Floor:
    """The floor and the passes as they were at one moment, for code that looks at many units."""

    def __init__(self, offset: int, passes: Words, hopped: OffsetMap) -> None:
        """Keep the floor, the passes, int64[n, PASS_COLUMNS], and the last units by hops."""
        self.offset, self.passes, self._hopped = offset, passes, hopped

    def superseded(self, units: Units) -> Flags:
        """Tell which units are superseded. O(units × passes).

        In a pass, what does not say where it leads to is not, as far as this can tell.
        """
        found: Flags = units.message < self.offset
        for each in self.passes:
            mine = (units.message >= each[PASS_START]) & (units.message < each[PASS_CURSOR])
            found |= mine & (units.leads_to >= each[PASS_FIRST_SLOT])
        if self._hopped.count:
            later = np.zeros(len(units), np.int64)
            _find_later(self._hopped, units, later)
            found |= later != 0
        return found


def read_floor(world: World) -> Floor:
    """Return the floor and the passes; under all locks of the services, or if nobody cleans."""
    cleaning, count = world.cleaning, world.cleaning.pass_count
    passes = cleaning.passes[: count * PASS_COLUMNS].reshape(count, PASS_COLUMNS).copy()
    return Floor(cleaning.floor, passes, world.hopped)
