"""Disks that are full."""

import errno
import os
from pathlib import Path

from timerstore.errors import StoreFullError
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import MappedFile
from timerstore.timelog.files.reader_end import ranges_of


class MeteredDisk(QuietDisk):
    """A disk with room for so many more bytes of segments, which sees writes into holes.

    It remembers what it allocated, also over several openings of a store.
    """

    def __init__(self, room_bytes: int = 1 << 40) -> None:
        self.room_bytes = room_bytes
        self.allocated_bytes: dict[Path, int] = {}
        self.refused_count = 0

    def allocate(self, file: MappedFile, stop: int) -> None:
        """Allocate, or refuse."""
        before = self.allocated_bytes.get(file.path, 0)
        if stop > before:
            if stop - before > self.room_bytes:
                self.refused_count += 1
                raise self.full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), file.path)
            self.room_bytes -= stop - before
            self.allocated_bytes[file.path] = stop
        super().allocate(file, stop)

    def rename(self, path: Path, name: Path) -> bool:
        """The blocks go with the file."""
        done = super().rename(path, name)
        if done:
            self.allocated_bytes[name] = self.allocated_bytes.pop(path, 0)
        return done

    def remove(self, path: Path) -> None:
        """Give the blocks back."""
        super().remove(path)
        self.room_bytes += self.allocated_bytes.pop(path, 0)

    def check(self, store: Path) -> None:
        """Nobody has written to a block of a segment that was not allocated.

        On a full disk that would have been a SIGBUS.
        """
        for folder in ("commitlog", "timerlog", "consumequeue"):
            for path in (store / folder).rglob("0*"):
                if path.is_file():
                    blocks = -(-self.allocated_bytes.get(path, 0) // PAGE_BYTES) * PAGE_BYTES
                    assert data_end(path) <= blocks, path


class FullDisk(QuietDisk):
    """A disk on which no file can be made while it is full."""

    full = False

    def create_mapped(self, path: Path, length: int) -> MappedFile:
        """Make a file, or refuse."""
        if self.full:
            raise StoreFullError(f"There is no space left for {path}.")
        return super().create_mapped(path, length)


def data_end(path: Path) -> int:
    """Return where the last bytes that were written to a file end; a hole reads as zeros."""
    with open(path, "rb") as file:
        ranges = list(ranges_of(file.fileno(), 0, path.stat().st_size))
    return ranges[-1][1] if ranges else 0
