"""What a store consists of that is opened to look at: no file is changed, no lock is taken.

It is the whole store over a disk that keeps every change in memory: files are mapped copy-on-write,
and what would be written is not. So recovery runs as always, in any state of the directory, and
finds what the next real opening would find.

Of a store that another process uses it shows what had reached the files at the moment of opening:
the last checkpoint with the wheel and the small files that go with it, and the log up to its last
whole message (`timelog/files/reader_end.py`). All segments stay mapped; what was changed in a map
is nowhere else, and the writer's retention may remove the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from timerstore.core.core import Core
from timerstore.core.directory import check_is_store, is_manual
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    TimerStoreError,
)
from timerstore.jit.host import open_in_memory
from timerstore.jit.mapping import PAGE_BYTES, MapOwner, map_bytes, pages_in_memory
from timerstore.jit.record import Bytes
from timerstore.services.world.clock import Clock, ManualClock
from timerstore.timelog.files.checkpoint import Sizes
from timerstore.timelog.files.disk import SEGMENT_SIZES, Disk, MappedFile, WrongSizeError
from timerstore.timelog.files.folders import FolderShare, HeldFolder, hold_to_read
from timerstore.timelog.files.lockfile import LockFile
from timerstore.timelog.files.names import held_names, segment_name, segment_offset
from timerstore.timelog.files.oserrors import kind_of, store_error
from timerstore.timelog.files.reader_end import (
    KEPT_MAX,
    TRIES_MAX,
    Steady,
    list_names,
    list_segments,
    look_steadily,
    none_between,
    ranges_of,
    tries,
)
from timerstore.timelog.files.smallfile import is_there, open_at
from timerstore.timelog.reading.reader import read_sizes
from timerstore.values.config import Config

REASON: Final = (
    "This store was opened with read_only=True, and the call would change it. Open the store "
    "without read_only."
)
_STILL_TRIES = 6
"""So often a store that was not closed is looked at, before what is wrong with it is damage."""


class PrivateFile(MappedFile):
    """A file's content, with changes that only this process sees."""

    def __init__(self, path: Path, length: int, fd: int = -1) -> None:
        """Map `length` bytes of the open file `fd`; zeros if there is none."""
        self.length = self.allocated_bytes = length
        size, self.inode = 0, 0
        if fd >= 0:
            status = os.fstat(fd)
            size, self.inode = status.st_size, status.st_ino
        self.view: Bytes = map_bytes(fd if size >= length else -1, length, private=True)
        if 0 < size < length:
            self.view[:size] = np.frombuffer(os.pread(fd, size, 0), np.uint8)
        self.owner = MapOwner(self.view, path)

    def unfault(self, start: int, stop: int) -> None:
        """Do nothing: here it would undo what was changed."""


class PrivateDisk(Disk):
    """A disk on which everything seems to work and nothing is written."""

    writes = False

    def __init__(self, folder: HeldFolder) -> None:
        """Begin with the store's folder as it is, even if another process changes it."""
        super().__init__(folder)
        self._steady: Steady | None = None
        self._maps: dict[Path, PrivateFile] = {}
        self._kept: dict[Path, set[int]] = {}  # by folder, the segments that are mapped
        self._numbers: dict[Path, list[int]] = {}  # by folder, the segments that were there last
        self._names: dict[Path, list[str]] = {}  # by folder, those that were there last

    def stand_still(self, steady: Steady) -> None:
        """Show the wheel and the small files as they stood; the maps that were made are kept."""
        self._steady, self.is_shared = steady, steady.is_open

    def read(self, path: Path) -> bytes | None:
        """Return a small file's content as it stood."""
        return super().read(path) if self._steady is None else self._steady.read(path)

    def make_folder(self, path: Path) -> None:
        """Do nothing: no file will be made in it."""

    def check_place(self) -> None:
        """Do nothing: what was opened is looked at, wherever it lies by now."""

    def open_file(self, path: Path, *, create: bool = False, is_new: bool = False) -> int:
        """Open a file for reading; one that is missing is made only in memory."""
        if self._steady is not None and path == self._steady.path / "timerwheel":
            if self._steady.wheel.fd >= 0:
                return os.dup(self._steady.wheel.fd)
        if (create or is_new) and not is_there(path, self.at):
            return open_in_memory(path.name)
        try:
            fd = open_at(path, self.at)
        except OSError as e:
            raise store_error(e, path) from e
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise NotAStoreError(f"{path} is {kind_of(mode)}, but must be a file. Move it away.")
        return fd

    def create_mapped(self, path: Path, length: int) -> MappedFile:
        """Return zeros, the same ones when they are asked for again."""
        file = self._maps[path] = PrivateFile(path, length)
        return file

    def map_existing(self, path: Path, length: int) -> MappedFile:
        """Map a file copy-on-write, once: what is changed in the map is nowhere else."""
        file = self._maps.get(path)
        if file is not None:
            return file
        fd = self.open_file(path)
        try:
            size = os.fstat(fd).st_size
            if size > length:
                raise WrongSizeError(path, size, length, SEGMENT_SIZES)
            file = PrivateFile(path, length, fd)
        except OSError as e:
            raise self.full(e, path) from e
        finally:
            os.close(fd)
        self._maps[path] = file
        return file

    def used_ranges(self, file: MappedFile) -> list[tuple[int, int]]:
        """Return the ranges that are no holes; those, too, that were changed in memory."""
        fd = -1
        with suppress(OSError, TimerStoreError):
            fd = self.open_file(file.path)
        try:
            if not isinstance(file, PrivateFile) or fd < 0 or os.fstat(fd).st_ino != file.inode:
                return [(0, file.length)]
            pages = pages_in_memory(file.view)
            for first, last in ranges_of(fd, 0, file.length):
                pages[first // PAGE_BYTES : -(-last // PAGE_BYTES)] = True
            edges = np.flatnonzero(np.diff(pages, prepend=False, append=False)) * PAGE_BYTES
            ends = np.minimum(edges, file.length).reshape(-1, 2)
            return [(int(first), int(last)) for first, last in ends]
        finally:
            if fd >= 0:
                os.close(fd)

    def keep(self, path: Path, sizes: Sizes) -> bool:
        """List the segments of all logs, and map those that were not; see `look_steadily`."""
        self._names.clear()
        root, logs = path / "consumequeue", list[tuple[Path, int]]()
        for topic in list_names(root, self.at):
            for queue in list_names(root / topic, self.at):
                logs.append((root / topic / queue, sizes.consumequeue_segment_bytes))
        logs.append((path / "timerlog", sizes.timerlog_segment_bytes))
        logs.append((path / "commitlog", sizes.commitlog_segment_bytes))
        return min([self._keep_log(*log) for log in logs])  # of each log, also behind a False

    def _keep_log(self, folder: Path, segment_bytes: int) -> bool:
        kept, foreign = self._kept.setdefault(folder, set()), set[str]()

        def path(number: int) -> Path:
            return folder / segment_name(number * segment_bytes)

        def listed() -> Iterator[int]:
            yield from kept
            for name in list_names(folder, self.at):
                offset = segment_offset(name)
                if offset is not None and offset % segment_bytes == 0:
                    number = offset // segment_bytes
                    if number not in kept:
                        yield number
                else:
                    foreign.add(name)

        for number in [*kept]:
            if self._is_made_again(path(number)):
                kept.discard(number)
                del self._maps[path(number)]
        names = list[str]()
        numbers = list_segments(listed, lambda each: is_there(path(each), self.at))
        for number in numbers:
            if number not in kept and len(self._maps) < KEPT_MAX:
                try:
                    status = self.status(path(number))
                    size = status.st_size if stat.S_ISREG(status.st_mode) else segment_bytes + 1
                    if size == segment_bytes:
                        self.map_existing(path(number), segment_bytes)
                        kept.add(number)
                    elif (
                        size < segment_bytes
                        and number == numbers[-1]
                        and _is_empty(self.open_file(path(number)))
                    ):
                        continue  # it is being made
                except FileNotFoundError:  # retention removed it, and what is before it
                    names.clear()
                    continue
            names.append(segment_name(number * segment_bytes))
        self._names[folder] = names + sorted(foreign)
        before, self._numbers[folder] = self._numbers.get(folder, []), numbers
        return none_between(before, numbers)

    def _is_made_again(self, path: Path) -> bool:
        """Tell whether a segment that is mapped was removed, and another one made in its place."""
        try:
            return self.status(path).st_ino != self._maps[path].inode
        except FileNotFoundError:
            return False

    def names(self, folder: Path) -> list[str]:
        """Return what was listed of a log: what was mapped, and not what is new."""
        return self._names.get(folder, []) if self._steady is not None else super().names(folder)

    def size(self, path: Path) -> int:
        """Return the size of a segment, though it may be gone."""
        file = self._maps.get(path)
        return super().size(path) if file is None else file.length

    def drop_maps(self) -> None:
        """Forget all maps: what was changed in them is undone."""
        self._maps.clear()
        self._kept.clear()

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Do nothing."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing."""

    def write_at(self, fd: int, data: bytes | Bytes, at: int, path: Path) -> None:
        """Do nothing."""

    def replace(self, path: Path, data: bytes, temporary: Path | None = None) -> None:
        """Do nothing."""

    def remove(self, path: Path) -> None:
        """Do nothing."""


def _is_empty(fd: int) -> bool:
    """Tell whether an open file holds nothing but zeros, and close it."""
    try:
        at = 0
        while piece := os.pread(fd, 1 << 20, at):
            if piece.strip(b"\0"):
                return False
            at += len(piece)
        return True
    finally:
        os.close(fd)


class _NoLock(LockFile):
    """Takes the place of the lock that a store holds if it is written to."""

    def __init__(self) -> None:
        self._file = None


class ReadOnlyCore(Core):
    """An open store in which nothing fires, over a disk that nothing is written to."""

    def lock(self, create: bool) -> None:
        """Check the directory; no lock is taken."""
        path = self.path
        check_is_store(path)
        if not held_names(path):
            raise NotAStoreError(f"{path} is empty. Pass the folder of a store.")
        self.disk = self._disk = PrivateDisk(hold_to_read(path))
        self.lock_file = _NoLock()

    def open(self, config: Config) -> None:
        """Open; again if the writer, or its retention, was faster."""
        for again in tries():
            steady = self._look()
            self._disk.doubts_damage = steady.is_open and again < _STILL_TRIES
            try:
                return super().open(config)
            except (CorruptStoreError, FileNotFoundError, NotAStoreError):
                still = steady.holds() and not self._disk.doubts_damage
                if still or again == TRIES_MAX:
                    raise
                self._disk.drop_maps()
        return None

    def _look(self) -> Steady:
        """Copy and keep the files of one checkpoint."""
        at = self._disk.at
        sizes, _ = read_sizes(self.path, at)
        self._share: FolderShare | None = FolderShare(*at(self.path / "commitlog"))
        steady = look_steadily(self.path, at, lambda: self._disk.keep(self.path, sizes))
        self._disk.stand_still(steady)
        return steady

    def _tell_recovery(self) -> None:
        """Say nothing: the store may be open, and what recovery did was done in memory."""

    def _start_services(self) -> None:
        self.refuse(REASON)

    def flush(self) -> None:
        """Do nothing: nothing is written."""
        self.check_open()

    def give_up_opening(self) -> None:
        """Let go of what `open` had begun."""
        super().give_up_opening()
        self._drop_maps()

    def let_go(self) -> None:
        """Let the files go."""
        super().let_go()
        self._drop_maps()

    def _drop_maps(self) -> None:
        if hasattr(self, "_disk"):
            self._disk.drop_maps()
        self._share = None


def refuse_real_timers(place: Path, config: Config, clock: Clock) -> None:
    """Raise InvalidArgumentError if a clock that is not forced would move real timers.

    O(1) for a store without timers, or with only those of manual clocks; else it is opened to be
    looked at.
    """
    if not isinstance(clock, ManualClock) or clock.force:
        return
    if is_manual(place) or not (place / "commitlog").is_dir():
        return
    core = ReadOnlyCore(place, Disk(), None)
    try:
        core.lock(create=False)
        core.open(config)
        count = core.engine.pending_count(None)
    finally:
        core.give_up_opening()
    if count:
        raise InvalidArgumentError(
            f"{place} holds {count} real timer{'s' * (count > 1)}, and a ManualClock that passes "
            "their times would mark them as fired, so they would never come again. Use a new "
            "folder for a test. If you want that, in a copy of the store, pass ManualClock(..., "
            "force=True)."
        )
