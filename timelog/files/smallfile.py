"""Reading small files whole, with any kind of thing in their place.

A file that only looks small, such as a hole of a terabyte, is not read into memory; a pipe is not
waited for; a symbolic link is not followed.
"""

from __future__ import annotations

import errno
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


def open_at(path: Path, at: At) -> int:
    """Open a file for reading; raises OSError."""
    name, folder = at(path)
    return os.open(name, _FLAGS, dir_fd=folder)


def status_at(path: Path, at: At) -> os.stat_result:
    """Return what the system knows of a file, or of a symbolic link; raises OSError."""
    name, folder = at(path)
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def is_there(path: Path, at: At, is_kind: Callable[[int], bool] = lambda mode: True) -> bool:
    """Tell whether a name leads to anything, of a kind such as `stat.S_ISDIR`."""
    name, folder = at(path)
    try:
        return is_kind(os.stat(name, dir_fd=folder).st_mode)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return False


def read_head(path: Path, bytes_max: int, at: At = by_path) -> bytes:
    """Return at most the first `bytes_max` bytes; raises MissingFileError if it is none."""
    try:
        fd = open_at(path, at)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise NotAStoreError(
                    f"{path} is {kind_of(mode)}, but must be a file. Move it away."
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


def read_small(path: Path, at: At = by_path) -> bytes:
    """Return a whole file; one that is longer than it can ever be is damaged."""
    try:
        length = status_at(path, at).st_size
    except OSError as e:
        raise store_error(e, path) from e
    if length > SMALL_BYTES_MAX:
        reason = f"it has {length} bytes, far more than it can have"
        raise CorruptStoreError(path.name, SMALL_BYTES_MAX, reason)
    return read_head(path, SMALL_BYTES_MAX, at)
