"""What the disk asks of one who waits for it: a write, then fdatasync, in blocks that exist."""

from __future__ import annotations

import os
import time
from pathlib import Path

MESSAGE_BYTES = 329
"""What a put of `ours.BODY_BYTES` appends to the commit log."""
_FILE_BYTES = 64 << 20
_MESSAGE = b"x" * MESSAGE_BYTES


class BareFile:
    """A file that was written with zeros, and fsynced, before anything is measured."""

    def __init__(self, path: Path) -> None:
        """Write it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        zeros = bytes(1 << 20)
        for _ in range(_FILE_BYTES >> 20):
            os.write(self._fd, zeros)
        os.fsync(self._fd)
        self._end = 0

    def append(self) -> None:
        """Append once, durable on return."""
        if self._end + MESSAGE_BYTES > _FILE_BYTES:
            self._end = 0
        os.pwrite(self._fd, _MESSAGE, self._end)
        os.fdatasync(self._fd)
        self._end += MESSAGE_BYTES

    def per_second(self, count: int) -> float:
        """Append so many times, each durable before the next; return how many a second."""
        start = time.perf_counter()
        for _ in range(count):
            self.append()
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)
