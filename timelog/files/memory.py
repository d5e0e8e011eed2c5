"""What Linux still allows this process: memory, as its control groups say, or maps."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

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
