"""Laying down a backup: its log as segments, or all of it with a list of its points."""

from __future__ import annotations

import atexit
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

import numpy as np

from timerstore.backups.building import write_files
from timerstore.backups.catalog import Catalog, PointRemovedError, kept_from, read_catalog
from timerstore.backups.destination import Destination, Place, find_place
from timerstore.backups.pieces import Slice, cover, parts_of
from timerstore.backups.points import EARLIER_FOLDER, BackupList, BackupPoint
from timerstore.backups.progress import Progress, Summed, Told
from timerstore.backups.segmentcopies import crc_of_bytes
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.jit.guards import Lock
from timerstore.timelog.reading.reader import Fault

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
        _Fetch(catalog, run, files, folder, disk, told, on_fault, reached).all(start, end)
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


class _Fetch:
    """Fetches pieces into segments that are open."""

    def __init__(
        self,
        catalog: Catalog,
        run: int,
        files: dict[int, int],
        folder: Path,
        disk: Disk,
        told: Told,
        on_fault: OnFault | None,
        reached: Reached,
    ) -> None:
        self.catalog, self.run, self.files, self.folder = catalog, run, files, folder
        self.disk, self._told, self._on_fault, self._reached = disk, told, on_fault, reached
        self._lock, self._start = Lock(), 0

    def all(self, start: int, end: int) -> None:
        """Fetch a range; pieces may be merged meanwhile, so what is missing is looked for again."""
        wanted, self._start = [(start, end)], start
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
                        self._reached(part.end)
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
        self._told(part.end - part.start)
        return True

    def _write(self, at: int, raw: memoryview) -> None:
        size = self.catalog.segment_bytes
        while raw:
            number, position = divmod(at, size)
            piece = np.frombuffer(raw[: size - position], np.uint8)
            if piece.any():
                path = self.folder / segment_name(number * size)
                self.disk.write_at(self.files[number], piece, position, path)
                if len(piece) >= _LARGE_BYTES:
                    self.disk.begin_writing(self.files[number], position, len(piece))
            at, raw = at + len(piece), raw[len(piece) :]

    def _damaged(self, error: CorruptStoreError) -> None:
        with self._lock.guard():
            if self._start < kept_from(self.catalog.dest, self.run):
                raise PointRemovedError(self.catalog.dest) from error
            if self._on_fault is None:
                raise error
            self._on_fault(Fault(error.file, error.offset, error.reason))


def lay_backup(
    catalog: Catalog,
    folder: Path,
    points: list[BackupPoint],
    *,
    disk: Disk,
    told: Told,
    on_fault: OnFault | None = None,
) -> None:
    """Make a backup in a folder, as `backup` does, of some points of a remote one; durable.

    The folder must be empty. A point of which the object is damaged is told, and left out; one that
    was removed since it was listed is left out. Raises PointRemovedError if none is left.
    """
    kept, laid = list[BackupPoint](), list[tuple[BackupPoint, dict[str, bytes]]]()
    for point in points:
        try:
            laid.append((point, catalog.read_files(point)))
        except PointRemovedError:
            if point is points[-1] and not kept:
                raise
            continue
        except CorruptStoreError as e:
            if on_fault is None:
                raise
            on_fault(Fault(e.file, e.offset, e.reason))
        kept.append(point)
    chain = catalog.chain
    assert chain is not None
    last_run = catalog.run_of(kept[-1]) if kept else chain.number
    listed = BackupList(folder, chain.store_tag, dict(chain.sizes), last_run)
    for run in sorted({catalog.run_of(point) for point in kept}):
        own = [point for point in kept if catalog.run_of(point) == run]
        first, end = min(p.log_start for p in own), max(p.log_end for p in own)
        target = folder / "commitlog" if run == last_run else folder / EARLIER_FOLDER / str(run)
        lay_log(catalog, run, first, end, target, disk=disk, told=told, on_fault=on_fault)
        _mark(listed, run, sorted({p.log_end for p in own}), first, end)
    for point, files in laid:
        write_files(disk, listed.point_folder(point.number), files)
        crcs = {name: zlib.crc32(data) for name, data in files.items()}
        listed.points.append(replace(point, chain=catalog.run_of(point), files=crcs))
    if laid:
        write_files(disk, folder, laid[-1][1])
    listed.write(disk)


def _mark(listed: BackupList, run: int, ends: list[int], start: int, end: int) -> None:
    """Note the checksums of segments that were laid down, up to each point's end in them."""
    size = listed.segment_bytes
    for number in range(start // size, -(-end // size)):
        base = number * size
        stops = sorted({min(each - base, size) for each in (*ends, end) if each > base})
        marks, at, crc = listed.marks_of(run, number), 0, 0
        with listed.segment_path(run, number).open("rb") as file:
            for stop in stops:
                at, crc = stop, crc_of_bytes(file, stop - at, crc)
                marks.append((stop, crc))


@contextmanager
def as_folder(
    place: Place,
    *,
    only_last: bool = False,
    progress: Progress | None = None,
    on_fault: OnFault | None = None,
) -> Iterator[Path]:
    """Yield a folder in which a store or a backup lies, for as long as the block runs.

    A backup is laid down below TMPDIR, which takes as much room as its log has bytes; with
    `only_last` only its last point. Else the folder is the one that was named.
    """
    found = find_place(place)
    if isinstance(found, Path):
        yield found
        return
    folder = Path(mkdtemp(prefix="timerstore-"))
    remove = partial(_remove_own, folder, os.getpid())
    atexit.register(remove)
    try:
        lay_destination(found, folder, only_last=only_last, progress=progress, on_fault=on_fault)
        yield folder
    finally:
        atexit.unregister(remove)
        remove()


def _remove_own(folder: Path, pid: int) -> None:
    """Remove a folder that this process made; a forked child leaves it to its parent."""
    if os.getpid() == pid:
        rmtree(folder, ignore_errors=True)


def lay_destination(
    dest: Destination,
    folder: Path,
    *,
    only_last: bool = False,
    progress: Progress | None = None,
    on_fault: OnFault | None = None,
) -> None:
    """Make a backup in an empty folder of what a destination holds; nothing of it is durable."""
    catalog = read_catalog(dest)
    points = catalog.points[-1:] if only_last else catalog.points
    if not points:
        raise InvalidArgumentError(f"{dest} holds no point yet. Take a backup first.")
    lay_backup(
        catalog,
        folder,
        points,
        disk=_Fleeting(),
        told=Summed(progress, sum(point.bytes_count for point in points[-1:])),
        on_fault=on_fault,
    )


class _Fleeting(Disk):
    """A disk for what goes again soon: nothing is made durable."""

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Do nothing."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing."""
