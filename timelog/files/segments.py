"""A log over segment files: a row of mapped files that together are one long byte sequence.

An *offset* is a position in the whole sequence. Kernels find a byte through a `SegmentTable`
(segmenttable.py). Ground rules: only Python maps or drops a segment, under `SegmentedFile.lock`. It
stays mapped until it is removed, unless the store has more maps than its share (`MapShare`). Bytes
are borrowed in three ways, and in no other:

- `view` gives an array. It owns its map, as does each view of it.
- `with log.reading() as table` gives the table that the services share. What a kernel finds there
  stays mapped until the block ends (blocks.py). It may be dropped from the table meanwhile: so a
  kernel looks a segment up once, and what it does not find is mapped again.
- `PinnedLog` gives a separate table, in which all that was asked for stays.

Only the services' kernels look into `shared_table` without a block: what is dropped is let go once
no step is under way that may still look into it (`Engine.let_go`).

A file has its whole length from the beginning, but its blocks are allocated ahead of the writer, in
steps that grow with the rate. Code that writes to a place that was never written to asks
`can_write` before, or `reserve`s it: a write into a hole of a full disk is a SIGBUS, and so is one
beside a hole, where the page cache keeps both in one folio (`mapping.open_pages`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from timerstore.errors import CorruptStoreError, FlushFailedError, StoreFullError
from timerstore.jit.record import Bytes, Words
from timerstore.timelog.files.blocks import Epoch, MappedSegments, Pinned, pin
from timerstore.timelog.files.disk import MappedFile, Zeros
from timerstore.timelog.files.folders import FolderAlone
from timerstore.timelog.files.nonzero import used_pages
from timerstore.timelog.files.segmenttable import (
    TABLE_LENGTH,
    SegmentTable,
    apron_bytes,
    enter_segment,
    leave,
    new_segment_table,
)


class SegmentedFile(MappedSegments):
    """A folder of segment files of one size."""

    # --- what is lost

    def forget_unmade(self) -> None:
        """Forget the last segment if its file is empty: a process ended while it was made.

        Nothing was ever written to it. The next one that needs it makes it again.
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

    def read_ahead(self, start: int, stop: int) -> None:
        """Begin to read bytes [start, stop), which somebody reads in order now.

        Segments whose pages the system reads ahead itself are left to it.
        """
        for number in range(start // self.segment_bytes, -(-stop // self.segment_bytes)):
            file, first = self._mapped.get(number), number * self.segment_bytes
            if file is not None and number < self._random_stop:
                last = min(stop - first, self.segment_bytes)
                self.disk.read_ahead(file, max(0, start - first), last)

    def existing(self, number: int) -> MappedFile:
        """Map a segment that must exist."""
        file = self._mapped.get(number)
        # A signal may have ended what put it into the table of kernels, or out of it.
        if file is not None and (
            not self.for_kernels or self._numbers_entered[number % TABLE_LENGTH] == number
        ):
            self._used[self, number] = next(self._clock)
            return file  # without the lock, which is held for long while a segment is being made
        with self.lock.guard():
            if number not in self.numbers:
                if self.gaps_are_zeros and self.numbers:
                    if self.numbers[0] < number < self.numbers[-1]:
                        return self.readable(number)
                offset = number * self.segment_bytes
                raise CorruptStoreError(self.name, offset, "this segment is missing")
            return self.ensure(number)

    def readable(self, number: int) -> MappedFile:
        """Map a segment to be read; zeros in its place if it is missing."""
        with self.lock.guard():
            if number in self.numbers:
                return self.existing(number)
            file = self._mapped.get(number)
            if file is None:
                file = self._mapped[number] = Zeros(self.path(number), self.segment_bytes)
            self._enter(number, file)
            return file

    def pin(self, start: int, stop: int) -> Pinned:
        """Map all segments with offsets in [start, stop); they stay mapped while referenced.

        Also in a forked child. Kernels may not find them any more, see `reading`.
        """
        first, last = start // self.segment_bytes, max(start, stop - 1) // self.segment_bytes
        if first == last:
            return pin([self.existing(first)])
        return pin([self.existing(number) for number in range(first, last + 1)])

    def view(self, offset: int) -> Bytes:
        """Return the bytes from `offset` to its segment's end; they keep its map."""
        number, position = divmod(offset, self.segment_bytes)
        return self.existing(number).view[position:]

    def used_end(self) -> int:
        """Return the offset behind which there are only holes, which read as zeros."""
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

    def reading(self) -> Epoch:
        """Borrow the table that the services share, for kernels that are called in the block."""
        return self._epochs.now

    def seal(self) -> list[Epoch]:
        """Return what was dropped by now, to be given to `release`: see blocks.py."""
        with self.lock.guard():
            return self._epochs.seal()

    def release(self, ended: list[Epoch]) -> None:
        """Unmap what was dropped; no step of a service is under way that began before `seal`."""
        with self.lock.guard():
            self._epochs.release(ended)

    # --- growing, shrinking, flushing

    def detach_before(self, offset: int) -> None:
        """Forget the segments that end at or before `offset`; `remove_detached` removes them.

        See the ground rules: it is quick, because the thread that stays in a kernel waits for it.
        """
        with self.lock.guard():
            for number in self.numbers:
                if (number + 1) * self.segment_bytes <= offset and number not in self._detached:
                    self._detached.append(number)
            self._detach()

    def _detach(self) -> None:
        """Forget what is to be removed, also what an earlier call began that a signal ended."""
        for number in self._detached:
            self._forget(number)
            if number in self.numbers:
                self.numbers.remove(number)

    @property
    def detached_count(self) -> int:
        """How many segments are still to be removed."""
        return len(self._detached)

    def remove_detached(self) -> None:
        """Remove detached segments, the oldest first, each durably before the next.

        So a crash at any point leaves a log without a gap, which begins somewhat earlier. If
        this raises, the rest is to be removed before any other. One that may be used again, and is
        wanted, becomes the log's last segment instead.
        """
        with self.lock.guard():
            self._detach()
        while self._detached:
            path = self.path(self._detached[0])
            if not self._reuse(path):
                self.disk.remove(path)
                self.disk.sync_folder(self.folder)
            self._detached.pop(0)

    def _reuse(self, path: Path) -> bool:
        """Make the file of a removed segment the one behind the log's last; False if it must
        not be, or is not wanted. O(1), with a sync of the folder.

        Its new name is durable before a byte is written to it: were its old name to come back in a
        power cut, it would hold what does not belong there. Its head is zeroed before any kernel
        finds it, the rest by the appender as it goes (`append.py`).
        """
        with self.lock.guard():
            number = self.numbers[-1] + 1 if self.numbers else 0
            ahead = number - 1 - self.end // self.segment_bytes
            old = int(path.name) // self.segment_bytes
            if old < self.reusable_from or ahead >= self.ahead_max or not self.numbers:
                return False
            if any(owner.path == path for owner in self._alive) or not self.disk.exists(path):
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
            self.shared_table.zeroed[number % len(self.shared_table.number)] = start + head_bytes
            self._forget(number)  # kernels may be looking at zeros in its place
            self._alive.add(file.owner)
            self.numbers.append(number)
            self._mapped[number] = file
            self._enter(number, file)
            self.reused_count += 1
            return True

    def drop_last(self, ahead_max: int, lock: Words, reach_bytes: int) -> bool:
        """Remove the last segment, if more than `ahead_max` lie behind the one at the log's end.

        `lock`: the append lock's words. `reach_bytes`: how far behind the log's end an append may
        look without it; a segment that is that near stays. So does any while somebody reads: who
        has mapped it would not see what is written once it is made again. O(1), with a sync of the
        folder.
        """
        with self.lock.guard():
            number = self.numbers[-1] if self.numbers else 0
            if number - self.end // self.segment_bytes <= ahead_max:
                return False
            with FolderAlone(*self.disk.at(self.folder)) as is_alone:
                if not is_alone or not leave(self.shared_table, lock, number, reach_bytes):
                    return False
                self._forget(number)
                self.numbers.pop()
                # Under the lock: else an append may have it made again, and its file would go.
                self.disk.remove(self.path(number))
        self.disk.sync_folder(self.folder)
        return True

    def clear_behind(self) -> None:
        """Leave nothing of an earlier use behind the log's end, durably; while nobody appends.

        It costs what is left of the last segment, if that was used before; else nothing.
        """
        with self.lock.guard():
            last = self.end // self.segment_bytes
            used = [n for n in self.numbers if n > last and not self._is_zeroed(n)]
            for number in reversed(self.numbers.copy()):
                if used and number >= used[0]:  # zeros behind it too: else the log has a gap
                    self._remove(number)
            if last in self.numbers and not self._is_zeroed(last):
                file = self.existing(last)
                file.view[self.end - last * self.segment_bytes :] = 0
                self.disk.sync(file, file.path)

    def drop_from(self, offset: int) -> None:
        """Remove the segments from `offset` on; while nobody appends or reads."""
        with self.lock.guard():
            for number in reversed(self.numbers.copy()):
                if number * self.segment_bytes >= offset:
                    self._remove(number)

    def _remove(self, number: int) -> None:
        """Remove a segment, durably; while nobody appends or reads."""
        self._forget(number)
        self.numbers.remove(number)
        self.disk.remove(self.path(number))
        self.disk.sync_folder(self.folder)

    def _is_zeroed(self, number: int) -> bool:
        """Tell whether all of a segment that lies behind the log's end is zeros."""
        zeroed = int(self.shared_table.zeroed[number % len(self.shared_table.number)])
        return zeroed >= (number + 1) * self.segment_bytes

    def distrust(self, offset: int) -> None:
        """Take nothing behind `offset` for zeros: the appender zeroes it as it goes."""
        for number in self.numbers:
            if (number + 1) * self.segment_bytes > offset:
                start = max(offset, number * self.segment_bytes)
                self.shared_table.zeroed[number % len(self.shared_table.number)] = start

    def zero_from(self, offset: int) -> None:
        """Zero all bytes from `offset` to the end of the last segment, and make that durable.

        A segment that was never written is a hole: nothing of it can come back, so none is synced.
        """
        for number in list(self.numbers):
            start = number * self.segment_bytes
            if start + self.segment_bytes <= offset:
                continue
            file = self.existing(number)
            used_ranges = self.disk.used_ranges(file)
            for first, last in used_ranges:
                for used in used_pages(file.view[:last], max(first, offset - start)):
                    self.disk.open_pages(file, used.start, used.stop)
                    file.view[used] = 0
            if used_ranges:
                self.disk.sync(file, file.path)

    def cut_from(self, offset: int) -> None:
        """Leave only zeros from `offset` on, durably: what a crash has undone must not come back.

        From the first segment behind the one of `offset` that holds anything, all are removed, the
        last first, so the log never has a gap. Zeros that were made ahead before it stay.
        """
        behind = [n for n in self.numbers if n * self.segment_bytes > offset]
        used = next((i for i, number in enumerate(behind) if self._is_used(number)), len(behind))
        for number in reversed(behind[used:]):
            self._remove(number)
        self.zero_from(offset)

    def _is_used(self, number: int) -> bool:
        """Tell whether a segment holds anything but zeros."""
        file = self.existing(number)
        return any(file.view[first:last].any() for first, last in self.disk.used_ranges(file))

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
        self.check_dropped()  # behind the syncs, which may have been told nothing any more
        if start <= self.durable_end:
            self.durable_end = max(self.durable_end, stop)
        made = self._names_made  # before it: a name that is made meanwhile counts again
        if made != self._names_synced:
            self.disk.sync_folder(self.folder)
            self._names_synced = made

    def begin_flush(self, start: int, stop: int) -> None:
        """Have the disk begin to write [start, stop), so that `flush` need wait for less of it."""
        if stop <= start:
            return
        for number in range(start // self.segment_bytes, -(-stop // self.segment_bytes)):
            file = self._mapped.get(number)
            if file is not None:
                fd = self.disk.open_file(file.path)
                try:
                    self.disk.begin_writing(fd, 0, self.segment_bytes)
                finally:
                    os.close(fd)

    def close(self) -> None:
        """Drop all maps without flushing."""
        with self.lock.guard():
            self._closed = True
            self.shared_table.number[:] = -1
            for number, file in self._mapped.items():
                self._used.pop((self, number), None)
                self._epochs.hold(file)
            self._mapped.clear()
            self._epochs.release_all()


# --- Pinned segments: a separate table, in which all that was asked for stays mapped.
#
# It is for listings, which look at many segments in turn, and copy texts by their places after the
# messages were read. `SegmentedFile.reading` costs less, and is for calls that look at one or two.

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
