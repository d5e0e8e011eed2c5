"""What the disk alone allows: small writes that each wait for it, or large ones with few syncs."""

from __future__ import annotations

import os
import time
from pathlib import Path

MESSAGE_BYTES = 329
"""What a put of `ours.BODY_BYTES` appends to the commit log."""
_FILE_BYTES = 64 << 20
_MESSAGE = b"x" * MESSAGE_BYTES
CHUNK_BYTES = 1 << 20
SYNC_S = 0.5
"""As often as a store with `durability="process"` syncs its files."""
LEAST_BYTES = 1 << 30


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


def append_rate(path: Path, total_bytes: int, sync_count: int | None = None) -> float:
    """Append to a new file in writes of CHUNK_BYTES; return bytes a second.

    It is synced `sync_count` times, evenly; or each SYNC_S, and then at least LEAST_BYTES are
    appended, because fewer would fit between two syncs. This is the limit of a store that writes as
    many bytes: a program that does nothing but write them is not faster. The file is removed.
    """
    chunk = memoryview(b"x" * CHUNK_BYTES)
    if sync_count:
        steps = [round(total_bytes * i / sync_count) for i in range(1, sync_count + 1)]
    else:
        total_bytes, steps = max(total_bytes, LEAST_BYTES), []
    written, synced = 0, 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        start_s = synced_s = time.perf_counter()
        while written < total_bytes:
            stop = steps[synced] if steps else total_bytes
            written += os.write(fd, chunk[: stop - written])
            if written == stop if steps else time.perf_counter() - synced_s >= SYNC_S:
                os.fdatasync(fd)
                synced, synced_s = synced + 1, time.perf_counter()
        return total_bytes / (time.perf_counter() - start_s)
    finally:
        os.close(fd)
        path.unlink()
