"""Taking a backup: what a store holds at one moment, copied while others write to it.

The commit log is the truth, so a backup is the log up to the end of a message, with the small files
of the last checkpoint before it: what a store that was killed at that moment would have on disk,
without its indexes, which recovery makes anew. The store's owner is not asked and not stopped. No
segment that is being read is used again, because a reader shares the lock on the log's folder.

Order: the segments' new bytes, the point's small files, each durable; then the list, which makes
the point one; then the small files at the top, and at last what no point needs goes. So the points
that the list names stay whole, even if a backup is killed.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from timerstore.backups.building import remove_tree, write_files
from timerstore.backups.destination import Destination, Place, find_place
from timerstore.backups.followed import FollowLock
from timerstore.backups.points import (
    EARLIER_FOLDER,
    POINTS_FOLDER,
    BackupList,
    BackupLock,
    BackupPoint,
    numbers_of,
    read_list,
)
from timerstore.backups.progress import Progress, Summed
from timerstore.backups.segmentcopies import append_bytes
from timerstore.backups.ship import ship_once
from timerstore.backups.taken import BackupReport
from timerstore.backups.taking import (
    check_continued,
    check_same_store,
    check_whole,
    make_durable,
    read_new,
    refuse_inside,
    sizes_of,
    small_files_of,
)
from timerstore.backups.timeline import find_divergence, read_restores
from timerstore.core.directory import LIST_FILE, is_backup
from timerstore.errors import InvalidArgumentError, MissingFileError
from timerstore.ground.config import Config
from timerstore.ground.kinds import check_int, check_kind, check_path
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.heldfolder import HeldFolder, hold_to_read
from timerstore.timelog.files.names import held_names, number_of, segment_offset
from timerstore.timelog.files.oserrors import telling, told_of
from timerstore.timelog.files.smallfile import read_small
from timerstore.timelog.reading.reader import StoreReader

_SAME_BYTES: Final = 1 << 16
"""So much before its end is compared with the store before a log is continued."""
_KEEP_MAX: Final = 1 << 20


@telling
def backup(
    path: str | os.PathLike[str],
    dest: Place,
    *,
    keep: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Add a point to the backup in `dest`, making it if there is none; return what was done.

    The store may be open in this or another process, at any rate of puts, closed, or killed; it is
    not changed. Everything whose put had returned before is in it. `keep`: so many points stay, the
    newest ones. O(bytes that were appended since the last point). Durable on return.

    `dest`: a folder; or an address such as s3://bucket/timers, gs://…, abfs://…, file:///folder, or
    a pyarrow.fs.FileSystem: then what is new is written there as objects, which never change.

    Raises InvalidArgumentError if `dest` is something else, or another store's; StoreFullError,
    StoreLockedError, also if a process follows the store there; StoreAccessError if it cannot be
    reached; CorruptStoreError if segments are missing: then the earlier points stay.

    >>> timerstore.backup("timers/", "backup/").ok
    True
    """
    return take_point(
        check_path(path), find_place(dest), keep=keep, config=config, progress=progress
    )


def take_point(
    path: Path,
    dest: Path | Destination,
    *,
    keep: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
    now_ms: int | None = None,
    disk: Disk | None = None,
    store: HeldFolder | None = None,
) -> BackupReport:
    """Do what `backup` says, at a time, on a disk; `store`: its folder, if it is open here."""
    if keep is not None:
        keep = check_int(keep, "keep", 1, _KEEP_MAX)
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    disk = Disk() if disk is None else disk
    folder = dest.folder if isinstance(dest, Destination) else dest
    if folder is not None:
        refuse_inside(path, folder)
    store = store or hold_to_read(path)
    if is_backup(path, store.at):
        raise InvalidArgumentError(
            f"{path} is a backup, not a store. Copy the folder, or restore it and back up the "
            "store that you get."
        )
    levels = np.array(config.delay_levels_ms(), np.int64)
    reader = StoreReader(path, levels, folder=store)
    check_whole(reader)
    if isinstance(dest, Destination):
        follow_lock = FollowLock.beside(path, store.at, dest)
        try:
            return ship_once(reader, dest, keep=keep, progress=progress, now_ms=now_ms)
        finally:
            if follow_lock is not None:
                follow_lock.release()
    with told_of(dest):
        _prepare(disk, dest)
        lock = BackupLock(dest, alone=True)
        try:
            found = _list_of(reader, dest)
            return _Run(reader, found, disk, progress, now_ms).take(keep)
        finally:
            lock.release()


def _prepare(disk: Disk, dest: Path) -> None:
    disk.make_folder(dest)
    names = held_names(dest)
    if LIST_FILE not in names and names - {"commitlog", POINTS_FOLDER, f"{LIST_FILE}.tmp"}:
        raise InvalidArgumentError(
            f"{dest} holds files that belong to no backup. Pass an empty folder, or the folder "
            "of a backup."
        )


def _list_of(reader: StoreReader, dest: Path) -> BackupList:
    if not is_backup(dest):
        return BackupList(dest, reader.sizes.store_tag, sizes_of(reader))
    found = read_list(dest)
    check_same_store(reader, found.store_tag, found.segment_bytes, dest)
    found.store_tag = reader.sizes.store_tag  # a broker's store may have become ours
    return found


class _Run:
    """One run of a backup."""

    def __init__(
        self,
        reader: StoreReader,
        found: BackupList,
        disk: Disk,
        progress: Progress | None,
        now_ms: int | None,
    ) -> None:
        self.reader, self.list, self.disk = reader, found, disk
        self._told = Summed(progress)
        self.now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms

    def take(self, keep: int | None) -> BackupReport:
        """Copy what is new; make it a point."""
        reader, listed = self.reader, self.list
        going_on = self._chain_end()
        start = reader.commitlog.start if going_on is None else going_on
        new = read_new(reader, start, self._told)
        make_durable(reader, start, new.end)
        if going_on is None:
            self._begin_chain()
        self._copy(start, new.end)
        point = self._write_point(new.end)
        listed.points.append(point)
        dropped = listed.points[:-keep] if keep is not None else []
        listed.points = listed.points[len(dropped) :]
        self._forget_marks()
        listed.write(self.disk)
        write_top(self.disk, listed.path, small_files_of(self.reader))
        self._prune()
        return BackupReport(
            path=os.fspath(reader.path),
            dest=os.fspath(listed.path),
            point=point,
            copied_bytes=new.end - start,
            message_count=new.message_count,
            problems=new.problems,
            point_count=len(listed.points),
        )

    # --- the log

    def _chain_end(self) -> int | None:
        """Return from where the backup's log is continued; None if a new chain begins."""
        listed, log = self.list, self.reader.commitlog
        if (listed.path / EARLIER_FOLDER / str(listed.chain)).is_dir():
            listed.chain += 1  # it was moved there, and then the run ended
        points = listed.in_chain()
        if not points:
            return None
        end = points[-1].log_end
        before = read_restores(listed.point_folder(points[-1].number))
        find_divergence(self.reader, before, end, listed.path)
        if end < log.start:
            return None
        first = max(points[-1].log_start, log.start, end - _SAME_BYTES)
        number = max(0, end - 1) // log.segment_bytes
        first = max(first, number * log.segment_bytes)
        if first < end:
            ours = self._read_copy(number, first - number * log.segment_bytes, end - first)
            is_same = log.read(first, end - first) == ours
            check_continued(self.reader, end, is_same, listed.path)
        return end

    def _read_copy(self, number: int, position: int, count: int) -> bytes:
        path = self.list.segment_path(self.list.chain, number)
        try:
            with path.open("rb") as file:
                file.seek(position)
                return file.read(count)
        except FileNotFoundError:
            return b""

    def _begin_chain(self) -> None:
        """Move the segments of the chain before out of the way."""
        listed, disk = self.list, self.disk
        folder = listed.path / "commitlog"
        if listed.in_chain():
            disk.make_folder(listed.path / EARLIER_FOLDER)
            disk.event("rename", folder)
            folder.rename(listed.path / EARLIER_FOLDER / str(listed.chain))
            disk.sync_folder(listed.path / EARLIER_FOLDER)
            disk.sync_folder(listed.path)
            listed.chain += 1
        elif folder.is_dir():
            remove_tree(disk, folder)
        disk.make_folder(folder)

    def _copy(self, start: int, end: int) -> None:
        listed, log = self.list, self.reader.commitlog
        size, folder = log.segment_bytes, listed.path / "commitlog"
        last = -(-end // size)
        for path in sorted(folder.iterdir()):
            offset = segment_offset(path.name)
            if offset is not None and offset >= end:  # an interrupted run left it
                self.disk.remove(path)
        for number in range(start // size, last):
            base, marks = number * size, listed.marks_of(listed.chain, number)
            first, stop = max(start - base, 0), min(end - base, size)
            while marks and marks[-1][0] > first:
                marks.pop()
            crc = marks[-1][1] if marks else 0
            if first == stop:
                continue
            path = listed.segment_path(listed.chain, number)
            crc = append_bytes(self.disk, path, size, log.map(number), first, stop, crc, self._told)
            marks.append((stop, crc))
            log.unmap()
        self.disk.sync_folder(folder)

    # --- the point

    def _write_point(self, end: int) -> BackupPoint:
        listed, disk, files = self.list, self.disk, small_files_of(self.reader)
        number = max((point.number for point in listed.points), default=0) + 1
        folder = listed.point_folder(number)
        if folder.is_dir():
            remove_tree(disk, folder)
        write_files(disk, folder, files)
        disk.sync_folder(folder.parent)
        disk.sync_folder(listed.path)
        log_start = self.reader.commitlog.start
        if listed.in_chain():
            log_start = max(log_start, listed.in_chain()[0].log_start)
        return BackupPoint(
            number=number,
            time_ms=self.now_ms,
            chain=listed.chain,
            log_start=log_start,
            log_end=end,
            files={name: zlib.crc32(data) for name, data in files.items()},
        )

    # --- what goes

    def _forget_marks(self) -> None:
        """Forget the marks of segments that no point needs."""
        listed = self.list
        needed = self._needed()
        listed.marks = {
            chain: {n: each for n, each in segments.items() if n in needed[chain]}
            for chain, segments in listed.marks.items()
            if chain in needed
        }

    def _needed(self) -> dict[int, set[int]]:
        needed: dict[int, set[int]] = {}
        for point in self.list.points:
            numbers = numbers_of(point, self.list.segment_bytes, point.log_end)
            needed.setdefault(point.chain, set()).update(numbers)
        return needed

    def _prune(self) -> None:
        """Remove what the list does not name any more."""
        listed, disk = self.list, self.disk
        needed, size = self._needed(), listed.segment_bytes
        kept = {str(point.number) for point in listed.points}
        for folder in sorted((listed.path / POINTS_FOLDER).iterdir()):
            if folder.name not in kept:
                remove_tree(disk, folder)
        earlier = listed.path / EARLIER_FOLDER
        for folder in sorted(earlier.iterdir()) if earlier.is_dir() else []:
            if number_of(folder.name) not in needed:
                remove_tree(disk, folder)
        for chain, numbers in needed.items():
            for path in sorted(listed.log_folder(chain).iterdir()):
                offset = segment_offset(path.name)
                if offset is not None and offset // size not in numbers:
                    disk.remove(path)


def write_top(disk: Disk, path: Path, files: dict[str, bytes]) -> None:
    """Let a backup's folder look like the store at its last point; the cursors come last."""
    for name in ("abort", "checkpoint", "timerstore.json"):
        if name not in files and (path / name).exists():
            disk.remove(path / name)
    for each in sorted((path / "config").glob("*")):
        if str(each.relative_to(path)) not in files and each.is_file():
            disk.remove(each)
    last = "config/timercheck"
    for name in sorted(files, key=lambda each: each == last):
        disk.make_folder((path / name).parent)
        if _content(path / name) != files[name]:
            disk.replace(path / name, files[name])


def _content(path: Path) -> bytes | None:
    try:
        return read_small(path)
    except MissingFileError:
        return None
