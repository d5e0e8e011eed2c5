"""Saying how far a long opening has come."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

log = logging.getLogger("timerstore")

FIRST_S: Final = 3.0
EACH_S: Final = 5.0


class OpeningProgress:
    """Tells the log how far one step of opening has come; nothing if it is done within FIRST_S.

    A command shows what the log says.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Begin a step: `what` says what is done, such as "all that is pending is counted"."""
        self._path, self._what = path, what
        self._next_s = time.monotonic() + FIRST_S

    def tell(self, done: int, count: int) -> None:
        """Say that so much of it is done."""
        if time.monotonic() < self._next_s or not count:
            return
        self._next_s = time.monotonic() + EACH_S
        text = "%s is being opened: %s, %d %% done"
        log.warning(text, self._path, self._what, min(100, 100 * done // count))
