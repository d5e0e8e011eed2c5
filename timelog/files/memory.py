"""What Linux still allows this process: memory, as its control groups say, or maps."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Iterator
from heapq import nsmallest
from pathlib import Path, PurePosixPath
from typing import Protocol

from timerstore.timelog.files.segmenttable import TABLE_LENGTH

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""A limit and what is used of it: of version 2, and of version 1."""
_CACHE = ("inactive_file", "active_file")
_UNKNOWN_BYTES = 64 << 20
_MAPS_USUAL = 65_530


def available_bytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Return how many bytes are free, or hold pages of files, under each limit; 64 MiB if unknown.

    Cost: reads of some ten small files of the system.
    """
    free = [1024 * each for each in _fields(proc / "meminfo", "MemAvailable:")]
    for folder in _groups_of_process(proc, groups):
        free += _left(folder)
    return max(0, min(free, default=_UNKNOWN_BYTES))


def maps_allowed(bytes_of_one: int, proc: Path = _PROC) -> int:
    """Return how many segments of a store may stay mapped: an eighth of all maps of a process.

    Two that each queue writes to do not count. No more than what fits into a quarter of the
    addresses, if `ulimit -v` limits them.
    """
    told = _text(proc / "sys" / "vm" / "max_map_count").strip()
    count = (int(told) if told.isdigit() else _MAPS_USUAL) // 8
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    return count if addresses < 0 else min(count, addresses // 4 // bytes_of_one)


def _groups_of_process(proc: Path, groups: Path) -> Iterator[Path]:
    """Yield the folder of each control group that limits this process's memory."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = groups / "memory" if controllers else groups
        inside = PurePosixPath(name.lstrip("/"))  # in a container it may lead nowhere
        yield from (top / each for each in (inside, *inside.parents))


def _left(folder: Path) -> Iterator[int]:
    """Yield what a group's limit leaves, if it has one."""
    for limit, used in _FILES:
        text = _text(folder / limit).strip()
        if text.isdigit():
            stat = folder / "memory.stat"
            cache = _fields(stat, *(f"total_{each}" for each in _CACHE)) or _fields(stat, *_CACHE)
            yield int(text) - int(_text(folder / used) or 0) + sum(cache)


def _fields(path: Path, *names: str) -> list[int]:
    """Return the numbers behind these names."""
    rows = (line.split() for line in _text(path).splitlines())
    return [int(row[1]) for row in rows if row and row[0] in names]


def _text(path: Path) -> str:
    """Return what a file says; nothing if there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


# --- How many segments of a store stay mapped: each until it is removed, up to a share.


class Mapped(Protocol):
    """A log, as it is seen from here."""

    segment_bytes: int

    @property
    def end(self) -> int:
        """The append position."""

    def retire(self, number: int) -> None:
        """Drop the map of a full segment."""


class MapShare:
    """The maps of one store: beyond a number, those are dropped that were used the longest ago.

    Segments from a log's end on do not count: an append may come to any of them.
    """

    def __init__(self, count_max: int = TABLE_LENGTH) -> None:
        """`count_max`: so many stay mapped."""
        self.count_max = count_max
        self.clock = itertools.count(1)
        self.used: dict[tuple[Mapped, int], int] = {}
        """When Python used each map last, by `clock`."""
        self._at_ends = 0  # how many did not count when somebody looked last

    @property
    def is_used_up(self) -> bool:
        """Whether the next map may have another one dropped."""
        return len(self.used) >= self.count_max + self._at_ends

    def keep(self) -> None:
        """Drop what is beyond the share. O(1) until it is used up, then O(maps).

        Services call it before they map what they need next, and the flush thread; no reader does:
        any number of them would drop what a service has mapped before it has looked.
        """
        if len(self.used) <= self.count_max + self._at_ends:
            return
        used = self.used.copy()
        full = [(file, n) for file, n in used if n < file.end // file.segment_bytes]
        self._at_ends = len(used) - len(full)
        for file, number in nsmallest(len(full) - self.count_max, full, key=used.__getitem__):
            file.retire(number)
