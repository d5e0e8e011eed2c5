"""The lock file: one process at a time has a store open.

It is held with `flock` and with an fcntl write lock on byte 0. Java takes the latter; each alone
does not keep the other out. Closing any descriptor of a file drops a process's fcntl locks on it,
so the file is never opened twice in a process.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from timerstore.errors import StoreLockedError
from timerstore.timelog.disk import Disk

_held: dict[tuple[int, int], int] = {}  # the lock file's descriptor, by the folder's identity
_held_lock = threading.Lock()


class LockFile:
    """A held lock on a store's directory."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """Take the lock, or raise StoreLockedError with the holder's pid."""
        status = folder.stat()
        self._folder_id = status.st_dev, status.st_ino
        self._pid = os.getpid()
        self.fd = -1
        with _held_lock:
            if self._folder_id in _held:
                raise StoreLockedError(
                    f"{folder} is open in this process (pid {os.getpid()}) already. "
                    "Use that store, or close it first."
                )
            fd = disk.open_file(folder / "lock", create=True)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as e:
                os.close(fd)
                raise StoreLockedError(
                    f"{folder} is open in another process{_holder(folder)}. Stop it, or wait."
                ) from e
            _held[self._folder_id] = self.fd = fd

    def release(self) -> None:
        """Let the lock go; in a forked child this only forgets it."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        if os.getpid() == self._pid:
            with _held_lock:
                os.close(fd)
                _held.pop(self._folder_id, None)


def _holder(folder: Path) -> str:
    """Return who has the store open, as the file `abort` says."""
    try:
        pid = (folder / "abort").read_text().strip()
    except OSError:
        return ""
    return f" (pid {pid})" if pid.isdigit() else ""


def _forget_after_fork() -> None:
    """Close what a child inherited: it would keep the flock after the parent let it go.

    That takes no lock from the parent: an fcntl lock is its process's alone, and a flock goes with
    the last descriptor of the open file.
    """
    global _held_lock
    _held_lock = threading.Lock()  # another thread of the parent may have held it
    for fd in _held.values():
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
