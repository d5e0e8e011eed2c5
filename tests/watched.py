"""A disk that shows each of its steps, or is interrupted at one."""

from pathlib import Path

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
