"""Damage: the places of a store that cannot be read, each named once.

An index that is damaged is rebuilt from the commit log (`rebuild.py`). A message that is damaged is
lost: it is named here, taken off the count of what is pending, and passed by; all others fire.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from timerstore.jit.guards import Lock

log = logging.getLogger("timerstore")

WRONG_ENTRY_REASON: Final = "the entry is not that of the message with this index"
PLACES_MAX: Final = 1_000
"""Places that are named one by one, in the log and in `stats()`; all are counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place whose bytes are not what was written; `offset` counts over all segments of `file`."""

    file: str
    offset: int
    reason: str


class Damage:
    """What was found since the store was opened. Any thread may note something."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: list[Place] = []
        self.count = 0
        self.since_ms: int | None = None  # when the first was found
        self.log_start: Callable[[], int] = lambda: 0
        """Where the commit log begins: what stood before was removed, which is no damage."""
        self._known: set[tuple[str, int]] = set()
        self._lock = Lock()

    def note(self, file: str, offset: int, reason: str) -> bool:
        """Name a place, in the log too; False if it was named before, or is no damage."""
        if file == "commitlog" and 0 <= offset < self.log_start():
            return False
        with self._lock.guard():
            if (file, offset) in self._known:
                return False
            self.count += 1
            self.since_ms = self.since_ms or time.time_ns() // 1_000_000
            if self.count > PLACES_MAX:
                return True
            self._known.add((file, offset))
            self.places.append(Place(file, offset, reason))
        fields = {"store": str(self.path), "file": file, "offset": offset, "reason": reason}
        text = "%s: %s is damaged at offset %d: %s"
        log.error(text, self.path, file, offset, reason, extra=fields)
        if self.count == PLACES_MAX:
            log.error("%s: further damage is counted, but no longer named", self.path)
        return True

    def lasting(self) -> list[dict[str, Any]]:
        """Return the places that the next opening does not mend, nor look for: messages, and
        entries whose messages are lost. A clean close stores them.
        """
        return [
            each
            for each in self.to_list()
            if each["file"] == "commitlog"
            or (each["file"].startswith("consumequeue/") and each["reason"] != WRONG_ENTRY_REASON)
        ]

    def to_list(self) -> list[dict[str, Any]]:
        """Return the places that are named, for JSON."""
        with self._lock.guard():
            return [asdict(place) for place in self.places]
