"""Disks that show each of their steps, or are interrupted at one."""

from pathlib import Path

from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import Disk


class StoppedHereError(Exception):
    """The process ended here: nothing of ours takes it for a failing disk."""


class Watched(Disk):
    """A disk that notes each event, and stops at one of them."""

    def __init__(self, stop_at: int = -1) -> None:
        self.events: list[tuple[str, str]] = []
        self.stop_at = stop_at

    def event(self, kind: str, path: Path) -> None:
        if len(self.events) == self.stop_at:
            raise StoppedHereError(kind)
        self.events.append((kind, path.name))


class Ended(BaseException):
    """The process ends here: nothing of ours goes on."""


class EndingDisk(QuietDisk):
    """A disk whose process ends once so many of its events came."""

    def __init__(self, left: int) -> None:
        self.left = left

    def event(self, kind: str, path: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise Ended
