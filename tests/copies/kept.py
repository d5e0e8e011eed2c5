"""A store on a manual clock, with its backups; their objects."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import timerstore
from tests.small_store import small
from timerstore import ManualClock
from timerstore.copies.destination import find_destination

START_MS = 1_700_000_000_000
TINY = small(8_192, 400, 1_040, near_count_max=1 << 16)
AHEAD_MS = 60_000


class Kept:
    """A store on a manual clock, whose backups are objects; it is closed when its test ends."""

    made: ClassVar[list[Kept]] = []

    report: timerstore.BackupReport
    """Of the first point, if a test begins with one."""

    def __init__(self, folder: Path, dest: Any, name: str = "store") -> None:
        self.path, self.dest, self.restored = folder / name, dest, folder / "new"
        self.clock = ManualClock(START_MS)
        self.store = timerstore.open(self.path, config=TINY, clock=self.clock)
        self.made.append(self)

    def close(self) -> None:
        self.store.close()

    def put(self, count: int) -> None:
        bodies = [b"%d" % i for i in range(count)]
        self.store.put_many(bodies, topic="t", delay_ms=range(AHEAD_MS, AHEAD_MS + count))
        self.tick()

    def tick(self) -> None:
        self.clock.advance(timedelta(milliseconds=1))

    def back_up(self, **options: Any) -> timerstore.BackupReport:
        report = self.store.backup(self.dest, **options)
        self.tick()
        return report

    def restore(self, **options: Any) -> timerstore.RestoreReport:
        return timerstore.restore(self.dest, self.restored, clock=self.clock, **options)


def objects(place: str) -> list[str]:
    """All objects at an address."""
    found = find_destination(place)
    return [f"{each}/{name}" for each in ("chains", "points", "log") for name in found.names(each)]


def change(place: str, name: str, data: bytes | None) -> None:
    """Overwrite an object, or remove it: nobody but a test does."""
    found = find_destination(place)
    if data is None:
        found.remove(name)
    else:
        found.put(name, data)
