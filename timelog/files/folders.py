"""A store's folder, held by a descriptor: its files are made there, wherever it lies by now.

A folder may be moved, or replaced by another one, while a store is open; a program may change its
working directory. So files are reached relative to the descriptor, and never by the path again.
"""

from __future__ import annotations

import fcntl
import io
import os
import time
from pathlib import Path
from typing import Final

from timerstore.errors import NotAStoreError, StoreAccessError
from timerstore.jit.host import FOLDER_ONLY, open_event
from timerstore.timelog.files.oserrors import store_error

_FLAGS: Final = FOLDER_ONLY | os.O_DIRECTORY | os.O_CLOEXEC


class HeldFolder:
    """A folder and its descriptor, which is closed with the last reference."""

    fd = -1

    def __init__(self, path: Path, *, follows: bool = False) -> None:
        """Take hold of a folder; raises OSError if it is none, or a link and not `follows`."""
        self.path, self._name, self._prefix = path, os.fspath(path), os.path.join(path, "")
        self._absolute = path.absolute()  # a `..` stays: behind a link it leads elsewhere
        self.fd = os.open(path, _FLAGS if follows else _FLAGS | os.O_NOFOLLOW)
        self._identity = _identity(os.fstat(self.fd))

    def __del__(self) -> None:
        """Close the descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def at(self, path: Path) -> tuple[str, int | None]:
        """Return a path as the system is to be asked for it: a name, and a folder's descriptor."""
        name = os.fspath(path)
        if name.startswith(self._prefix):
            return name[len(self._prefix) :], self.fd
        return (".", self.fd) if name == self._name else (name, None)

    def is_in_place(self) -> bool:
        """Tell whether its path still leads to it."""
        try:
            return _identity(os.stat(self._absolute)) == self._identity
        except OSError:
            return False

    def check_place(self) -> None:
        """Raise StoreAccessError if its path does not lead to it any more."""
        if not self.is_in_place():
            raise StoreAccessError(
                f"{self.path} was moved, removed or replaced while the store was open, so the "
                "store has stopped. What was acknowledged is in the folder that was opened: open "
                "the store where that lies now."
            )


def hold_to_read(path: Path) -> HeldFolder:
    """Return a store's folder, held; raises NotAStoreError if there is none."""
    try:
        return HeldFolder(path, follows=True)
    except (FileNotFoundError, NotADirectoryError):
        raise no_store(path) from None
    except OSError as e:
        raise store_error(e, path) from e


def no_store(path: Path) -> NotAStoreError:
    """Return the error for a folder that is no store's."""
    return NotAStoreError(f"{path} holds no commit log. Pass the folder of a store.")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


# --- A lock on a log's folder: nobody's segments change their place while somebody reads them.
#
# A segment that nobody needs is used again, under another name; one that was made ahead of the
# log's end may be removed, and made again. Only a process that has the lock alone does either. A
# process that maps segments of a store that may be another process's shares the lock as long as it
# looks at them. It is a `flock` of the folder itself: no file, one descriptor for a whole log, and
# it ends with the process. A file system may not know such locks, and a store's owner may be
# stopped while it holds one. Then the offset and the CRC of each message show what is wrong.

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


# --- Descriptors with an owner: closed once, even if an exception ends their closing.


class OwnedFile(io.FileIO):
    """An open descriptor. A file object closes it once, also if a signal ends its closing."""

    def __init__(self, fd: int) -> None:
        """Own the descriptor `fd`."""
        super().__init__(fd, "r+")

    def __del__(self) -> None:
        """Close it without a warning: who did not close a store is told nothing of its files."""
        self.close()


class EventFile(OwnedFile):
    """An eventfd or its like, by which a kernel or another thread wakes a thread that sleeps."""

    def __init__(self) -> None:
        """Open it; it counts from 0, and nobody blocks at it."""
        super().__init__(open_event())
