"""A disk that does not wait: for tests that crash a process, never a machine."""

from pathlib import Path

from timerstore.timelog.files.disk import Disk, MappedFile


class QuietDisk(Disk):
    """Leaves bytes in the page cache."""

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Tell the event alone."""
        self.event("sync", path)

    def sync_folder(self, path: Path) -> None:
        """Tell the event alone."""
        self.event("sync_folder", path)
