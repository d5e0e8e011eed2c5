"""The lock file: one process at a time has a store open.

It is held with `flock` and with an fcntl write lock on byte 0. Java takes the latter; one of them
does not keep the other out. Closing any descriptor of a file drops a process's fcntl locks on it,
so the file is never opened twice in a process.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from timerstore.errors import StoreLockedError, TimerStoreError
from timerstore.jit.guards import Lock
from timerstore.timelog.files.oserrors import store_error
from timerstore.timelog.files.smallfile import read_head

if TYPE_CHECKING:  # the shell asks who holds it, and loads no kernels for that
    from timerstore.timelog.files.disk import Disk

_held: weakref.WeakValueDictionary[tuple[int, int], LockFile] = weakref.WeakValueDictionary()
"""The locks that this process holds, by the folder's identity."""
_held_lock = Lock()


class LockFile:
    """A held lock on a store's directory."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """Take the lock, or raise StoreLockedError with the holder's pid."""
        name, above = disk.at(folder)
        status = os.stat(name, dir_fd=above)
        self._folder_id = status.st_dev, status.st_ino
        self._pid = os.getpid()
        self._file: io.FileIO | None = None
        with _held_lock.guard():
            if self._folder_id in _held:
                raise StoreLockedError(
                    f"{folder} is open in this process (pid {os.getpid()}) already. "
                    "Use that store, or close it first. One that was dropped without close() stays "
                    "open until this process ends."
                )
            # A file object: if an exception ends this call, or the next, the descriptor is closed
            # with it.
            file = io.FileIO(disk.open_file(folder / "lock", create=True), "r+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                self._file = file
                _held[self._folder_id] = self
            except OSError as e:
                file.close()
                if e.errno not in (errno.EAGAIN, errno.EACCES):
                    raise store_error(e, folder / "lock") from e
                raise StoreLockedError(
                    f"{folder} is open in another process{holder(folder)}. Stop that process, or "
                    "wait. If several processes are to use a store, each must open it with "
                    "share=True."
                ) from e
            except BaseException:  # a signal's: nobody would hold what was taken
                self._file = None
                file.close()
                _held.pop(self._folder_id, None)
                raise

    def __del__(self) -> None:
        """Let go what a signal's exception kept from being released."""
        if self._file is not None:
            self._file.close()

    @property
    def fd(self) -> int:
        """The descriptor, −1 if it is let go."""
        return -1 if self._file is None or self._file.closed else self._file.fileno()

    def release(self) -> None:
        """Let the lock go; in a forked child this only forgets it. Twice does nothing.

        Also if a signal's exception ended the first time behind the lock, and somebody else has
        the folder open by now.
        """
        if self._file is not None and os.getpid() == self._pid:
            with _held_lock.guard():
                self._file.close()
                if _held.get(self._folder_id) is self:
                    del _held[self._folder_id]
        self._file = None


def holder(folder: Path) -> str:
    """Return who has the store open, as the file `abort` says."""
    try:
        pid = read_head(folder / "abort", 32).decode("ascii", "replace").strip()
    except (OSError, TimerStoreError):
        return ""
    return f" (pid {pid})" if pid.isdigit() else ""


def _forget_after_fork() -> None:
    """Close what a child inherited: it would keep the flock after the parent let it go.

    That takes no lock from the parent: an fcntl lock belongs only to its process, and a flock goes
    with the last descriptor of the open file.
    """
    global _held_lock
    _held_lock = Lock()  # another thread of the parent may have held it
    for lock in list(_held.values()):
        if lock._file is not None:
            lock._file.close()
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
