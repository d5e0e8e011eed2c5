"""A disk that keeps a copy of each commit log segment before it goes: the ledger reads all of them.

Retention removes the oldest segment, or lets its file be used again. The copies of one store, and
of what becomes of it after a crash, lie in a folder beside it.
"""

import os
import shutil
from pathlib import Path

from timerstore.testing.disk import PowerDisk, QuietDisk
from timerstore.timelog.files.disk import Disk


def archive_of(path: Path) -> Path:
    """Where the removed segments of a store are kept."""
    return path.parent / "removed"


class ArchivingDisk(Disk):
    """Copies a segment that is the oldest before it is removed or renamed."""

    def _archive(self, path: Path) -> None:
        if path.parent.name != "commitlog" or path.name != min(os.listdir(path.parent)):
            return
        folder = archive_of(path.parent.parent)
        folder.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / "new")
        (folder / "new").rename(folder / path.name)

    def remove(self, path: Path) -> None:
        """Keep a copy first."""
        self._archive(path)
        super().remove(path)

    def rename(self, path: Path, name: Path) -> bool:
        """Keep a copy first."""
        self._archive(path)
        return super().rename(path, name)


class KeptDisk(ArchivingDisk, QuietDisk):
    """It does not wait either."""


class KeptPowerDisk(ArchivingDisk, PowerDisk):
    """It can lose its power."""
