"""A point of a backup; the lock of a folder in which copies are written."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from timerstore.copies.report import Report
from timerstore.errors import StoreLockedError
from timerstore.values.moments import moment

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupPoint(Report):
    """What a backup holds of one moment."""

    number: int
    time_ms: int
    """When it was taken."""
    chain: int
    log_start: int
    log_end: int
    """The commit log as it was: from its first segment to the end of its last message."""

    @property
    def time(self) -> datetime:
        """When it was taken, in UTC."""
        return moment(self.time_ms)

    @property
    def bytes_count(self) -> int:
        """Bytes of the log that it needs."""
        return self.log_end - self.log_start


class BackupLock:
    """A lock on the folder of a backup or standby, among processes of this machine.

    Who writes has it alone, for as long as this object lives.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise StoreLockedError(
                f"Another backup, follower or standby is using {path}. Wait until it has ended, "
                "or stop it."
            ) from e

    def release(self) -> None:
        """Let it go; twice does nothing."""
        fd, self._fd = self._fd, -1  # first: closed twice, it may be another's
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __del__(self) -> None:
        """Let it go."""
        if hasattr(self, "_fd"):
            self.release()
