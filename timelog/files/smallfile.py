"""Reading small files whole, with any kind of thing in their place.

A file that only looks small, such as a hole of a terabyte, is not read into memory; a pipe is not
waited for; a symbolic link is not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from timerstore.errors import CorruptStoreError, NotAStoreError
from timerstore.timelog.files.oserrors import kind_of, store_error

SMALL_BYTES_MAX: Final = 256 << 20
"""Of a file that is read whole: offsets of three million queues are that long."""
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


At = Callable[[Path], tuple[str, int | None]]
"""Says how the system is asked for a path: a name, and the descriptor of the folder it is in."""


def by_path(path: Path) -> tuple[str, None]:
    """Have the system look for the path as it is."""
    return os.fspath(path), None


def read_head(path: Path, bytes_max: int, at: At = by_path) -> bytes:
    """Return at most the first `bytes_max` bytes; raises MissingFileError if it is none."""
    try:
        name, folder = at(path)
        fd = os.open(name, _FLAGS, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise NotAStoreError(
                    f"{path} is {kind_of(path)}, but must be a file. Move it away."
                )
            parts, left = [], bytes_max
            while left > 0 and (part := os.read(fd, min(left, 1 << 20))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        finally:
            os.close(fd)
    except OSError as e:
        raise store_error(e, path) from e


def read_small(path: Path, bytes_max: int = SMALL_BYTES_MAX, at: At = by_path) -> bytes:
    """Return a whole file; one that is longer than it can ever be is damaged."""
    try:
        name, folder = at(path)
        length = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except OSError as e:
        raise store_error(e, path) from e
    if length > bytes_max:
        raise CorruptStoreError(
            path.name, bytes_max, (f"it has {length} bytes, far more than it can have")
        )
    return read_head(path, bytes_max, at)
