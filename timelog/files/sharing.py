"""A lock on a log's folder: nobody's segments change their place while somebody reads them.

A segment that nobody needs is used again, under another name; one that was made ahead of the log's
end may be removed, and made again. Only a process that has the lock alone does either. A process
that maps segments of a store that may be another process's shares the lock as long as it looks at
them. It is a `flock` of the folder itself: no file, one descriptor for a whole log, and it ends
with the process. A file system may not know such locks, and a store's owner may be stopped while it
holds one. Then the offset and the CRC of each message show what is wrong.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

_WAIT_S_MAX: Final = 1.0
_PAUSE_S: Final = 0.001


def _open_folder(folder: str | Path, above: int | None = None) -> int:
    """Return a descriptor of a folder; −1 if there is none, or none that may be read."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
    except OSError:
        return -1


def _lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class _FolderLock:
    """What has a folder's lock; a signal's exception that ends its owner anywhere lets it go."""

    _fd = -1

    def __del__(self) -> None:
        """Let it go."""
        self.release()

    def release(self) -> None:
        """Let it go; twice is as good as once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class FolderShare(_FolderLock):
    """A share of a folder's lock, for as long as this object lives."""

    def __init__(self, folder: str | Path, above: int | None = None) -> None:
        """Wait for it, a second at most: its owner has it alone for one renaming.

        `above`: the descriptor of the folder that it is in.
        """
        self._fd = _open_folder(folder, above)
        until_s = time.monotonic() + _WAIT_S_MAX
        while self._fd >= 0 and not _lock(self._fd, fcntl.LOCK_SH):
            if time.monotonic() > until_s:
                return
            time.sleep(_PAUSE_S)


class FolderAlone(_FolderLock):
    """A folder's lock alone, until a `with` block ends, which is told whether nobody reads."""

    def __init__(self, folder: str | Path, above: int | None = None) -> None:
        """Take nothing yet. `above`: the descriptor of the folder that it is in."""
        self._folder, self._above = folder, above

    def __enter__(self) -> bool:
        """Take it if it is free, and tell whether it was."""
        self._fd = _open_folder(self._folder, self._above)
        return self._fd >= 0 and _lock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        self.release()
