"""A store that is opened to look at: no file is changed, no lock is taken.

It is the whole store over a disk that keeps every change in memory: files are mapped copy-on-write,
and what would be written is not. So recovery runs as always, whatever state the directory is in,
and what it finds is what the next real opening would find. Of a store that another process uses it
shows what had reached the files at the moment of opening.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from timerstore.errors import NotAStoreError, ReadOnlyError
from timerstore.store import TimerStore, check_is_store
from timerstore.timelog.disk import Disk, MappedFile
from timerstore.timelog.lockfile import LockFile
from timerstore.timelog.record import Bytes

_REASON = "This store was opened with read_only=True. Open it without to change it."


class PrivateFile(MappedFile):
    """A file's content, with changes that only this process sees."""

    def __init__(self, path: Path, length: int, fd: int = -1) -> None:
        """Map `length` bytes of the open file `fd`, and close it; zeros where there is none."""
        self.path, self.fd, self.length = path, -1, length
        size = os.fstat(fd).st_size if fd >= 0 else 0
        if size >= length:
            self._map = mmap.mmap(fd, length, access=mmap.ACCESS_COPY)
        else:
            self._map = mmap.mmap(-1, length)
            if size:
                self._map.write(os.pread(fd, size, 0))
        if fd >= 0:
            os.close(fd)
        self.view: Bytes = np.frombuffer(self._map, np.uint8)
        self.address: int = self.view.ctypes.data

    def unfault(self, start: int, stop: int) -> None:
        """Do nothing: here it would undo what was changed."""


class PrivateDisk(Disk):
    """A disk on which everything seems to work and nothing is written."""

    def make_folder(self, path: Path) -> None:
        """Do nothing: no file will be made in it."""

    def open_file(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading; one that is missing is made in memory alone."""
        if create and not path.exists():
            return os.memfd_create(path.name)
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def create_mapped(self, path: Path, length: int) -> MappedFile:
        """Return zeros."""
        return PrivateFile(path, length)

    def map_existing(self, path: Path, length: int) -> MappedFile:
        """Map a file copy-on-write."""
        fd = self.open_file(path)
        size = os.fstat(fd).st_size
        if size > length:
            os.close(fd)
            raise NotAStoreError(
                f"{path} has {size} bytes where {length} were expected. "
                "Open the store with the segment sizes it was made with."
            )
        return PrivateFile(path, length, fd)

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Do nothing."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing."""

    def write_at(self, fd: int, data: bytes | Bytes, at: int, path: Path) -> None:
        """Do nothing."""

    def replace(self, path: Path, data: bytes) -> None:
        """Do nothing."""

    def remove(self, path: Path) -> None:
        """Do nothing."""


class _NoLock(LockFile):
    """Stands where a store that is written to holds its lock."""

    def __init__(self) -> None:
        self.fd = -1


class ReadOnlyStore(TimerStore):
    """A store to look at: `get`, `pending`, `count`, `horizon` and `stats` work.

    Nothing fires in it; what is overdue is pending. Everything else raises ReadOnlyError.
    """

    def _prepare(self, path: Path, create: bool) -> LockFile:
        if not path.is_dir() or not any(path.iterdir()):
            raise NotAStoreError(f"{path} holds nothing. Pass the directory of a store.")
        check_is_store(path)
        self.disk = PrivateDisk()
        self.refuse(_REASON)
        return _NoLock()

    def _start(self) -> None:
        self.flusher.after = None

    def close(self) -> None:
        """Let the files go."""
        self.abandon()

    def flush(self) -> NoReturn:
        """Refuse."""
        raise ReadOnlyError(_REASON)

    def handover(self) -> NoReturn:
        """Refuse."""
        raise ReadOnlyError(_REASON)

    def consume(
        self, topic: str, *, group: str = "default", timeout: float | None = None
    ) -> Iterator[NoReturn]:
        """Refuse."""
        raise ReadOnlyError(_REASON)

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: float | None = None,
    ) -> NoReturn:
        """Refuse."""
        raise ReadOnlyError(_REASON)
