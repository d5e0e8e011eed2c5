"""Which process is opening a shared store just now: the one that holds a `flock` on its folder.

One of those that share it tries at a time, and all others know that it does: opening takes long if
kernels have to be compiled or indexes made anew, and those that wait for an owner wait on.
The folder is what is locked, so that no file is left if the store cannot be made.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from timerstore.errors import TimerStoreError
from timerstore.timelog.files.disk import Disk


@contextmanager
def taking_over(path: Path, create: bool) -> Iterator[bool]:
    """Hold the lock while the block opens the store; False: another process does."""
    if create:
        with suppress(TimerStoreError, OSError):  # the block will say it
            Disk().make_folder(path)
    folder = _lock(path, fcntl.LOCK_EX)
    try:
        yield folder != _TAKEN
    finally:
        if folder >= 0:
            os.close(folder)


def is_taken_over(path: Path) -> bool:
    """Tell whether a process is opening the store for others."""
    folder = _lock(path, fcntl.LOCK_SH)
    if folder >= 0:
        os.close(folder)
    return folder == _TAKEN


_NONE, _TAKEN = -1, -2


def _lock(path: Path, kind: int) -> int:
    """Return the folder's descriptor, which holds the lock; or one of the above."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return _NONE
    try:
        fcntl.flock(folder, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        return _TAKEN
    except OSError:  # a file system that locks no folders
        os.close(folder)
        return _NONE
    return folder
