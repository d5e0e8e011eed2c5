"""Slow, obvious twin of the hop schedule: in which slots the units of one far timer wait.

A roll appends no message: it links one more unit into the next slot on its timer's grid. All
numbers here are slots, but for those of `Life`.
"""

from collections.abc import Iterator
from typing import NamedTuple

UNIT_BYTES = 52
ENTRY_BYTES = 20


class Window(NamedTuple):
    """How far ahead a unit may wait, and how large the ring is."""

    roll_window: int
    slot_count: int

    @property
    def hop(self) -> int:
        """The longest hop that leads ahead from a slot that has begun."""
        return self.roll_window - 1


class Now(NamedTuple):
    """What placement looks at: the clock's slot, and the read cursor."""

    clock: int
    read: int


def next_slot(due: int, own: int, now: Now, window: Window) -> int:
    """The slot of a timer's next unit; its own slot `due` if that is near enough.

    `own`: the slot that it hops from, or 0 where it is linked for the first time.
    """
    limit = min(
        max(now.clock, now.read, own) + window.roll_window,
        now.read + 2 * window.slot_count,
    )
    slot = due
    while slot >= limit:
        slot -= window.hop
    return max(slot, now.read)


def schedule(due: int, put: int, window: Window, late: Iterator[int] | None = None) -> list[int]:
    """The slots of all units of a timer, its own the last.

    The read cursor is at the clock. `late`: how many slots after its begin each hop's
    slot is read.
    """
    slots = [next_slot(due, 0, Now(put, put), window)]
    while slots[-1] < due:
        at = slots[-1] + (next(late) if late else 0)
        slots.append(next_slot(due, slots[-1], Now(at, slots[-1]), window))
    return slots


class Life(NamedTuple):
    """What one timer writes from its put to its fire, in bytes."""

    message: int  # as it was put
    fired: int  # its fired copy
    units: int  # of the timer log, the first one included

    @property
    def put(self) -> int:
        """What a put writes: message, queue entry, unit."""
        return self.message + ENTRY_BYTES + UNIT_BYTES

    @property
    def hopped(self) -> int:
        """What its hops write."""
        return (self.units - 1) * UNIT_BYTES

    @property
    def written(self) -> int:
        """All of it, without copies that cleaning makes."""
        return self.put + self.hopped + self.fired + ENTRY_BYTES

    @property
    def times(self) -> float:
        """All of it, over what its put wrote."""
        return self.written / self.put
