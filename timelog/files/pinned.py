"""Pinned segments: a separate table, in which all that was asked for stays mapped.

It is for listings, which look at many segments in turn, and copy texts by their places after the
messages were read. `SegmentedFile.reading` costs less, and is for calls that look at one or two.
"""

from __future__ import annotations

from typing import Final

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.timelog.files.disk import MappedFile
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import SegmentTable, enter_segment, new_segment_table

_NEAR_COUNT: Final = 4
_DENSE_BYTES: Final = 16 << 10
"""If what is wanted lies so near together, what is between is read with it, in the disk's order."""


class PinnedLog:
    """A log whose segments stay mapped while they are read, even if others drop them."""

    def __init__(self, log: SegmentedFile) -> None:
        """Begin with nothing mapped. It costs some 0.1 ms."""
        self._log = log
        self.table: SegmentTable = new_segment_table(log.segment_bytes)
        self._pins: dict[int, MappedFile] = {}

    def pin(self, offsets: Words) -> None:
        """Map the segments of these offsets, and no other, as far as they are still there.

        Raises CorruptStoreError if one is missing that was not removed as done with.
        """
        first, last = (
            int(each) // self._log.segment_bytes for each in (offsets.min(), offsets.max())
        )
        wanted = list(range(first, last + 1))
        if len(wanted) > _NEAR_COUNT:
            wanted = sorted(set((offsets // self._log.segment_bytes).tolist()))
        self._pin(wanted)

    def map_from(self, offset: int, wanted: Words | None = None) -> bool:
        """Map the segment of an offset, and the one behind, no other; False if it was removed.

        So a reader that comes to the end of the one can go on in the other. `wanted`: the offsets
        of all that is read of the segment, sorted; all of it, if they are not given. Unless they
        lie far from each other the segment is read ahead.
        """
        size = self._log.segment_bytes
        number = offset // size
        self._pin([number, number + 1] if number + 1 in self._log.numbers else [number])
        if number not in self._pins:
            return False
        first, last = number * size, (number + 1) * size
        if wanted is not None:
            first, last = int(wanted[0]), int(wanted[-1])
        if wanted is None or last - first <= len(wanted) * _DENSE_BYTES:
            self._log.read_ahead(first, last)
        return True

    def _pin(self, wanted: list[int]) -> None:
        for number in set(self._pins).difference(wanted):
            self.table.number[number % len(self.table.number)] = -1
            del self._pins[number]
        for number in wanted:
            if number in self._pins:
                continue
            try:
                file = self._pins[number] = self._log.existing(number)
            except CorruptStoreError:
                if (number + 1) * self._log.segment_bytes > self._log.start:
                    raise
                continue  # fired, consumed and removed since
            enter_segment(self.table, number, file.view)
