"""What recovery found."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


@dataclass
class RecoveryFindings:
    """What recovery found and did; part of `stats()`."""

    clean: bool = True
    by_broker: bool = False
    rebuilt: list[str] = field(default_factory=list)
    restored_sizes: bool = False
    """`timerstore.json` was lost or damaged, and written again from its copy."""
    scanned_count: int = 0
    torn_bytes: int = 0
    relinked_count: int = 0
    copies_count: int = 0
    cancelled_count: int = 0
    pending_count: int = 0
    removed_count: int = 0
    """Timers whose messages stood before the log's start: a broker's clean-up removed them."""
    repaired_reschedule: bool = False
    restarted_counters: int = 0
    """Topics whose counters were damaged, and began anew."""
    corrected_levels: list[int] = field(default_factory=list)
    """Delay levels whose offset stood outside of their queue; it is at the nearest end now."""
    corrected_groups: list[str] = field(default_factory=list)
    """The same of groups, as topic@group."""
    taken_back_count: int = 0
    """Messages that a broker's clients had received and not acknowledged: they come again."""

    def sentence(self, damage_count: int) -> str:
        """Say what happened; `damage_count`: places that could not be read."""
        done = "opened"
        if not self.clean:
            done = "taken over from a broker" if self.by_broker else "recovered after a crash"
        parts = [_counted(self.scanned_count, "message") + " read again"]
        if self.rebuilt:
            parts.append(f"{' and '.join(self.rebuilt)} made anew from the commit log")
        if self.torn_bytes:
            parts.append(f"{self.torn_bytes:,} bytes that were not written whole were cut")
        if self.repaired_reschedule:
            parts.append("a reschedule completed")
        if self.removed_count:
            gone = _counted(self.removed_count, "timer")
            parts.append(f"{gone} gone with files that a broker removed")
        if self.taken_back_count:
            again = _counted(self.taken_back_count, "message")
            parts.append(f"{again} that clients had received and not acknowledged come again")
        parts.append(_counted(self.pending_count, "timer") + " pending")
        parts.append(_counted(damage_count, "damaged place") if damage_count else "nothing lost")
        return f"{done}: {', '.join(parts)}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


# --- Saying how far a long opening has come.

log = logging.getLogger("timerstore")

SILENT_S: Final = 3.0
EACH_S: Final = 5.0


class OpeningProgress:
    """Tells the log how far one step of opening has come; nothing if it is done within SILENT_S.

    A command shows what the log says.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Begin a step: `what` says what is done, such as "all that is pending is counted"."""
        self._path, self._what = path, what
        self._next_s = time.monotonic() + SILENT_S

    def tell(self, done: int, count: int) -> None:
        """Say that so much of it is done."""
        if time.monotonic() < self._next_s or not count:
            return
        self._next_s = time.monotonic() + EACH_S
        text = "%s is being opened: %s, %d %% done"
        log.warning(text, self._path, self._what, min(100, 100 * done // count))
