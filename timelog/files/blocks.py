"""The segments of a log that are mapped; their blocks, allocated ahead of the writer, and counted.

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

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from timerstore.errors import CorruptStoreError, FlushFailedError, NotAStoreError, StoreFullError
from timerstore.jit.guards import RLock
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.mapping import PAGE_BYTES, MapOwner, leave_to_parent
from timerstore.jit.record import begin_reading, end_reading
from timerstore.timelog.files.disk import Disk, MappedFile, Zeros
from timerstore.timelog.files.memory import MapShare
from timerstore.timelog.files.names import segment_name, segment_offset
from timerstore.timelog.files.segmenttable import (
    ALL_ZEROED,
    TABLE_LENGTH,
    SegmentTable,
    apron_bytes,
    enter_segment,
    new_segment_table,
)

# --- Epochs: what is taken out of a table stays alive until nobody can be looking at it any more.
#
# A table says where segments are mapped. A kernel that found one there goes on looking at it,
# without the GIL, after another thread took it out. So the caller of such a kernel holds the epoch
# in which it began, and an epoch holds what was taken out in it, or later. Only the references
# decide: nothing has to be given back, even if a signal interrupts.
#
# A step of a service holds no epoch. So an epoch that has ended is kept besides, from `seal` until
# `release`; in between somebody waits until no step is under way that began before.


class Epoch:
    """A span of time; it holds what was taken out in it, and through `next` what was later.

    A block of `with` holds it, and is given the table. What is taken out meanwhile stays mapped
    until the block ends. The table may lose an entry at any moment: a kernel looks a segment up
    once, and what it does not find is to be mapped again.
    """

    __slots__ = ("__weakref__", "held", "next", "table")

    def __init__(self, table: SegmentTable) -> None:
        self.table = table
        self.held: list[object] = []
        self.next: Epoch | None = None

    def __enter__(self) -> SegmentTable:
        if INTERPRETED:
            begin_reading(self.table)
        return self.table

    def __exit__(self, *error: object) -> None:
        if INTERPRETED:
            end_reading(self.table)


class Epochs:
    """The epochs of one table: anybody may hold `now`; its owner makes all calls under a lock."""

    def __init__(self, table: SegmentTable) -> None:
        """Begin the first one, `now`."""
        self.table = table
        table.is_shared = 1
        self.now = Epoch(table)
        self._sealed: list[Epoch] = []

    def hold(self, taken_out: object) -> None:
        """Keep what the table does not name any more."""
        self.now.held.append(taken_out)

    def seal(self) -> list[Epoch]:
        """Begin an epoch, if anything is held; return those that have ended.

        They are kept until they are given to `release`, so a call that a signal ends in between
        loses nothing.
        """
        if self.now.held:
            self._sealed.append(self.now)
            self._begin()
        return self._sealed.copy()

    def release(self, ended: list[Epoch]) -> None:
        """Let go of what these epochs hold, except what somebody still reads."""
        self._sealed = [each for each in self._sealed if each not in ended]

    def release_all(self) -> None:
        """Do the same with all there are: no service runs any more."""
        self._begin()
        self._sealed = []

    def _begin(self) -> None:
        self.now.next = following = Epoch(self.table)
        self.now = following


# --- What a forked child keeps of the files that its parent has mapped: those that it may read.


class Pinned(list[MappedFile]):
    """Files that a caller reads later; they stay mapped in a forked child as well."""

    __hash__ = object.__hash__  # type: ignore[assignment]


_pinned: weakref.WeakSet[Pinned] = weakref.WeakSet()


def pin(files: Iterable[MappedFile]) -> Pinned:
    """Return files that stay mapped while the result is referenced."""
    pinned = Pinned(files)
    _pinned.add(pinned)
    return pinned


_forgets = set[weakref.WeakMethod[Callable[[], None]]]()


def forget_in_child(forget: Callable[[], None]) -> None:
    """Have a forked child call a method, by which its object keeps no maps for later any more."""
    _forgets.add(weakref.WeakMethod(forget, _forgets.discard))


def _after_fork() -> None:
    for each in list(_forgets):
        if forget := each():
            forget()
    leave_to_parent({file.owner for pinned in _pinned for file in pinned})


os.register_at_fork(after_in_child=_after_fork)


# --- The mapped segments, with their blocks.

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


class MappedSegments:
    """The segments of a log: which there are, which are mapped, and their blocks."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        segment_bytes: int,
        maps: MapShare | None = None,
        *,
        for_kernels: bool = True,
        is_gone: bool = False,
        name: str = "",
    ) -> None:
        """List the segments that exist; none is mapped yet. With `is_gone` there are none.

        `maps`: which its store shares. `name`: what errors call it; the folder's if there is none.
        `for_kernels`: whether they look segments up in its table. A whole one takes half a
        megabyte, and there is a consume queue for each topic.
        """
        self.disk, self.folder, self.segment_bytes = disk, folder, segment_bytes
        self.maps = maps or MapShare()
        self.name = name or folder.name
        self.flushed_end = 0
        """Before this offset no file may be missing, nor be too short."""
        self.durable_end = 0
        """What lies before this offset is durable, but for what was written since into a map that
        has blocks (`MappedFile.allocated_bytes`)."""
        self.gaps_are_zeros = False
        """True: a segment that is missing between two reads as zeros; no message begins there."""
        self.lock = RLock()
        self.for_kernels = for_kernels
        self.shared_table = new_segment_table(
            segment_bytes, TABLE_LENGTH if for_kernels else 1, apron_bytes(segment_bytes)
        )
        self._numbers_entered = self.shared_table.number.data  # Python reads it faster
        self._mapped: dict[int, MappedFile] = {}
        self._clock, self._used = self.maps.clock, self.maps.used
        self._block_bytes_seen: dict[int, int] = {}  # of those that are not mapped
        self._names_made = self._names_synced = 0  # how many names of segments there were
        self._closed = False
        self._is_dropping = False  # some map's last sync is under way
        self._sync_error: FlushFailedError | None = None
        self._epochs = Epochs(self.shared_table)
        self._alive = weakref.WeakSet[MapOwner]()  # all maps that somebody may still read
        self._detached: list[int] = []  # segments whose files are to be removed, the oldest first
        self.reusable_from = ALL_ZEROED
        """No segment before this number is used again; a broker may have written it."""
        self.ahead_max = 0
        """So many segments behind the one at the log's end are worth keeping."""
        self.reused_count = 0
        self._ahead_bytes = step_bytes(segment_bytes)
        """So much is allocated ahead of the log's end; a segment at most."""
        self._random_stop = -1  # segments before it are read at random; −1: none yet
        self._seen_end = -1  # the log's end at the last tick
        self._cached_end = 0  # up to here the page cache has what is written next
        self.numbers: list[int] = [] if is_gone else sorted(self._list())

    def _list(self) -> Iterator[int]:
        for name in self.disk.names(self.folder):
            path, offset = self.folder / name, segment_offset(name)
            if offset is None:
                raise NotAStoreError(f"{path} is no segment of a log. Move it out of the store.")
            if offset % self.segment_bytes:
                raise NotAStoreError(
                    f"{path} does not start at a multiple of {self.segment_bytes} bytes. Open "
                    "the store with the segment sizes with which it was made."
                )
            yield offset // self.segment_bytes

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
        return self.shared_table.end

    @end.setter
    def end(self, offset: int) -> None:
        self.shared_table.end = offset

    def path(self, number: int) -> Path:
        """Return the path of a segment."""
        return self.folder / segment_name(number * self.segment_bytes)

    def _check_length(self, number: int) -> None:
        """Raise CorruptStoreError if a segment's file is shorter than it was made, or longer."""
        path = self.path(number)
        size = self.disk.size(path)
        if size != self.segment_bytes:
            reason = f"{path.name} has {size} bytes, but {self.segment_bytes} were flushed"
            offset = number * self.segment_bytes + min(size, self.segment_bytes)
            raise CorruptStoreError(self.name, offset, reason)

    def ensure(self, number: int) -> MappedFile:
        """Map a segment, creating it if it does not exist."""
        with self.lock.guard():
            file = self._mapped.get(number)
            if file is None or isinstance(file, Zeros):
                self._forget(number)  # kernels may be looking at the zeros
                if number in self.numbers:
                    if number * self.segment_bytes < max(self.flushed_end, self.end):
                        self._check_length(number)
                    file = self.disk.map_existing(self.path(number), self.segment_bytes)
                    if number < self._random_stop:
                        file.expect_random_reads()
                else:
                    self.disk.make_folder(self.folder)
                    file = self.disk.create_mapped(self.path(number), self.segment_bytes)
                    self.shared_table.zeroed[number % len(self.shared_table.number)] = ALL_ZEROED
                    self._names_made += 1
                    self.numbers.append(number)
                    self.numbers.sort()
                # First kept, then told to kernels: a signal may fall between any two steps.
                self._alive.add(file.owner)
                self._mapped[number] = file
            self._enter(number, file)
            return file

    def _enter(self, number: int, file: MappedFile) -> None:
        """Tell kernels where a segment is mapped."""
        slot = number % len(self.shared_table.number)
        stop, table = 0 if isinstance(file, Zeros) else file.allocated_bytes, self.shared_table
        table.allocated[slot] = number * self.segment_bytes + stop
        enter_segment(table, number, file.view)
        self._used[self, number] = next(self._clock)

    def expect_random_reads(self) -> None:
        """Have a page of a segment before the last read alone if it is missing, from now on.

        Else the system reads what it reads ahead with it, 8 MiB if a disk is set so, and a store
        that is larger than its memory loses by each page what it needs next. Who reads on in order
        asks for more itself. The last segment stays as it is: its writer needs fresh pages.
        """
        with self.lock.guard():
            last = self.end // self.segment_bytes
            if last == self._random_stop:
                return
            for number, file in self._mapped.items():
                if self._random_stop <= number < last:
                    file.expect_random_reads()
            self._random_stop = last

    def _forget(self, number: int) -> None:
        """Take a segment out of the table; it is unmapped when nobody reads it any more.

        A signal may fall between any two steps: the map is held until the last of them, and who
        asks for it puts it into the table again.
        """
        file = self._mapped.get(number)
        if file is not None:
            slot = number % len(self.shared_table.number)
            if self.shared_table.number[slot] == number:
                self.shared_table.number[slot] = -1
                self.shared_table.allocated[slot] = 0
            if self.for_kernels:
                self._epochs.hold(file)
            del self._mapped[number]
        self._used.pop((self, number), None)
        self._block_bytes_seen.pop(number, None)

    def retire(self, number: int) -> None:
        """Drop the map of a full segment; its readers keep it alive, see the ground rules.

        If another thread has the lock, it stays: that one may wait for a lock of this thread's.
        """
        with self.lock.if_free.guard() as is_mine:
            if is_mine and number not in self._mapped:
                self._used.pop((self, number), None)
            elif is_mine and number < self.end // self.segment_bytes:
                self._unmap(number)

    def _unmap(self, number: int) -> None:
        # What was written must be durable before it is forgotten: `flush` takes what is not mapped
        # for durable. Each writer has blocks first, so a map without them was only read.
        file, stop = self._mapped[number], (number + 1) * self.segment_bytes
        if file.allocated_bytes or stop > self.durable_end:
            self._is_dropping = True
            try:
                self.disk.sync(file, self.path(number))
            except FlushFailedError as e:
                self._sync_error = e
                raise
            finally:
                self._is_dropping = False
            if number * self.segment_bytes <= self.durable_end:
                self.durable_end = max(self.durable_end, stop)
        self._forget(number)

    def check_dropped(self) -> None:
        """Raise what a map that was dropped could not be made durable by.

        It is final for all of the log: the system tells an error once, so later syncs succeed.
        """
        if self._is_dropping:
            with self.lock.guard():
                pass  # what is under way was told by now
        if self._sync_error is not None:
            raise self._sync_error

    # --- blocks

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
