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

import numpy as np

from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.mapping import lent_words
from timerstore.jit.record import Flags, Words
from timerstore.services.world.state import (
    PASS_COLUMNS,
    PASS_CURSOR,
    PASS_FIRST_SLOT,
    PASS_START,
    OffsetMap,
)
from timerstore.services.world.world import World
from timerstore.timelog.bytes.unit import Units
from timerstore.wheel.cancelled import map_get


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
    mine, hopped = world.cleaning, world.hopped
    passes, count = mine.passes, mine.pass_count
    return _is_over(mine.floor, passes, count, hopped, message, leads_to, offset)


@inlined
def _is_over(
    floor: int,
    passes: Words,
    pass_count: int,
    hopped: OffsetMap,
    message: int,
    leads_to: int,
    offset: int,
) -> bool:
    if message < floor or find_in(hopped, message) > offset:
        return True
    for i in range(pass_count):
        at = i * PASS_COLUMNS
        if (
            passes[at + PASS_START] <= message < passes[at + PASS_CURSOR]
            and leads_to >= passes[at + PASS_FIRST_SLOT]
        ):
            return True
    return False


@kernel_ahead
def _find_over(
    floor: int, passes: Words, hopped: OffsetMap, units: Units, superseded: Flags
) -> None:
    count = len(passes) // PASS_COLUMNS
    for i in range(len(units.offset)):
        message, leads_to, offset = units.message[i], units.leads_to[i], units.offset[i]
        superseded[i] = _is_over(floor, passes, count, hopped, message, leads_to, offset)


class Floor:
    """The floor and the passes as they were at one moment, for code that looks at many units."""

    def __init__(self, offset: int, passes: Words, hopped: OffsetMap) -> None:
        """Keep the floor, the passes, int64[n * PASS_COLUMNS], and the last units by hops."""
        self.offset, self.passes, self._hopped = offset, passes, hopped

    def superseded(self, units: Units) -> Flags:
        """Tell which units are superseded. O(units × passes).

        In a pass, what does not say where it leads to is not, as far as this can tell.
        """
        found = np.zeros(len(units), np.bool_)
        _find_over(self.offset, self.passes, self._hopped, units, found)
        return found


def read_floor(world: World) -> Floor:
    """Return the floor and the passes; under all locks of the services, or if nobody cleans."""
    cleaning, count = world.cleaning, world.cleaning.pass_count
    passes = cleaning.passes[: count * PASS_COLUMNS].copy()
    return Floor(cleaning.floor, passes, world.hopped)
