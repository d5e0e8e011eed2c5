"""Cursors: where a group stands in a queue, with what became of each entry in between."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from timerstore.calls.consuming import window as win
from timerstore.calls.consuming.window import DONE, HELD, NO_ROOM, OUT, WAITING, Window
from timerstore.jit.kernel import caller_on
from timerstore.jit.lent import lend, new_lent
from timerstore.values.ranges import Ranges, merged

HandedState = Literal["waiting", "handed out", "done"]
_STATES: Final[dict[int, HandedState]] = {
    WAITING: "waiting",
    OUT: "handed out",
    DONE: "done",
    HELD: "waiting",
}
_LENGTH_MIN: Final = 1 << 10


class QueueCursor:
    """Where a group stands in one queue.

    `settle`, `state_of` and the counts need no lock; all other calls are under the group's.
    """

    def __init__(self, row: int, committed: int) -> None:
        self.row = row
        self._rings = [np.zeros(_LENGTH_MIN, np.uint8)]
        self.window = window = Window(
            new_lent(2), length=_LENGTH_MIN, first=committed, next=committed
        )
        lend(window.lent, win.RING, self._rings[0])
        self.ready_place = -1
        """Its place in the ready way of its group; −1: it has none."""
        self._hand_out = caller_on(win.hand_out, window)
        self._mark = caller_on(win.mark, window)
        self._state_at = caller_on(win.state_at, window)
        self._extend = caller_on(win.extend, window)

    @property
    def next(self) -> int:
        """The first index that was never handed out."""
        return self.window.next

    @property
    def committed(self) -> int:
        """The smallest index that is not done."""
        return self.window.first

    @property
    def open_count(self) -> int:
        """How many of those before `next` are not done."""
        window = self.window
        return window.waiting_count + window.out_count + window.held_count

    @property
    def in_flight_count(self) -> int:
        """How many were handed out, and are neither done nor given back."""
        return self.window.out_count

    @property
    def holds_any(self) -> bool:
        """Whether an entry is held, see `hold`: what is done behind it is to be kept."""
        return self.window.held_count > 0

    @property
    def waits_again(self) -> bool:
        """Whether anything waits that was given back, or passed over."""
        return self.window.waiting_count > 0

    def state_of(self, index: int) -> HandedState:
        """Tell what became of one entry. O(1)."""
        return _STATES[self._state_at(index)]

    def has_more(self, topic: str, visible_end: int) -> bool:
        """Tell whether there is anything to hand out."""
        return self.waits_again or visible_end > self.window.next

    def hand_out(self, visible_end: int, count_max: int) -> tuple[int, int]:
        """Return the next run (start, stop); an empty run if nothing is new. O(entries)."""
        while (count := self._hand_out(visible_end, count_max)) == NO_ROOM:
            self._grow(min(visible_end, self.next + count_max))
        start = self.window.told_start  # others may have handed out since, in the ready way
        return start, start + count

    def take(self, index: int) -> bool:
        """Hand out one entry, wherever it stands; False if it is done, or in flight.

        O(entries before it that are not handed out).
        """
        self._pass_over(index + 1, WAITING)
        return self._mark(index, index + 1, OUT) > 0

    def pass_done(self, ranges: Ranges) -> None:
        """Take entries that are not handed out yet for done. O(entries before them)."""
        for start, stop in merged(ranges):
            self._pass_over(start, WAITING)
            self._pass_over(stop, DONE)

    def _pass_over(self, stop: int, state: int) -> None:
        """Have all before `stop` that was never handed out wait, or be done."""
        while stop > self.next and self._extend(stop, state) == NO_ROOM:
            self._grow(stop)

    def settle(self, start: int, stop: int) -> int:
        """Say that entries before `next` are done; return how many were not. O(entries)."""
        return self._mark(start, stop, DONE)

    def hold(self, index: int) -> None:
        """Have an entry that was handed out wait for the next opening: it is damaged."""
        self._mark(index, index + 1, HELD)

    def settle_anywhere(self, index: int) -> bool:
        """Say that an entry is done, handed out or not; tell whether it was not done before.

        O(entries before it that are not handed out).
        """
        self._pass_over(index + 1, WAITING)
        return self.settle(index, index + 1) > 0

    def done_ahead(self) -> list[int]:
        """Return the indexes behind the committed one that are done. O(entries in flight)."""
        return [index for start, stop in self.done_ranges() for index in range(start, stop)]

    def done_ranges(self) -> Ranges:
        """Return what is done behind the committed index. O(entries from there)."""
        window, first = self.window, self.committed
        copied = np.zeros(self.next - first, np.uint8)  # `next` is read later: it is not below
        lend(window.lent, win.OTHER, copied)
        count = caller_on(win.copy_states, window)(len(copied))
        is_done = np.zeros(count + 2, np.int8)
        is_done[1:-1] = copied[:count] == DONE
        edges = window.told_start + np.flatnonzero(np.diff(is_done))
        return [(start, stop) for start, stop in edges.reshape(-1, 2).tolist()]

    def take_back(self, topic: str, start: int, stop: int) -> None:
        """Take back entries that were handed out, but not used."""
        self._mark(start, stop, WAITING)

    def _grow(self, stop: int) -> None:
        """Make room for all entries before `stop`."""
        window = self.window
        length = 1 << (stop - window.first - 1).bit_length()
        if length > window.length:
            self._rings.append(np.zeros(length, np.uint8))
            lend(window.lent, win.OTHER, self._rings[-1])
            caller_on(win.move, window)(length)
            del self._rings[:-1]  # if a signal comes before, both are kept
