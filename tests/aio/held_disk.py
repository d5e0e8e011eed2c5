"""A disk that makes an fsync wait until a test lets it go on."""

import errno
import threading
from pathlib import Path

from timerstore.timelog.files.disk import Disk


class HeldDisk(Disk):
    """Holds who syncs the commit log while `hold_syncs` says so."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.held_count = 0
        self.fails = False

    def hold_syncs(self) -> None:
        """From now on whoever syncs the commit log waits."""
        self.open.clear()

    def go_on(self) -> None:
        """Let them go."""
        self.open.set()

    def event(self, kind: str, path: Path) -> None:
        """Wait where the commit log is synced, then fail, or go on."""
        if kind == "sync" and "commitlog" in str(path):
            self.held_count += 1
            self.open.wait(30)
            self.held_count -= 1
            if self.fails:
                raise OSError(errno.EIO, "the disk is gone", str(path))
