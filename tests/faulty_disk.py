"""A disk that refuses what a test chooses, as the operating system does."""

import os
from collections import Counter
from pathlib import Path

from timerstore.timelog.disk import Disk


class FaultyDisk(Disk):
    """Raises an OSError at chosen events, in files whose path holds a chosen text."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.kinds: tuple[str, ...] = ()
        self.where = ""
        self.refused: Counter[str] = Counter()

    def refuse(self, number: int, *kinds: str, where: str = "") -> None:
        """From now on fail with this errno at events of these kinds; without any, at all."""
        self.number, self.kinds, self.where = number, kinds, where

    def heal(self) -> None:
        """From now on work."""
        self.number = None

    def event(self, kind: str, path: Path) -> None:
        """Fail, or do nothing."""
        if self.number is None or (self.kinds and kind not in self.kinds):
            return
        if self.where in str(path):
            self.refused[kind] += 1
            raise OSError(self.number, os.strerror(self.number), str(path))
