"""A log over segment files: a row of mapped files that together are one long byte sequence.

An *offset* is a position in the whole sequence. Kernels find a byte through a `SegmentTable`
(segmenttable.py). Ground rules: only Python maps or drops a segment, under `SegmentedFile.lock`;
the table's entry is written before a kernel is told of it. A segment is unmapped when the last
reference to its `MappedFile` goes, so whoever runs a kernel without the lock first takes `pin`, or
runs it inside `reading`, which keeps every map that is dropped meanwhile. The services' threads can
do neither; therefore what is dropped is kept until `take_retired`, and let go once no step is under
way that may still look into it.

A file has its whole length from the beginning, but its blocks are allocated ahead of whoever
writes, in steps that grow with the rate. Who writes to a place that was never written to asks
`can_write` before, or `reserve`s it: a write into a hole of a full disk is a SIGBUS, and so is one
beside a hole, where the page cache keeps both in one folio (`mapping.open_pages`).
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from timerstore.errors import (
    CorruptStoreError,
    FlushFailedError,
    NotAStoreError,
    StoreFullError,
)
from timerstore.timelog.disk import Disk, MappedFile, Zeros
from timerstore.timelog.format import SEGMENT_NAME_DIGITS
from timerstore.timelog.mapping import PAGE_BYTES
from timerstore.timelog.nonzero import used_pages
from timerstore.timelog.record import Bytes, Words
from timerstore.timelog.segmenttable import (
    ALL_ZEROED,
    APRON,
    END,
    SEGMENT_BYTES,
    TABLE_LENGTH,
    SegmentTable,
    apron_bytes,
    leave,
)

Detached = list[tuple[Path, MappedFile | None]]
"""Segments that are forgotten and still to be removed, the oldest first."""
STEP_BYTES_MAX: Final = 1 << 20
AHEAD_TICKS: Final = 64
"""What is written in so many ticks of the flush thread, three seconds, is allocated ahead."""


def step_bytes(segment_bytes: int) -> int:
    """Return how much is allocated ahead where little is written: a 64th of a segment."""
    return min(max(segment_bytes // 64, PAGE_BYTES), STEP_BYTES_MAX, segment_bytes)


def segment_name(offset: int) -> str:
    """Return the file name of the segment that starts at `offset`."""
    return f"{offset:0{SEGMENT_NAME_DIGITS}d}"


class SegmentedFile:
    """A folder of segment files of one size."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        segment_bytes: int,
        *,
        open_count_max: int,
        for_kernels: bool = True,
        is_gone: bool = False,
        name: str = "",
    ) -> None:
        """List the segments that exist; none is mapped yet. With `is_gone` there are none.

        `name`: what errors call it; the folder's where there is none. `for_kernels`: whether they
        look segments up in its table. A whole one takes half a megabyte, and there is a consume
        queue for each topic.
        """
        self.disk, self.folder, self.segment_bytes = disk, folder, segment_bytes
        self.open_count_max = open_count_max
        self.name = name or folder.name
        self.flushed_end = 0
        """Everything before this offset was made durable by an earlier life."""
        self.gaps_are_zeros = False
        """True: a segment that is missing between two reads as zeros; no message begins there."""
        self.lock = threading.RLock()
        self.for_kernels = for_kernels
        table_length = TABLE_LENGTH if for_kernels else 1
        self.table = SegmentTable(
            np.zeros(8, np.int64),
            np.zeros(table_length, np.int64),
            np.full(table_length, -1, np.int64),
            np.full(table_length, ALL_ZEROED, np.int64),
            np.zeros(table_length, np.int64),
            np.zeros(table_length, np.int64),
        )
        self.table.words[SEGMENT_BYTES] = segment_bytes
        self.table.words[APRON] = apron_bytes(segment_bytes)
        self._mapped: dict[int, MappedFile] = {}
        self._clock = itertools.count(1)
        self._used: dict[int, int] = {}  # when Python used a map last, by `_clock`
        self._block_bytes_seen: dict[int, int] = {}  # of those that are not mapped
        self._names_made = self._names_synced = 0  # how many names of segments there were
        self._closed = False
        self._readers: set[object] = set()
        self._retired: list[MappedFile] = []  # dropped while somebody was reading
        self._alive = weakref.WeakSet[MappedFile]()  # all maps that somebody still has
        self.reusable_from = ALL_ZEROED
        """No segment before this number is used again; a broker may have written it."""
        self.ahead_max = 0
        """So many segments behind the one at the log's end are worth keeping."""
        self.reused_count = 0
        self._ahead_bytes = step_bytes(segment_bytes)
        """So much is allocated ahead of the log's end; a segment at most."""
        self._seen_end = -1  # the log's end at the last tick
        self.numbers: list[int] = [] if is_gone else sorted(self._list())

    def _list(self) -> Iterator[int]:
        for name in self.disk.names(self.folder):
            path = self.folder / name
            if len(name) != SEGMENT_NAME_DIGITS or not name.isdigit():
                raise NotAStoreError(f"{path} is no segment. Move it out of the store.")
            if int(name) % self.segment_bytes:
                raise NotAStoreError(
                    f"{path} does not start at a multiple of {self.segment_bytes} bytes. "
                    "Open the store with the segment sizes it was made with."
                )
            yield int(name) // self.segment_bytes

    # --- where the log begins and ends

    @property
    def start(self) -> int:
        """Offset of the first byte that is kept."""
        return self.numbers[0] * self.segment_bytes if self.numbers else 0

    @property
    def files_end(self) -> int:
        """Offset behind the last segment file."""
        return (self.numbers[-1] + 1) * self.segment_bytes if self.numbers else 0

    @property
    def end(self) -> int:
        """The append position."""
        return int(self.table.words[END])

    @end.setter
    def end(self, offset: int) -> None:
        self.table.words[END] = offset

    @property
    def disk_bytes(self) -> int:
        """Bytes that all segment files take of the disk. O(segments)."""
        return sum(map(self._block_bytes, self.numbers.copy()))

    def _block_bytes(self, number: int) -> int:
        file = self._mapped.get(number)
        if file is None and number in self._block_bytes_seen:  # it is written to no more
            return self._block_bytes_seen[number]
        if file is None or file.allocated_bytes < self.segment_bytes:
            seen = min(self.disk.block_bytes(self.path(number)), self.segment_bytes)
            self._block_bytes_seen[number] = seen
            return max(seen, 0 if file is None else file.allocated_bytes)
        return self.segment_bytes

    def path(self, number: int) -> Path:
        """Return the path of a segment."""
        return self.folder / segment_name(number * self.segment_bytes)

    # --- what is lost

    def _check_length(self, number: int) -> None:
        """Raise CorruptStoreError where a segment's file is shorter than it was made, or longer."""
        path = self.path(number)
        size = self.disk.size(path)
        if size != self.segment_bytes:
            reason = f"{path.name} has {size} bytes where {self.segment_bytes} were flushed"
            offset = number * self.segment_bytes + min(size, self.segment_bytes)
            raise CorruptStoreError(self.name, offset, reason)

    def forget_unmade(self) -> None:
        """Forget the last segment if its file is empty: a process ended while it was made.

        Nothing was ever written to it. Whoever needs it makes it again.
        """
        if self.numbers and self.disk.size(self.path(self.numbers[-1])) == 0:
            self.numbers.pop()

    def find_lost(self, *, whole: bool = False) -> CorruptStoreError | None:
        """Say which file before `flushed_end` is missing or too short; O(segments).

        With `whole` each file that is there must have its full length.
        """
        stop = self.files_end if whole else self.flushed_end
        offset = self.start
        for number in self.numbers:
            if number * self.segment_bytes >= stop:
                return None
            if number * self.segment_bytes != offset:
                return CorruptStoreError(self.name, offset, "this segment is missing")
            try:
                self._check_length(number)
            except CorruptStoreError as e:
                return e
            offset += self.segment_bytes
        if offset < stop:
            return CorruptStoreError(self.name, offset, "this segment is missing")
        return None

    # --- mapping

    def ensure(self, number: int) -> MappedFile:
        """Map a segment, creating it if it does not exist."""
        with self.lock:
            file = self._mapped.get(number)
            if file is None or isinstance(file, Zeros):
                if number in self.numbers:
                    if number * self.segment_bytes < max(self.flushed_end, self.end):
                        self._check_length(number)
                    file = self.disk.map_existing(self.path(number), self.segment_bytes)
                else:
                    self.disk.make_folder(self.folder)
                    file = self.disk.create_mapped(self.path(number), self.segment_bytes)
                    self.table.zeroed[number % len(self.table.number)] = ALL_ZEROED
                    self.numbers.append(number)
                    self.numbers.sort()
                    self._names_made += 1
                # First kept, then told to kernels: a signal may fall between any two steps.
                self._mapped[number] = file
                self._alive.add(file)
            self._enter(number, file)
            return file

    def _enter(self, number: int, file: MappedFile) -> None:
        """Tell kernels where a segment is mapped."""
        slot = number % len(self.table.number)
        self.table.allocated[slot] = number * self.segment_bytes + file.allocated_bytes
        self.table.address[slot] = file.address  # which may have been that of zeros in its place
        self.table.number[slot] = number
        self._used[number] = next(self._clock)

    def reserve(self, start: int, stop: int) -> None:
        """Let bytes [start, stop) be written to at once. Raises StoreFullError."""
        with self.lock:
            self._allocate(start, stop)
            for number in range(start // self.segment_bytes, -(-stop // self.segment_bytes)):
                first = number * self.segment_bytes
                last = min(stop - first, self.segment_bytes)
                self.disk.open_pages(self.ensure(number), max(0, start - first), last)

    def _allocate(self, start: int, stop: int) -> None:
        """Have the blocks of bytes up to `stop`, in the segments from that of `start` on.

        These are mapped, or made, and allocated from their beginning on. Raises StoreFullError.
        """
        with self.lock:
            for number in range(start // self.segment_bytes, -(-stop // self.segment_bytes)):
                file = self.ensure(number)
                wanted = min(stop - number * self.segment_bytes, self.segment_bytes)
                if file.allocated_bytes < wanted:
                    pages = -(-wanted // PAGE_BYTES) * PAGE_BYTES
                    self.disk.allocate(file, min(pages, self.segment_bytes))
                    self._enter(number, file)

    def _allocate_ahead(self, least: int, wanted: int) -> None:
        """Have the blocks from the log's end up to `wanted`, or as far as there is room.

        Raises StoreFullError where there is none up to `least`.
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
        stop = (self.end // self.segment_bytes + 1) * self.segment_bytes
        self.ensure(self.end // self.segment_bytes)
        with suppress(
            StoreFullError
        ):  # whoever writes there is told, and a full disk can be opened
            self._allocate(self.end, min(self.end + count, stop))

    def _room_end(self, offset: int) -> int:
        """Return up to where all is allocated from `offset` on."""
        while (file := self._mapped.get(offset // self.segment_bytes)) is not None:
            start = offset // self.segment_bytes * self.segment_bytes
            if file.allocated_bytes < self.segment_bytes:
                return max(offset, start + file.allocated_bytes)
            offset = start + self.segment_bytes
        return offset

    def existing(self, number: int) -> MappedFile:
        """Map a segment that must exist."""
        file = self._mapped.get(number)
        if file is not None:
            self._used[number] = next(self._clock)
            return file  # without the lock, which is held for long while a segment is being made
        with self.lock:
            if number not in self.numbers:
                if self.gaps_are_zeros and self.numbers:
                    if self.numbers[0] < number < self.numbers[-1]:
                        return self.readable(number)
                offset = number * self.segment_bytes
                raise CorruptStoreError(self.name, offset, "this segment is missing")
            return self.ensure(number)

    def readable(self, number: int) -> MappedFile:
        """Map a segment to be read; zeros in its place where it is missing."""
        with self.lock:
            if number in self.numbers:
                return self.existing(number)
            file = self._mapped.get(number)
            if file is None:
                file = self._mapped[number] = Zeros(self.path(number), self.segment_bytes)
                slot = number % len(self.table.number)
                self.table.allocated[slot] = 0
                self.table.address[slot] = file.address
                self.table.number[slot] = number
            self._used[number] = next(self._clock)
            return file

    def pin(self, start: int, stop: int) -> list[MappedFile]:
        """Map all segments with offsets in [start, stop); they stay mapped while referenced."""
        first, last = start // self.segment_bytes, max(start, stop - 1) // self.segment_bytes
        return [self.existing(number) for number in range(first, last + 1)]

    def view(self, offset: int) -> Bytes:
        """Return the bytes from `offset` to its segment's end, as a view that is kept alive."""
        number, position = divmod(offset, self.segment_bytes)
        return self.existing(number).part(position)

    def used_end(self) -> int:
        """Return the offset behind which there are holes alone, which read as zeros."""
        for number in reversed(self.numbers):
            used = self.disk.used_ranges(self.existing(number))
            if used:
                return number * self.segment_bytes + used[-1][1]
        return self.start

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of bytes that may cross segments."""
        parts = []
        while count > 0:
            part = self.view(offset)[:count].tobytes()
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)

    def trim(self) -> None:
        """Drop the maps that were unused the longest, down to the limit. See the ground rules."""
        with self.lock:
            keep = {self.end // self.segment_bytes, self.end // self.segment_bytes + 1}
            for number in sorted(self._mapped, key=lambda each: self._used.get(each, 0)):
                if len(self._mapped) <= self.open_count_max:
                    return
                if number not in keep:
                    self._unmap(number)

    def drop(self, number: int) -> None:
        """Drop one map that no kernel looks up; whoever reads it keeps it alive."""
        with self.lock:
            file = self._mapped.get(number)
            if file is not None and not file.keeps_changes:
                self._unmap(number)

    def reading(self) -> Reading:
        """Keep maps that are dropped meanwhile, for a kernel that looks segments up itself."""
        return Reading(self)

    def take_retired(self) -> list[MappedFile]:
        """Return the maps that were dropped, to be let go once no step of a service is under way
        that began before; none while somebody reads.
        """
        with self.lock:
            if self._readers:
                return []
            retired, self._retired = self._retired, []
            return retired

    def _forget(self, number: int) -> MappedFile | None:
        """Take a segment out of the table; it is unmapped with the last reference."""
        self._used.pop(number, None)
        self._block_bytes_seen.pop(number, None)
        file = self._mapped.get(number)
        if file is not None:
            slot = number % len(self.table.number)
            if self.table.number[slot] == number:
                self.table.number[slot] = -1
                self.table.allocated[slot] = 0
            if self._readers or self.for_kernels:
                self._retired.append(file)  # a kernel may be looking into it; see `take_retired`
            del self._mapped[number]
        return file

    def _unmap(self, number: int) -> None:
        # What was written must be durable before it is forgotten: `flush` takes what is not mapped
        # for durable.
        self.disk.sync(self._mapped[number], self.path(number))
        self._forget(number)

    # --- growing, shrinking, flushing

    def make_room(self, stop: int) -> None:
        """Let whoever appends write up to `stop`, and further within that segment.

        Each time somebody had to wait for that, the next step is twice as long.
        """
        with self.lock:
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
        the segment behind the current one once that is half full.
        """
        end = self.end
        written, self._seen_end = (end - self._seen_end if self._seen_end >= 0 else 0), end
        least = step_bytes(self.segment_bytes)
        fading = self._ahead_bytes * 15 // 16  # a tick without a put says little
        self._ahead_bytes = min(max(AHEAD_TICKS * written, fading, least), self.segment_bytes)
        number, position = divmod(end, self.segment_bytes)
        for each in (number, number + 1):  # what was opened until now may be written back by now
            self.table.opened[each % len(self.table.opened)] = 0
        if number not in self._mapped:
            return
        stop, wanted = (number + 1) * self.segment_bytes, end + self._ahead_bytes
        if 2 * position >= self.segment_bytes:
            self.ensure(number + 1)
            stop += self.segment_bytes
        if self._room_end(end) < min(end + self._ahead_bytes // 2, stop):
            self._allocate_ahead(min(end + least, stop), min(wanted, stop))

    def detach_before(self, offset: int) -> Detached:
        """Forget the segments that end at or before `offset`; give the result to `remove`.

        See the ground rules: it is quick, for the thread that stays in a kernel waits for it.
        """
        detached = []
        with self.lock:
            while self.numbers and (self.numbers[0] + 1) * self.segment_bytes <= offset:
                number = self.numbers.pop(0)
                detached.append((self.path(number), self._forget(number)))
        return detached

    def remove(self, detached: Detached) -> None:
        """Remove detached segments, the oldest first, each durably before the next.

        So a crash at any point leaves a log without a gap, which begins somewhat earlier. What is
        gone is taken off the list; where this raises, the rest is to be removed before any other.
        One that may be used again, and is wanted, becomes the log's last segment instead.
        """
        while detached:
            path = detached[0][0]
            detached[0] = path, None  # our own reference goes first
            if not self._reuse(path):
                self.disk.remove(path)
                self.disk.sync_folder(self.folder)
            detached.pop(0)

    def _reuse(self, path: Path) -> bool:
        """Make the file of a removed segment the one behind the log's last; False where it must
        not be, or is not wanted. O(1), with a sync of the folder.

        Its new name is durable before a byte is written to it: were its old name to come back in a
        power cut, it would hold what does not belong there. Its head is zeroed before any kernel
        finds it, the rest by the appender as it goes (`append.py`).
        """
        with self.lock:
            number = self.numbers[-1] + 1 if self.numbers else 0
            ahead = number - 1 - self.end // self.segment_bytes
            old = int(path.name) // self.segment_bytes
            if old < self.reusable_from or ahead >= self.ahead_max or not self.numbers:
                return False
            if any(file.path == path for file in self._alive) or not path.exists():
                return False
            file = self.disk.map_existing(path, self.segment_bytes)
            try:
                self.disk.allocate(file, self.segment_bytes)
            except StoreFullError:  # it makes room by going
                return False
            if not self.disk.take_over(path, self.path(number)):
                return False
            file.path = self.path(number)
            head_bytes = apron_bytes(self.segment_bytes)
            file.view[:head_bytes] = 0
            start = number * self.segment_bytes
            self.table.zeroed[number % len(self.table.number)] = start + head_bytes
            self._mapped[number] = file
            self._alive.add(file)
            self.numbers.append(number)
            self._enter(number, file)
            self.reused_count += 1
            return True

    def drop_last(self, ahead_max: int, lock: Words, reach_bytes: int) -> bool:
        """Remove the last segment, where more than `ahead_max` lie behind the one at the log's end.

        `lock`: the append lock's words. `reach_bytes`: how far behind the log's end whoever appends
        may look without it; a segment that is that near stays. O(1), with a sync of the folder.
        """
        with self.lock:
            number = self.numbers[-1] if self.numbers else 0
            if number - self.end // self.segment_bytes <= ahead_max:
                return False
            if not leave(self.table, lock, number, reach_bytes):
                return False
            file = self._forget(number)
            self.numbers.pop()
        del file
        self.disk.remove(self.path(number))
        self.disk.sync_folder(self.folder)
        return True

    def clear_behind(self) -> None:
        """Leave nothing of an earlier use behind the log's end, durably; while nobody appends.

        It costs what is left of the last segment, where that was used before; else nothing.
        """
        with self.lock:
            last = self.end // self.segment_bytes
            for number in reversed(self.numbers):
                if number > last and not self._is_zeroed(number):
                    self._remove(number)
            if last in self.numbers and not self._is_zeroed(last):
                file = self.existing(last)
                file.view[self.end - last * self.segment_bytes :] = 0
                self.disk.sync(file, file.path)

    def _remove(self, number: int) -> None:
        """Remove a segment, durably; while nobody appends or reads."""
        self._forget(number)
        self.numbers.remove(number)
        self.disk.remove(self.path(number))
        self.disk.sync_folder(self.folder)

    def _is_zeroed(self, number: int) -> bool:
        """Tell whether all of a segment that lies behind the log's end is zeros."""
        zeroed = int(self.table.zeroed[number % len(self.table.number)])
        return zeroed >= (number + 1) * self.segment_bytes

    def distrust(self, offset: int) -> None:
        """Take nothing behind `offset` for zeros: the appender zeroes it as it goes."""
        for number in self.numbers:
            if (number + 1) * self.segment_bytes > offset:
                start = max(offset, number * self.segment_bytes)
                self.table.zeroed[number % len(self.table.number)] = start

    def zero_from(self, offset: int) -> None:
        """Zero all bytes from `offset` to the end of the last segment, and make that durable."""
        for number in list(self.numbers):
            start = number * self.segment_bytes
            if start + self.segment_bytes <= offset:
                continue
            file = self.existing(number)
            for first, last in self.disk.used_ranges(file):
                for used in used_pages(file.view[:last], max(first, offset - start)):
                    self.disk.open_pages(file, used.start, used.stop)
                    file.view[used] = 0
            self.disk.sync(file, file.path)

    def cut_from(self, offset: int) -> None:
        """Leave zeros alone from `offset` on, durably: what a crash has undone must not come back.

        Segments behind the one that `offset` lies in are removed, the last first, where they hold
        anything; so none of them is missed.
        """
        for number in reversed(self.numbers.copy()):
            if number * self.segment_bytes <= offset:
                break
            file = self.existing(number)
            if any(file.view[first:last].any() for first, last in self.disk.used_ranges(file)):
                del file
                self._remove(number)
        self.zero_from(offset)

    def flush(self, start: int, stop: int) -> None:
        """Make the bytes in [start, stop) durable, and the names of new segments."""
        if stop > start:
            if self._closed:
                raise FlushFailedError(f"{self.folder} was closed before all of it was durable.")
            for number in range(start // self.segment_bytes, (stop - 1) // self.segment_bytes + 1):
                file = self._mapped.get(number)
                if file is not None:  # what is not mapped was synced when it was unmapped
                    first = number * self.segment_bytes
                    file.unfault(max(start - first, 0), min(stop - first, self.segment_bytes))
                    self.disk.sync(file, file.path)
        made = self._names_made  # before it: a name that is made meanwhile counts again
        if made != self._names_synced:
            self.disk.sync_folder(self.folder)
            self._names_synced = made

    def close(self) -> None:
        """Drop all maps without flushing."""
        with self.lock:
            self._closed = True
            self.table.number[:] = -1
            self._mapped.clear()


class Reading:
    """A reader of a log: while one is inside, what is dropped stays mapped."""

    __slots__ = ("_file",)

    def __init__(self, file: SegmentedFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        # No lock, which is held for long while a segment is being made: an addition is one step.
        try:
            self._file._readers.add(self)
        except BaseException:  # a signal's: then there is no block that ends
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        file = self._file
        file._readers.discard(self)
        if not (file._readers or file.for_kernels):
            file._retired.clear()
