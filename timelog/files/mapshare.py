"""How many segments of a store stay mapped: each until it is removed, up to a share."""

from __future__ import annotations

import itertools
from heapq import nsmallest
from typing import Protocol

from timerstore.timelog.files.segmenttable import TABLE_LENGTH


class Mapped(Protocol):
    """A log, as it is seen from here."""

    segment_bytes: int

    @property
    def end(self) -> int:
        """The append position."""

    def retire(self, number: int) -> None:
        """Drop the map of a full segment."""


class MapShare:
    """The maps of one store: beyond a number, those are dropped that were used the longest ago.

    Segments from a log's end on do not count: an append may come to any of them.
    """

    def __init__(self, count_max: int = TABLE_LENGTH) -> None:
        """`count_max`: so many stay mapped."""
        self.count_max = count_max
        self.clock = itertools.count(1)
        self.used: dict[tuple[Mapped, int], int] = {}
        """When Python used each map last, by `clock`."""
        self._at_ends = 0  # how many did not count when somebody looked last

    @property
    def is_used_up(self) -> bool:
        """Whether the next map may have another one dropped."""
        return len(self.used) >= self.count_max + self._at_ends

    def keep(self) -> None:
        """Drop what is beyond the share. O(1) until it is used up, then O(maps).

        Services call it before they map what they need next, and the flush thread; no reader does:
        any number of them would drop what a service has mapped before it has looked.
        """
        if len(self.used) <= self.count_max + self._at_ends:
            return
        used = self.used.copy()
        full = [(file, n) for file, n in used if n < file.end // file.segment_bytes]
        self._at_ends = len(used) - len(full)
        for file, number in nsmallest(len(full) - self.count_max, full, key=used.__getitem__):
            file.retire(number)
