"""Laying down a backup: its log as segments, with the small files of its last point."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Final

import numpy as np

from timerstore.copies.catalog import Catalog, PointRemovedError, Slice, cover, kept_from, parts_of
from timerstore.copies.report import BackupLock, BackupPoint, Problem, Told
from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.jit.guards import Lock
from timerstore.services.opening.recovery_findings import RecoveryFindings
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.files.checkpoint import find_identity
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import BUILDING_FOLDER, held_names, segment_name, segment_offset
from timerstore.timelog.reading.reader import Fault
from timerstore.values.config import Config

# --- a store that gets its name once it is whole


@contextmanager
def built_beside(disk: Disk, target: Path) -> Iterator[Path]:
    """Yield an empty folder, which becomes `target` at the end; if that fails, nothing stays.

    A volume's root cannot be replaced. Its files are built inside it, and move up at the end; as
    long as that folder is there, nobody opens what there is.
    """
    if target.is_symlink() or not _is_free(target):
        raise InvalidArgumentError(
            f"{target} exists and is not empty. Pass a folder that does not exist, or an empty one."
        )
    within = os.path.ismount(target) or (target.is_dir() and any(target.iterdir()))
    building = target / BUILDING_FOLDER if within else target.with_name(f".{target.name}.building")
    disk.make_folder(building)
    lock = BackupLock(building)
    try:
        for each in list(building.iterdir()):  # of a run that was ended
            remove_tree(disk, each) if each.is_dir() else disk.remove(each)
        yield building
        if within:
            _move_up(disk, building, target)
        else:
            building.rename(target)
            disk.sync_folder(target.parent)
    except BaseException as e:
        if building.is_dir():  # else it has its name already, and is whole
            remove_tree(disk, building)
        _name(e, building, target)
        raise
    finally:
        lock.release()


def _name(error: BaseException, building: Path, target: Path) -> None:
    """Have an error name the folder that was asked for, not the one that is gone."""
    error.args = tuple(
        each.replace(str(building), str(target)) if isinstance(each, str) else each
        for each in error.args
    )
    if isinstance(error, OSError) and isinstance(error.filename, str):
        error.filename = error.filename.replace(str(building), str(target))


def _is_free(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not held_names(path) - {BUILDING_FOLDER})


def _move_up(disk: Disk, building: Path, target: Path) -> None:
    """Give the files of a folder to the one that it lies in; if that fails, take them back."""
    moved = list[str]()
    try:
        for name in sorted(held_names(building)):
            (building / name).rename(target / name)
            moved.append(name)
        disk.sync_folder(target)
        building.rmdir()
    except BaseException:
        for name in moved:
            (target / name).rename(building / name)
        raise
    disk.sync_folder(target)


def remove_tree(disk: Disk, folder: Path) -> None:
    """Remove a folder with its files; if that is interrupted, some of them are left."""
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.is_symlink():
            remove_tree(disk, each)
        else:
            disk.remove(each)
    folder.rmdir()


def write_files(disk: Disk, folder: Path, files: dict[str, bytes]) -> None:
    """Write small files into a folder; durable on return, except the folder's name."""
    disk.make_folder(folder)
    for name, data in files.items():
        disk.make_folder((folder / name).parent)
        disk.replace(folder / name, data)


def cut_log(disk: Disk, folder: Path, log_end: int, segment_bytes: int) -> None:
    """Leave nothing of a commit log behind its end; durable except the folder's names.

    The first segment stays in any case. If this is interrupted, what is left has no gap.
    """
    found = sorted(
        (offset, path)
        for path in folder.iterdir()
        if (offset := segment_offset(path.name)) is not None
    )
    for offset, path in reversed(found):  # wherever that ends, no segment is missing in between
        if offset >= log_end and offset > found[0][0]:
            disk.remove(path)
        elif offset + segment_bytes > log_end:
            fd = disk.open_file(path)
            try:
                os.ftruncate(fd, max(0, log_end - offset))
                os.ftruncate(fd, segment_bytes)
                disk.sync(fd, path)
            finally:
                os.close(fd)


def bring_to_life(
    path: Path,
    disk: Disk,
    config: Config,
    clock: ManualClock | None,
    sizes: Mapping[str, int | None] | None = None,
) -> tuple[RecoveryFindings, tuple[Problem, ...]]:
    """Recover a store whose indexes are missing, so that they are there; nothing fires.

    It is left as a kill would leave it: a clean close says that every message that has a copy was
    claimed. `sizes`: what it was made with, if its files do not say that, as a broker's do not.
    Returns what was found, and what is damaged: each message of the log was checked by its CRC.
    """
    if sizes is not None and find_identity(path)[0] is None:
        known = {name: size for name, size in sizes.items() if size is not None}
        config = replace(config, **known)  # type: ignore[arg-type]
    core = Core(path, disk, clock)
    try:
        core.lock(create=False)
        core.open(config)
        damage = core.engine.damage.to_list()
        return core.findings, tuple(
            Problem(each["file"], each["offset"], each["reason"]) for each in damage
        )
    finally:
        core.give_up_opening()


# --- laying it down again


DOWNLOAD_COUNT: Final = 4
"""Pieces that are fetched side by side; each is a block at most, 32 MiB, in memory."""
_TRIES_MAX: Final = 3
"""Of one object that does not come as it was written, and of a list of pieces."""
_LARGE_BYTES: Final = 1 << 18
"""So many bytes the disk begins to write at once, while the next ones are unpacked."""

Reached = Callable[[int], None]
"""Takes how far the log is there, from its beginning on."""
OnFault = Callable[[Fault], None]
"""Takes what is damaged, or missing; if it is given, zeros stay in that place."""


def lay_log(
    catalog: Catalog,
    run: int,
    start: int,
    end: int,
    folder: Path,
    *,
    disk: Disk,
    told: Told,
    on_fault: OnFault | None = None,
    reached: Reached = lambda end: None,
) -> None:
    """Write bytes [start, end) of a log as segments into a folder; every byte is checked.

    Zeros follow up to the end of the last segment; zeros stay holes. Durable on return, the names
    included. `reached` is called with `start` once all files have their length. O(bytes). Raises
    CorruptStoreError, StoreAccessError, StoreFullError.
    """
    size = catalog.segment_bytes
    disk.make_folder(folder)
    files = {
        number: disk.open_file(folder / segment_name(number * size), create=True)
        for number in range(start // size, -(-end // size))
    }
    try:
        for number, fd in files.items():
            _set_length(disk, fd, size, folder / segment_name(number * size))
        reached(start)
        _Fetch(catalog, run, start, files, folder, disk, told, on_fault, reached).upto(end)
        for number, fd in files.items():
            disk.sync(fd, folder / segment_name(number * size))
    finally:
        for fd in files.values():
            os.close(fd)
    disk.sync_folder(folder)


def _set_length(disk: Disk, fd: int, length: int, path: Path) -> None:
    try:
        os.ftruncate(fd, length)
    except OSError as e:
        raise disk.full(e, path) from e


@dataclass(slots=True)
class _Fetch:
    """Fetches pieces into segments that are open, from `start` on."""

    catalog: Catalog
    run: int
    start: int
    files: dict[int, int]
    folder: Path
    disk: Disk
    told: Told
    on_fault: OnFault | None
    reached: Reached
    lock: Lock = field(default_factory=Lock)

    def upto(self, end: int) -> None:
        """Fetch a range; pieces may be merged meanwhile, so what is missing is looked for again."""
        wanted = [(self.start, end)]
        for number in range(_TRIES_MAX):
            if number:
                self.catalog.refresh()
            parts, missing = self._parts(wanted)
            with ThreadPoolExecutor(DOWNLOAD_COUNT) as pool:
                for part, was_there in zip(parts, pool.map(self._fetch, parts), strict=True):
                    if not was_there:
                        error = CorruptStoreError(part.piece.name, 0, "it is missing")
                        missing.append((part.start, part.end, error))
                    elif not missing and not number:  # later ones are in no order
                        self.reached(part.end)
            if not missing:
                return
            wanted = [(first, stop) for first, stop, _ in missing]
        for *_, error in missing:
            self._damaged(error)

    def _parts(
        self, wanted: list[tuple[int, int]]
    ) -> tuple[list[Slice], list[tuple[int, int, CorruptStoreError]]]:
        """Return what makes up some ranges, and the ranges that no piece holds."""
        parts = list(self.catalog.parts(self.run))
        found, missing = list[Slice](), list[tuple[int, int, CorruptStoreError]]()
        for start, end in wanted:
            while start < end:
                try:
                    found += cover(parts, start, end)
                    break
                except CorruptStoreError as e:
                    found += cover(parts, start, e.offset) if e.offset > start else []
                    start = min((p.start for p in parts if e.offset < p.start < end), default=end)
                    missing.append((e.offset, start, e))
        return found, missing

    def _fetch(self, part: Slice) -> bool:
        """Fetch a part of a piece; return whether the piece was there."""
        seed = self.catalog.seed_of(part.piece)
        for number in range(1, _TRIES_MAX + 1):
            try:
                data = self.catalog.dest.get(part.piece.name)
            except FileNotFoundError:
                return False
            try:
                for at, raw in parts_of(part.piece, data, seed):
                    first, stop = max(at, part.start), min(at + len(raw), part.end)
                    if first < stop:
                        self._write(first, raw[first - at : stop - at])
            except CorruptStoreError as e:
                if number == _TRIES_MAX:
                    self._damaged(e)
            else:
                break
        self.told(part.end - part.start)
        return True

    def _write(self, at: int, raw: memoryview) -> None:
        size = self.catalog.segment_bytes
        while raw:
            number, position = divmod(at, size)
            piece = np.frombuffer(raw[: size - position], np.uint8)
            if piece[0] or piece.any():  # mostly the first byte says it
                path = self.folder / segment_name(number * size)
                self.disk.write_at(self.files[number], piece, position, path)
                if len(piece) >= _LARGE_BYTES:
                    self.disk.begin_writing(self.files[number], position, len(piece))
            at, raw = at + len(piece), raw[len(piece) :]

    def _damaged(self, error: CorruptStoreError) -> None:
        with self.lock.guard():
            if self.start < kept_from(self.catalog.dest, self.run):
                raise PointRemovedError(self.catalog.dest) from error
            if self.on_fault is None:
                raise error
            self.on_fault(Fault(error.file, error.offset, error.reason))


def lay_backup(
    catalog: Catalog,
    folder: Path,
    points: list[BackupPoint],
    *,
    disk: Disk,
    told: Told,
    on_fault: OnFault | None = None,
) -> BackupPoint:
    """Lay down in an empty folder what some points of a backup need; return the last of them.

    The folder looks like a store without indexes: the log that the last point is in, from the
    first point's begin on, with the last point's small files. Logs before a gap are only looked at.
    A point of which the object is damaged is told, and one that was removed since it was listed is
    left out. Raises PointRemovedError if none is left.
    """
    kept, files = list[BackupPoint](), dict[str, bytes]()
    for point in points:
        try:
            files = catalog.read_files(point)
        except PointRemovedError:
            if point is points[-1] and not kept:
                raise
            continue
        except CorruptStoreError as e:
            if on_fault is None:
                raise
            on_fault(Fault(e.file, e.offset, e.reason))
        kept.append(point)
    last_run = catalog.run_of(kept[-1])
    for run in sorted({catalog.run_of(point) for point in kept}):
        own = [point for point in kept if catalog.run_of(point) == run]
        span = min(p.log_start for p in own), max(p.log_end for p in own)
        target = folder / ("commitlog" if run == last_run else "earlier")
        lay_log(catalog, run, *span, target, disk=disk, told=told, on_fault=on_fault)
        if run != last_run:
            rmtree(target)
    write_files(disk, folder, files)
    return kept[-1]
