"""Switches: what an operator has stopped for a while.

As RocketMQ's `timerStopDequeue`, for each of: putting, firing, consuming (of all groups, or one).
A pause may have an end, at which it is over without anybody doing anything; and it may be kept
over a reopening, in `config/switches.json`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import RLock
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, sealed, understood, whole, write_json
from timerstore.values.amounts import Moment

Paused = Literal["putting", "firing", "consuming"]
SWITCHES_FILE: Final = "config/switches.json"
FOREVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Pause:
    """Something that is stopped: `what`, since when, until when (None: until it is resumed).

    `group`: of "consuming", the one group, or None for all. `kept`: over a reopening.
    """

    what: Paused
    group: str | None
    since_ms: int
    until_ms: int | None
    kept: bool

    since = Moment[datetime]("Since when, in UTC.")
    until = Moment[datetime | None]("When it ends by itself, in UTC; None: when it is resumed.")

    @property
    def end_ms(self) -> int:
        """When it is over."""
        return FOREVER_MS if self.until_ms is None else self.until_ms


class Switches:
    """All pauses of a store. Changed as a whole, so that any thread may look without a lock.

    A thread holds `lock` while it changes them or makes others obey. Two at once would lose one
    pause, or make the services obey a pause that is over.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        """Read those that were kept. Damaged, they are noted in `damage`, and none is kept."""
        self._disk, self._path = disk, path
        self.lock = RLock()
        self.damage: CorruptStoreError | None = None
        self.pauses: tuple[Pause, ...] = ()
        try:
            self.pauses = _read(path, disk)
        except CorruptStoreError as e:
            self.damage = e

    def set(self, pause: Pause) -> None:
        """Pause; one of the same thing is replaced. If it is kept, it is durable on return."""
        with self.lock.guard():
            self._change((*self._without(pause.what, pause.group), pause))

    def clear(self, what: Paused, group: str | None) -> None:
        """Resume; of consuming without a group, all groups."""
        with self.lock.guard():
            self._change(self._without(what, group, with_groups=group is None))

    def hold_firing(self) -> None:
        """Let nothing fire in this life of the store; what is kept stays as it is."""
        with self.lock.guard():
            # Before one that is kept, which may end meanwhile: `find` returns the first.
            self.pauses = (Pause("firing", None, 0, None, kept=False), *self.pauses)

    def find(self, what: Paused, now_ms: int, group: str | None = None) -> Pause | None:
        """Return what keeps something from going on, or None. O(pauses)."""
        for each in self.pauses:
            if each.what == what and each.group in (None, group) and now_ms < each.end_ms:
                return each
        return None

    def groups(self) -> frozenset[str]:
        """Return the groups that one pause each is for."""
        return frozenset(each.group for each in self.pauses if each.group is not None)

    def list(self, now_ms: int) -> tuple[Pause, ...]:
        """Return the pauses that are not over."""
        return tuple(each for each in self.pauses if now_ms < each.end_ms)

    def _without(
        self, what: Paused, group: str | None, *, with_groups: bool = False
    ) -> tuple[Pause, ...]:
        return tuple(
            each
            for each in self.pauses
            if each.what != what or (each.group != group and not with_groups)
        )

    def _change(self, pauses: tuple[Pause, ...]) -> None:
        kept = [asdict(each) for each in pauses if each.kept]
        if kept or any(each.kept for each in self.pauses):
            write_json(self._disk, self._path, sealed({"pauses": kept}))
        self.pauses = pauses


def _read(path: Path, disk: Disk) -> tuple[Pause, ...]:
    content = read_json(path, disk.read) or {}
    with understood(path.name):
        return tuple(_parse(each) for each in content.get("pauses", []))


def _parse(entry: dict[str, Any]) -> Pause:
    what, group, until_ms = entry["what"], entry["group"], entry["until_ms"]
    if what not in ("putting", "firing", "consuming") or not isinstance(group, str | None):
        raise ValueError(f"{what!r} of group {group!r} cannot be paused")
    return Pause(
        what, group, whole(entry["since_ms"]), None if until_ms is None else whole(until_ms), True
    )
