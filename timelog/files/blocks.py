"""The blocks of a log: allocated ahead of its writer, opened before a write, counted.

A file has its whole length from the beginning; a block it gets in steps that grow with the rate.

A step is a 64th of a segment (4 KiB to 1 MiB), or what is written in three seconds, up to a whole
segment. `append` and enqueue-put look how far there are blocks before they write; if there are none
left, they stop with a need, as for a segment that is not mapped. So a full disk is an error that
waits for room, never a SIGBUS.

Blocks alone are not enough for that. XFS, and ext4 since Linux 6.16, keep files in folios of up to
2 MiB, and making one page of a folio writable asks for room for all of it. So in a segment without
all its blocks, the writer has the system open the pages first (`MADV_POPULATE_WRITE`), which gives
an error if the write would be a SIGBUS. Not taken: `MADV_RANDOM` (it does not keep other readers
from making large folios), granting whole folios (200 topics would take 270 MB instead of 7),
`pwrite` (a system call and a second copy for each message).

A block that was never written to reads as zeros. The first touch of one of its pages has the system
make those zeros, and as many more as it reads ahead, 4 MiB if a disk is set so: 20 ms in which the
writer stands still. So the flush thread has it read what is written next (`prepare_next`).

A message leaves 24 bytes free behind it, a unit 16, so that a segment can always be closed. Opening
asks for no more than those bytes, and does without if there are none. Allocating asks first whether
there is room, because a file system may keep what it got when it fails half-way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Final

from timerstore.errors import StoreFullError
from timerstore.jit.guards import RLock
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.segmenttable import SegmentTable

STEP_BYTES_MAX: Final = 1 << 20
AHEAD_TICKS: Final = 64
"""What is written in so many ticks of the flush thread, three seconds, is allocated ahead."""
CACHED_BYTES_MAX: Final = 2 << 20
"""So much is read ahead in a tick; who writes more than some 40 MB/s has the system do it.

Linux may read less, if its own steps are shorter: then a first touch takes less, too.
"""


def step_bytes(segment_bytes: int) -> int:
    """Return how much is allocated ahead if little is written: a 64th of a segment."""
    return min(max(segment_bytes // 64, PAGE_BYTES), STEP_BYTES_MAX, segment_bytes)


class Blocks(ABC):
    """What `SegmentedFile` does about blocks."""

    disk: Disk
    segment_bytes: int
    lock: RLock
    numbers: list[int]
    shared_table: SegmentTable
    _mapped: dict[int, MappedFile]
    _block_bytes_seen: dict[int, int]
    _ahead_bytes: int
    _seen_end: int
    _cached_end: int
    _random_stop: int

    @property
    @abstractmethod
    def end(self) -> int:
        """The append position."""

    @abstractmethod
    def path(self, number: int) -> Path:
        """Return the path of a segment."""

    @abstractmethod
    def ensure(self, number: int) -> MappedFile:
        """Map a segment, creating it if it does not exist."""

    @abstractmethod
    def expect_random_reads(self) -> None:
        """Have a page of a segment before the last read alone if it is missing."""

    @abstractmethod
    def _enter(self, number: int, file: MappedFile) -> None:
        """Tell kernels where a segment is mapped."""

    @property
    def disk_bytes(self) -> int:
        """Bytes that all segment files take of the disk. O(segments)."""
        return sum(map(self._block_bytes, self.numbers.copy()))

    def _block_bytes(self, number: int) -> int:
        if not self.disk.writes:  # its maps are private, and take nothing of the disk
            return min(self.disk.block_bytes(self.path(number)), self.segment_bytes)
        file = self._mapped.get(number)
        if file is None and number in self._block_bytes_seen:  # it is not written to any more
            return self._block_bytes_seen[number]
        if file is None or file.allocated_bytes < self.segment_bytes:
            seen = min(self.disk.block_bytes(self.path(number)), self.segment_bytes)
            self._block_bytes_seen[number] = seen
            return max(seen, 0 if file is None else file.allocated_bytes)
        return self.segment_bytes

    def reserve(self, start: int, stop: int) -> None:
        """Let bytes [start, stop) be written to at once. Raises StoreFullError."""
        with self.lock.guard():
            self._allocate(start, stop)
            for number in range(start // self.segment_bytes, -(-stop // self.segment_bytes)):
                first = number * self.segment_bytes
                last = min(stop - first, self.segment_bytes)
                self.disk.open_pages(self.ensure(number), max(0, start - first), last)

    def _allocate(self, start: int, stop: int) -> None:
        """Have the blocks of bytes up to `stop`, in the segments from that of `start` on.

        These are mapped, or made, and allocated from their beginning on. Raises StoreFullError.
        """
        with self.lock.guard():
            for number in range(start // self.segment_bytes, -(-stop // self.segment_bytes)):
                file = self.ensure(number)
                wanted = min(stop - number * self.segment_bytes, self.segment_bytes)
                if file.allocated_bytes < wanted:
                    pages = -(-wanted // PAGE_BYTES) * PAGE_BYTES
                    self.disk.allocate(file, min(pages, self.segment_bytes))
                    self._enter(number, file)

    def _allocate_ahead(self, least: int, wanted: int) -> None:
        """Have the blocks from the log's end up to `wanted`, or as far as there is room.

        Raises StoreFullError if there is none up to `least`.
        """
        while True:
            try:
                return self._allocate(self.end, wanted)
            except StoreFullError:
                if wanted <= least:
                    raise
                wanted = max(least, (self.end + wanted) // 2)

    def prepare_end(self, count: int) -> None:
        """Map the segment at the log's end, with blocks for `count` bytes if there is room."""
        with self.lock.guard():  # see `prepare_next`
            end = self.end
            stop = (end // self.segment_bytes + 1) * self.segment_bytes
            self.ensure(end // self.segment_bytes)
            with suppress(StoreFullError):  # who writes there is told; a full disk can be opened
                self._allocate(end, min(end + count, stop))

    def _room_end(self, offset: int) -> int:
        """Return the offset up to which all is allocated from `offset` on."""
        while (file := self._mapped.get(offset // self.segment_bytes)) is not None:
            start = offset // self.segment_bytes * self.segment_bytes
            if file.allocated_bytes < self.segment_bytes:
                return max(offset, start + file.allocated_bytes)
            offset = start + self.segment_bytes
        return offset

    def make_room(self, stop: int) -> None:
        """Let appends write up to `stop`, and further within that segment.

        Each time somebody had to wait for that, the next step is twice as long.
        """
        with self.lock.guard():
            if self._room_end(self.end) >= stop:
                self.reserve(self.end, stop)
                return
            last = -(-stop // self.segment_bytes) * self.segment_bytes
            step, self._ahead_bytes = self._ahead_bytes, step_bytes(self.segment_bytes)
            self._allocate_ahead(stop, min(max(stop, self.end + step), last))
            self.reserve(self.end, stop)
            self._ahead_bytes = min(2 * step, self.segment_bytes)

    def prepare_next(self) -> None:
        """Allocate ahead of the log's end what is written in AHEAD_TICKS calls of this, and create
        the segment behind the current one once that is half full; then read some of it ahead.

        Segments are made under the lock, as all that makes one at the log's end: else, while it
        waits for the lock, the end may move on and that segment be removed, and it would be made
        again.
        """
        with self.lock.guard():
            self._prepare_next(self.end)
        self._read_next()

    def _read_next(self) -> None:
        """Have the page cache hold more of what is written next. It takes milliseconds: no lock."""
        end = self.end
        start = max(end, self._cached_end)
        number, position = divmod(start, self.segment_bytes)
        file, ready = self._mapped.get(number), self._room_end(start) - start
        count = min(ready, end + self._ahead_bytes - start, CACHED_BYTES_MAX)
        count = min(count, self.segment_bytes - position)
        if file is not None and count > 0 and self.disk.writes:
            self.disk.read_ahead(file, position, position + count)
            self._cached_end = start + count

    def _prepare_next(self, end: int) -> None:
        written, self._seen_end = (end - self._seen_end if self._seen_end >= 0 else 0), end
        least = step_bytes(self.segment_bytes)
        fading = self._ahead_bytes * 15 // 16  # a tick without a put says little
        self._ahead_bytes = min(max(AHEAD_TICKS * written, fading, least), self.segment_bytes)
        number, position = divmod(end, self.segment_bytes)
        for each in (number, number + 1):  # what was opened until now may be written back by now
            self.shared_table.opened[each % len(self.shared_table.opened)] = 0
        if number > self._random_stop >= 0:
            self.expect_random_reads()
        if number not in self._mapped:
            return
        stop, wanted = (number + 1) * self.segment_bytes, end + self._ahead_bytes
        if 2 * position >= self.segment_bytes:
            self.ensure(number + 1)
            stop += self.segment_bytes
        if self._room_end(end) < min(end + self._ahead_bytes // 2, stop):
            self._allocate_ahead(min(end + least, stop), min(wanted, stop))
