"""Disks that lose their power, refuse, or do not wait: `TimerStore(path, disk=…)` takes one."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Final

from timerstore.jit.guards import Lock
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.reader_end import ranges_of

SECTOR_BYTES: Final = 512
_PAGE_BYTES: Final = 4_096


class PowerCutError(Exception):
    """The machine stops here."""


class QuietDisk(Disk):
    """A disk that does not wait: bytes stay in the page cache, which outlives a process."""

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Tell the event alone."""
        self.event("sync", path)

    def sync_folder(self, path: Path) -> None:
        """Tell the event alone."""
        self.event("sync_folder", path)


class PowerDisk(QuietDisk):
    """A disk that can lose its power; `cut` writes what would be left then.

    It remembers what each file of a folder held when it was made durable last, and which names are
    not durable yet. Nothing waits for a real disk. What was in the folder before counts as durable,
    if `synced` does not say what was. With `rnd` the system writes pages back by itself, now and
    then, so that a cut may also find versions between. With `stop_after` = n it raises
    PowerCutError at the n-th step from now, and at each later one.

    O(bytes of a file) for each step that makes it durable: take small segments (`Tuning`).

    >>> from timerstore.testing import PowerDisk
    >>> disk = PowerDisk("crashed")
    >>> crashed = timerstore.TimerStore("crashed", disk=disk)
    >>> id = crashed.put(b"hello", delay=timedelta(hours=1))  # durable when it returns
    >>> crashed.abandon()
    >>> left = disk.cut("left")
    >>> with timerstore.open("left") as found:
    ...     found.get(id).body
    b'hello'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        synced: dict[Path, bytes] | None = None,
        rnd: random.Random | None = None,
    ) -> None:
        super().__init__()
        self.root, self.rnd, self.stop_after = Path(os.path.abspath(path)), rnd, -1
        if synced is None:
            synced = {each: _content(each) for each in _files(self.root)}
        self.synced = synced
        self._one_at_a_time = Lock()  # an older look never replaces a newer one
        self.renames: list[tuple[Path, Path]] = []  # since their folder was synced
        self.replacing: dict[Path, bytes] = {}  # synced before its name is changed

    def event(self, kind: str, path: Path) -> None:
        """Count down to the cut."""
        if self.stop_after > 0:
            self.stop_after -= 1
        if self.stop_after == 0:
            raise PowerCutError
        if self.rnd is not None and self.rnd.random() < 0.3:
            self._write_back(self.rnd)

    def _write_back(self, rnd: random.Random) -> None:
        """Have the system write a page, as it may at any time."""
        path = rnd.choice(list(self.synced) or [self.root])
        with self._one_at_a_time.guard():
            before, now = self.synced.get(path, b""), _content(path)
            if now != before and now:
                at = rnd.randrange(0, len(now), _PAGE_BYTES)
                stop = at + _PAGE_BYTES
                before = before.ljust(at, b"\0")
                self.synced[path] = before[:at] + now[at:stop] + before[stop:]

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Take what the file holds now for safe."""
        super().sync(file, path)
        with self._one_at_a_time.guard():
            self.synced[path] = _content(path)

    def replace(self, path: Path, data: bytes, temporary: Path | None = None) -> None:
        """Rename: the content was synced before it, so either the old or the new one is whole."""
        self.replacing[path] = data
        try:
            super().replace(path, data, temporary)
        finally:
            if _content(path) == data:
                self.synced[path] = data

    def rename(self, path: Path, name: Path) -> bool:
        """Note that the file has another name, which is safe once its folder is synced."""
        done = super().rename(path, name)
        if done:
            self.renames.append((path, name))
            if path in self.synced:
                self.synced[name] = self.synced.pop(path)
        return done

    def sync_folder(self, path: Path) -> None:
        """Take what was renamed in it for safe."""
        super().sync_folder(path)
        self.renames = [each for each in self.renames if each[0].parent != path]

    def remove(self, path: Path) -> None:
        """Remove for good."""
        super().remove(path)
        self.synced.pop(path, None)

    def cut(
        self, target: str | os.PathLike[str], rnd: random.Random | None = None
    ) -> dict[Path, bytes]:
        """Write to `target` what a power cut now would leave; return it, for it is durable there.

        Of each file it is the durable content, and any sectors of 512 bytes that the system wrote
        by itself; a rename may be undone. `target` must not exist, and nobody may write to the
        store meanwhile: `abandon` it first. O(bytes).
        """
        target, rnd = Path(target), rnd or self.rnd or random.Random(0)
        target.mkdir()
        share = rnd.choice((0.0, 0.3, 0.9))
        old_names = {name: path for path, name in self.renames if rnd.random() < 0.5}
        left: dict[Path, bytes] = {}
        for path in sorted(self.root.rglob("*")):
            where = target / old_names.get(path, path).relative_to(self.root)
            if path.is_dir():
                where.mkdir(parents=True, exist_ok=True)
                continue
            if path.name == "lock" or not path.is_file():
                continue
            now = _content(path)
            safe = now if self.replacing.get(path) == now else self.synced.get(path)
            if safe is None and path.parent == self.root:
                continue  # a name that the folder may not have yet
            safe = (b"" if safe is None else safe).ljust(len(now), b"\0")
            now = now.ljust(len(safe), b"\0")
            out = bytearray(safe)
            for at in range(0, len(now), SECTOR_BYTES):
                sector = now[at : at + SECTOR_BYTES]
                if sector != safe[at : at + SECTOR_BYTES] and rnd.random() < share:
                    out[at : at + SECTOR_BYTES] = sector
            with where.open("wb") as file:
                file.write(out)
                file.truncate(path.stat().st_size)
            left[where] = bytes(out)
        return left


class FailingDisk(Disk):
    """A disk that refuses what you choose, with an error of the system.

    Its steps are of the kinds mkdir, create, allocate, write, sync, sync_folder, replace, rename,
    remove and renew.

    >>> import errno
    >>> from timerstore.testing import FailingDisk
    >>> disk = FailingDisk()
    >>> full = timerstore.TimerStore("full", disk=disk)
    >>> disk.refuse(errno.EIO, "sync")
    >>> full.put(b"hello")
    Traceback (most recent call last):
        ...
    timerstore.errors.FlushFailedError: ...
    >>> full.abandon()
    """

    def __init__(self) -> None:
        super().__init__()
        self.number: int | None = None
        self.kinds: tuple[str, ...] = ()
        self.where, self.passed_count = "", 0
        self.refused: Counter[str] = Counter()
        """How often a step was refused, by kind."""

    def refuse(self, number: int, *kinds: str, where: str = "", after: int = 0) -> None:
        """From now on fail with an errno at steps of these kinds; without any, at all.

        `where`: only for files whose path holds this text. `after`: so many of these steps pass
        before.
        """
        self.number, self.kinds, self.where, self.passed_count = number, kinds, where, after

    def heal(self) -> None:
        """From now on work."""
        self.number = None

    def event(self, kind: str, path: Path) -> None:
        """Fail, or do nothing."""
        if self.number is None or (self.kinds and kind not in self.kinds):
            return
        if self.where in str(path):
            if self.passed_count > 0:
                self.passed_count -= 1
                return
            self.refused[kind] += 1
            raise OSError(self.number, os.strerror(self.number), str(path))


def _files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


def _content(path: Path) -> bytes:
    """Return what a file holds, without the hole at its end; nothing, if there is none."""
    try:
        with path.open("rb") as file:
            ranges = list(ranges_of(file.fileno(), 0, os.fstat(file.fileno()).st_size))
            file.seek(0)
            return file.read(ranges[-1][1]) if ranges else b""
    except (FileNotFoundError, IsADirectoryError):
        return b""
