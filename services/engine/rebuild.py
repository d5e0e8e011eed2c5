"""Rebuilding: what is damaged of the indexes is made anew from the commit log.

An index is never mended in place while a store opens: its files are removed, and recovery makes
them anew. `config/rebuild.json` says which, durably, from before the first of them is touched until
the checkpoint of the finished rebuild; so a process that is killed on the way begins again, and a
store that found the damage while it was open has it rebuilt by the next opening (`Wanted`).
"""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import Lock
from timerstore.timelog.files.disk import Disk, WrongSizeError
from timerstore.timelog.files.jsonfile import read_json, write_json
from timerstore.timelog.files.names import segment_offset
from timerstore.timelog.files.reader_end import Read, list_names
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.smallfile import is_there

# --- Damage: the places of a store that cannot be read, each named once.
#
# An index that is damaged is rebuilt from the commit log. A message that is damaged is lost: it is
# named here, taken off the count of what is pending, and passed by; all others fire.

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

    def __init__(self, path: Path, commitlog: SegmentedFile) -> None:
        self.path, self._commitlog = path, commitlog
        self.places: list[Place] = []
        self.count = 0
        self.since_ms: int | None = None  # when the first was found
        self._known: set[tuple[str, int]] = set()
        self._lock = Lock()

    def note(self, file: str, offset: int, reason: str) -> bool:
        """Name a place, in the log too; False if it was named before, or is no damage."""
        if file == "commitlog" and 0 <= offset < self._commitlog.start:
            return False  # it was removed
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


MARK_FILE: Final = "config/rebuild.json"
TIMERS: Final = "timer index"  # timer log and wheel
QUEUES: Final = "consume queues"
_FOLDER_OF: Final = {"timerlog": TIMERS, "timerwheel": TIMERS, "consumequeue": QUEUES}


Opened = TypeVar("Opened")


def index_of(file: str) -> str | None:
    """Return the index that a file belongs to; None for what cannot be rebuilt."""
    return _FOLDER_OF.get(file.partition("/")[0])


def read_mark(read: Read, path: Path) -> frozenset[str]:
    """Return which indexes the store wants to be rebuilt."""
    try:
        mark = read_json(path / MARK_FILE, read)
    except CorruptStoreError:
        return frozenset((TIMERS, QUEUES))
    if mark is None:
        return frozenset()
    wanted = mark.get("rebuild")
    wanted = wanted if isinstance(wanted, list) else []
    return frozenset(each for each in (TIMERS, QUEUES) if each in wanted)


def write_mark(disk: Disk, path: Path, wanted: frozenset[str]) -> None:
    """Say, durably, that these indexes must be rebuilt."""
    before = read_mark(disk.read, path)
    if not wanted <= before:
        write_json(disk, path / MARK_FILE, {"rebuild": sorted(wanted | before)})


class Wanted:
    """The indexes of an open store that the next opening makes anew. Any thread may ask.

    What they are made anew from is neither cleaned nor removed until then.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.disk, self.path, self.indexes = disk, path, frozenset[str]()
        self.keep_from = 1 << 62
        """The offset from which the commit log is needed: no index misses a message before it."""
        self._lock = Lock()

    def add(self, *indexes: str, keep_from: int = 0) -> None:
        """Want indexes to be made anew; durable on return. `keep_from`: see above."""
        with self._lock.guard():
            self.keep_from = min(self.keep_from, keep_from)
            self.indexes |= frozenset(indexes)
            self.write()

    def write(self) -> None:
        """Write the mark again, if anything is wanted: it may have been removed meanwhile."""
        if self.indexes:
            write_mark(self.disk, self.path, self.indexes)


def remove_mark(disk: Disk, path: Path) -> None:
    """Say that the indexes are whole; after the checkpoint that says so."""
    if disk.exists(path / MARK_FILE):
        disk.remove(path / MARK_FILE)
        disk.sync_folder(path / "config")


def find_missing(disk: Disk, path: Path) -> frozenset[str]:
    """Return the indexes that are gone of a store that was in use."""
    in_use = is_there(path / "config" / "timercheck", disk.at, stat.S_ISREG)
    if not in_use or not list_names(path / "commitlog", disk.at):
        return frozenset()
    missing = set()
    if not is_there(path / "timerlog", disk.at, stat.S_ISDIR):
        missing.add(TIMERS)
    if not is_there(path / "consumequeue", disk.at, stat.S_ISDIR):
        missing.add(QUEUES)
    return frozenset(missing)


def open_rebuilding(
    path: Path,
    disk: Disk,
    attempt: Callable[[frozenset[str], tuple[Place, ...]], Opened],
) -> Opened:
    """Open a store by `attempt`, which is told which indexes to make anew, and why.

    If an index turns out damaged, it is tried again without it. An attempt leaves nothing behind
    that the next one does not repeat.
    """
    wanted, places = read_mark(disk.read, path) | find_missing(disk, path), list[Place]()
    while True:
        if wanted:
            write_mark(disk, path, wanted)
            remove_files(disk, path, wanted)
        try:
            return attempt(wanted, tuple(places))
        except (CorruptStoreError, WrongSizeError) as e:
            place = _place_of(path, e)
            index = index_of(place.file)
            if index is None or index in wanted or disk.doubts_damage:
                raise
        log.warning(
            "%s: %s is damaged at offset %d: %s; the %s will be rebuilt from the commit log",
            *(path, place.file, place.offset, place.reason, index),
        )
        places.append(place)
        wanted |= {index}


def _place_of(path: Path, error: CorruptStoreError | WrongSizeError) -> Place:
    if isinstance(error, CorruptStoreError):
        return Place(error.file, error.offset, error.reason)
    name = str(error.path.relative_to(path))
    offset = segment_offset(error.path.name)
    if offset is not None:  # a segment: named by its folder
        return Place(str(error.path.relative_to(path).parent), offset, error.reason)
    return Place(name, error.offset, error.reason)


def remove_files(disk: Disk, path: Path, wanted: frozenset[str]) -> None:
    """Remove the files of indexes; what holds nothing of ours stays."""
    files = list[Path]()
    if TIMERS in wanted:
        files += [*_within(disk, [path / "timerlog"]), path / "timerwheel"]
    if QUEUES in wanted:
        files += _within(disk, _within(disk, _within(disk, [path / "consumequeue"])))
    for file in files:
        if is_there(file, disk.at, stat.S_ISREG):
            disk.remove(file)


def _within(disk: Disk, folders: list[Path]) -> list[Path]:
    return [each / name for each in folders for name in sorted(list_names(each, disk.at))]
