"""The floor: which units are superseded, so that nobody reads their messages any more.

F, the floor, is a commit log offset: every unit whose message lies before it is superseded,
whatever its slot. Above it a *pass* of cleaning supersedes units piece by piece: those of its range
whose message lies before its cursor and whose slot is at or after its S (`cleaning.py`). The commit
log segments below the durable F go, and timer log segments with them; so a chain is walked until
NO_UNIT, or until it leads to before the timer log's start, and a unit is asked whether it is
superseded before its message is read.

A pass begins and ends, and F moves, under fire, near and wheel; a cursor moves under fire and
wheel, together with the append of the copies behind it, and only while no slot from S on is
claimed. So dequeue-get may ask under near alone, Python under all three.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from timerstore.services.world.state import PASS_COLUMNS, PASS_CURSOR, PASS_FIRST_SLOT, PASS_START
from timerstore.services.world.state import Cleaning as CleaningWords
from timerstore.timelog.jit.kernel import inlined
from timerstore.timelog.jit.record import Words

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@inlined
def is_superseded(cleaning: CleaningWords, message: int, slot: int) -> bool:
    """Tell whether the unit of a message in a slot is superseded. O(passes), mostly none."""
    if message < cleaning.floor:
        return True
    for i in range(cleaning.pass_count):
        at = i * PASS_COLUMNS
        if (
            cleaning.passes[at + PASS_START] <= message < cleaning.passes[at + PASS_CURSOR]
            and slot >= cleaning.passes[at + PASS_FIRST_SLOT]
        ):
            return True
    return False


class Floor:
    """F and the passes as they stood at one moment; for whoever looks at many units."""

    def __init__(self, offset: int, passes: Words) -> None:
        """Keep F, and the passes: int64[n, PASS_COLUMNS]."""
        self.offset, self.passes = offset, passes

    def superseded(self, messages: Words, slots: Words | int) -> Flags:
        """Tell which units are superseded. O(units × passes)."""
        found: Flags = messages < self.offset
        for each in self.passes:
            mine = (messages >= each[PASS_START]) & (messages < each[PASS_CURSOR])
            found |= mine & (np.asarray(slots) >= each[PASS_FIRST_SLOT])
        return found


def read_floor(cleaning: CleaningWords) -> Floor:
    """Return F and the passes; under all locks of the services, or where nobody cleans."""
    count = cleaning.pass_count
    passes = cleaning.passes[: count * PASS_COLUMNS].reshape(count, PASS_COLUMNS).copy()
    return Floor(cleaning.floor, passes)
