"""`config/timerstoreGroups.json`: what groups did, kept over a restart.

A file of ours, which a broker leaves alone. It is written with a checkpoint, at most every few
seconds: after a crash it lacks what came since, where `consumerOffset.json` lacks no more than what
came after the last checkpoint. Its counters are for people; nothing is decided by them, so one that
is damaged is begun anew.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, Final

from timerstore.consuming.tally import Tally
from timerstore.errors import CorruptStoreError
from timerstore.timelog.disk import Disk
from timerstore.timelog.jsonfile import check_seal, read_json, sealed, write_json

log = logging.getLogger("timerstore")

TALLY_FILE: Final = "timerstoreGroups.json"
WRITE_EVERY_S: Final = 5.0
"""A file more to fsync in each checkpoint would be felt by those who wait for theirs."""
_NAME_END: Final = "@"

Tallies = dict[tuple[str, str], Tally]


class TallyFile:
    """The file of one store; several threads may flush at once."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Nothing is read yet."""
        self._disk, self._path = disk, path
        self._written: dict[str, Any] | None = None
        self._written_s = time.monotonic()
        self._lock = threading.Lock()

    def read(self) -> Tallies:
        """Return what was kept, by (topic, group); nothing where the file is damaged."""
        try:
            found = read_tallies(self._path, self._disk)
        except CorruptStoreError as e:
            log.warning("%s: %s; the groups' counters begin anew", self._path, e.reason)
            return {}
        self._written = _content(found)
        return found

    def write(self, tallies: Tallies, *, at_once: bool) -> None:
        """Write the file if anything changed; not `at_once`: and some time has passed."""
        with self._lock:
            if not at_once and time.monotonic() - self._written_s < WRITE_EVERY_S:
                return
            self._written_s = time.monotonic()
            content = _content(tallies)
            if content != (self._written or _content({})):
                write_json(self._disk, self._path, sealed(content))
                self._written = content


def read_tallies(path: Path, disk: Disk) -> Tallies:
    """Read the file; CorruptStoreError where it is damaged."""
    content = read_json(path, disk.read) or {}
    check_seal(path, content)
    found: Tallies = {}
    try:
        for name, counters in content.get("groups", {}).items():
            topic, _, group = name.rpartition(_NAME_END)
            found[topic, group] = tally = Tally()
            tally.go_on_from(counters)
    except (AttributeError, TypeError, ValueError) as e:
        raise CorruptStoreError(path.name, 0, f"groups: {e}") from e
    return found


def _content(tallies: Tallies) -> dict[str, Any]:
    counted = {
        f"{topic}{_NAME_END}{group}": tally.counters()
        for (topic, group), tally in sorted(tallies.items())
    }
    return {
        "groups": {name: counters for name, counters in counted.items() if any(counters.values())}
    }
