"""The small files of a store as they stood at one moment, though somebody may write there.

A reader fixes its end first: the last checkpoint, as one consistent read. It copies the wheel with
it, which holds only if the store is closed: of an open one, as after a crash, the units say what
the slots lead to. If the checkpoint is another one afterwards, the reader starts again.

Segments are listed and mapped before and after that, and stay mapped (`look_steadily`). Retention
removes only by a later checkpoint, the oldest segment first. So what the checkpoint needs was there
before it, or is there behind it, unless a segment was made and removed between the two; then it is
all looked at again. One that was made ahead of the log's end may have been removed, and made again:
what has another inode by then is mapped anew.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from timerstore.errors import TimerStoreError
from timerstore.jit.host import open_in_memory
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.oserrors import store_error
from timerstore.timelog.files.smallfile import At, by_path, is_there, open_at, read_head, read_small

Read = Callable[[Path], bytes | None]

_CURSORS: Final = "timercheck"
KEPT_MAX: Final = 1 << 14
"""Segments of one store that a reader keeps open; Linux allows a process 65,530 maps."""
TRIES_MAX: Final = 200
_WAIT_S_MAX: Final = 0.02
_READS_MAX: Final = 100
_PIECE_BYTES: Final = 1 << 20


def read_file(path: Path, at: At = by_path) -> bytes | None:
    """Return a small file's content; None if there is none."""
    try:
        if path.name == _CURSORS:
            return read_head(path, 2 * fmt.CHECKPOINT_BYTES, at)
        return read_small(path, at=at)
    except FileNotFoundError:
        return None


def list_names(folder: Path, at: At = by_path) -> list[str]:
    """Return the names in a folder; none if it is missing, or no folder."""
    name, above = at(folder)
    fd = -1
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
        return os.listdir(fd)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise store_error(e, folder) from e
    finally:
        if fd >= 0:
            os.close(fd)


def list_segments(
    list_now: Callable[[], Iterable[int]], exists: Callable[[int], bool]
) -> list[int]:
    """Return the numbers of a log's segments, while some may be made at its end or removed.

    A folder is not listed at one moment: a segment may be seen though one behind it was removed
    before that one's turn came, or missed though one behind it was made later. What is listed may
    be gone by now, because it stays mapped: then it is left out if one behind it is missing. What
    stays a gap is one. `exists`: whether a segment has its file.
    """
    numbers: list[int] = []
    for _ in range(_READS_MAX):
        numbers = sorted(list_now())
        gaps = [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1]
        if not any(exists(numbers[i - 1] + 1) for i in gaps):
            removed = [i for i in gaps if not exists(numbers[i - 1])]
            return numbers[removed[-1] :] if removed else numbers
    return numbers


def tries() -> Iterator[int]:
    """Yield the number of each try to see a store that stands still, waiting longer and longer."""
    wait_s = 0.000_5
    for number in range(1, TRIES_MAX + 1):
        yield number
        time.sleep(wait_s * random.random())
        wait_s = min(2 * wait_s, _WAIT_S_MAX)


def none_between(before: list[int], numbers: list[int]) -> bool:
    """Tell whether no segment of a log came and went between two looks at it. O(n)."""
    fresh = set(numbers).difference(before)
    return min(fresh, default=-1) <= max(before, default=-1) + 1


def look_steadily(path: Path, at: At, keep: Callable[[], bool]) -> Steady:
    """Return the small files of a store, with the segments kept that go with their checkpoint.

    `keep`: lists and maps what is there and not yet mapped; it tells whether, in each log,
    `none_between` it and the last time.
    """
    for _ in tries():
        keep()
        steady = Steady(path, at)
        if keep():
            break
    return steady


class Steady:
    """The small files of a store; `read` returns them for as long as this object lives."""

    def __init__(self, path: Path, at: At) -> None:
        """Read the checkpoint, then everything that is not a log, until it goes together."""
        self.path, self.at = path, at
        self._checkpoint_path = path / "config" / _CURSORS
        for _ in tries():
            self._look()
            if self.holds():
                break

    def _look(self) -> None:
        path = self.path
        self.checkpoint_data = self._read_whole()
        self.is_open = is_there(path / "abort", self.at)
        self.wheel = WheelCopy(path / "timerwheel", self.at)
        self._errors: dict[Path, TimerStoreError] = {}
        self._files = {self._checkpoint_path: self.checkpoint_data}
        if self.is_open:
            self._files[path / "abort"] = read_file(path / "abort", self.at) or b""
        for each in self._small_files():
            if each not in self._files:
                try:
                    self._files[each] = read_file(each, self.at)
                except TimerStoreError as e:
                    self._errors[each] = e

    def _small_files(self) -> Iterator[Path]:
        """Yield what is read; never the lock, because closing it in its process lets it go."""
        yield from (self.path / name for name in ("timerstore.json", "checkpoint"))
        config = self.path / "config"
        yield from (config / name for name in list_names(config, self.at))

    def _read_whole(self) -> bytes | None:
        """Read the checkpoint as one write left it: until it reads the same twice."""
        before = read_file(self._checkpoint_path, self.at)
        for _ in range(_READS_MAX):
            again = read_file(self._checkpoint_path, self.at)
            if again == before:
                break
            before = again
        return before

    def read(self, path: Path) -> bytes | None:
        """Return a small file's content as it stood; None if there was none."""
        if path in self._errors:
            raise self._errors[path]
        if path in self._files:
            return self._files[path]
        if path.parent in (self.path, self.path / "config"):
            return None
        return read_file(path, self.at)

    def files(self) -> dict[str, bytes]:
        """Return all small files by their paths below the store's; raises what hindered reading."""
        for error in self._errors.values():
            raise error
        return {
            str(each.relative_to(self.path)): data
            for each, data in sorted(self._files.items())
            if data is not None
        }

    def holds(self) -> bool:
        """Tell whether the checkpoint is still the same."""
        if is_there(self.path / "abort", self.at) != self.is_open:
            return False
        return self._read_whole() == self.checkpoint_data


class WheelCopy:
    """A copy of the wheel's file, in memory without a name; its holes stay holes."""

    def __init__(self, path: Path, at: At) -> None:
        """Copy the file; `fd` is −1 if there is none."""
        self.fd, self.ranges, self.length = -1, list[tuple[int, int]](), 0
        try:
            source = open_at(path, at)
        except OSError:  # the code that needs it says what is wrong
            return
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                return
            self.length = os.fstat(source).st_size
            self.fd = open_in_memory(path.name)
            os.ftruncate(self.fd, self.length)
            for start, stop in ranges_of(source, 0, self.length):
                self.ranges.append((start, stop))
                while start < stop:
                    piece = os.pread(source, min(_PIECE_BYTES, stop - start), start)
                    if not piece:
                        break
                    start += os.pwrite(self.fd, piece, start)
        finally:
            os.close(source)

    def __del__(self) -> None:
        """Close the copy; maps of it live on."""
        if self.fd >= 0:
            os.close(self.fd)


def ranges_of(fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of [start, stop) of an open file that are no holes."""
    stop = min(stop, os.fstat(fd).st_size)
    while start < stop:
        try:
            first = os.lseek(fd, start, os.SEEK_DATA)
            last = os.lseek(fd, first, os.SEEK_HOLE)
        except OSError as e:
            if e.errno == errno.ENXIO:  # a hole up to the end
                return
            first, last = start, stop  # the file system knows no holes
        if first < stop:
            yield first, min(last, stop)
        start = last
