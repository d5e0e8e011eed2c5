"""Taking a backup: what a store holds at one moment, copied beside whoever writes to it.

The commit log is the truth, so a backup is the log up to the end of a message, with the small files
of the last checkpoint before it: what a store that was killed at that moment would have on disk,
without its indexes, which recovery makes anew. The store's owner is not asked and not stopped. No
segment that is read is used again meanwhile, since a reader shares the lock on the log's folder.

Order: the segments' new bytes, the point's small files, each durable; then the list, which makes
the point one; then the small files at the top, and at last what no point needs goes. So whatever
ends a backup, the points that the list names stay whole.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.backups.building import remove_tree, write_files
from timerstore.backups.points import (
    EARLIER_FOLDER,
    POINTS_FOLDER,
    BackupList,
    BackupLock,
    BackupPoint,
    read_list,
)
from timerstore.backups.report import Problem, shown_problems
from timerstore.backups.segmentcopies import append_bytes
from timerstore.backups.timeline import find_divergence
from timerstore.core.directory import LIST_FILE, is_backup
from timerstore.errors import CorruptStoreError, InvalidArgumentError, MissingFileError
from timerstore.ground.config import Config
from timerstore.ground.kinds import check_int, check_kind, check_path
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import number_of, segment_offset
from timerstore.timelog.files.oserrors import telling, told_of
from timerstore.timelog.files.smallfile import read_small
from timerstore.timelog.jit.mapping import sync_mapping
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.reader import StoreReader

Progress = Callable[[int, int], None]
"""Takes how many bytes are done, of how many."""

_LEFT_OUT: Final = frozenset(
    f"config/{name}" for name in ("wheelsums", "timermetrics", "rebuild.json", "keyindex.json")
)
"""They belong to the indexes."""
_SAME_BYTES: Final = 1 << 16
"""So much before its end is compared with the store before a log is continued."""
_KEEP_MAX: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupReport:
    """What a backup did."""

    path: str
    dest: str
    point: BackupPoint
    copied_bytes: int
    """Of the log; what the backup held before was not copied again."""
    message_count: int
    """Messages in what was copied."""
    problems: tuple[Problem, ...]
    """Damage in what was copied: it is in the store, and in the backup as it is there."""
    point_count: int
    """Points that the backup holds now."""

    @property
    def ok(self) -> bool:
        """Whether no damage was met."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["point"] = self.point.to_dict()
        values["problems"] = [each.to_dict() for each in self.problems]
        return {"ok": self.ok} | values

    def __str__(self) -> str:
        """Return a sentence, with what is damaged."""
        end = f"point {self.point.number} of {self.point_count} in {self.dest}"
        lines = [
            f"{self.path}: {end}; {self.message_count:,} messages, {self.copied_bytes:,} bytes "
            f"were new, of {self.point.bytes_count:,}"
        ]
        return "\n".join(
            [*lines, *shown_problems("  DAMAGED: ", self.problems, len(self.problems))]
        )


@telling
def backup(
    path: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    keep: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Add a point to the backup in `dest`, making it where there is none; return what was done.

    The store may be open in this or another process, at any rate of puts, closed, or killed; it is
    not changed. Everything whose put had returned before is in it. `keep`: so many points stay, the
    newest ones. O(bytes that were appended since the last point). Durable on return.

    Raises InvalidArgumentError where `dest` is something else, or another store's; StoreFullError,
    StoreLockedError, CorruptStoreError where segments are missing: then the earlier points stay.

    >>> timerstore.backup("timers/", "backup/").ok
    True
    """
    return take_point(
        check_path(path), check_path(dest), keep=keep, config=config, progress=progress
    )


def take_point(
    path: Path,
    dest: Path,
    *,
    keep: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
    now_ms: int | None = None,
    disk: Disk | None = None,
) -> BackupReport:
    """Do what `backup` says, at a time, on a disk."""
    if keep is not None:
        check_int(keep, "keep", 1, _KEEP_MAX)
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    disk = Disk() if disk is None else disk
    refuse_inside(path, dest)
    if is_backup(path):
        raise InvalidArgumentError(f"{path} is a backup. Copy the folder, or restore it.")
    levels = np.array(config.delay_levels_ms(), np.int64)
    reader = StoreReader(path, levels)
    check_whole(reader)
    with told_of(dest):
        _prepare(disk, dest)
        lock = BackupLock(dest, alone=True)
        try:
            found = _list_of(reader, dest)
            return _Run(reader, found, disk, progress, now_ms).take(keep)
        finally:
            lock.release()


def refuse_inside(path: Path, dest: Path) -> None:
    """Refuse a folder that is the store's own, or lies in it, or around it."""
    store, target = path.resolve(), dest.resolve()
    if store == target or store in target.parents or target in store.parents:
        raise InvalidArgumentError(
            f"{dest} and {path} lie in one another. Pass a folder elsewhere, on another disk."
        )


def check_whole(reader: StoreReader) -> None:
    """Raise CorruptStoreError where segments of the commit log are missing, or cut."""
    for fault in reader.commitlog.faults:
        raise CorruptStoreError(*fault)


def _prepare(disk: Disk, dest: Path) -> None:
    disk.make_folder(dest)
    names = {each.name for each in dest.iterdir()}
    if LIST_FILE not in names and names - {"commitlog", POINTS_FOLDER, f"{LIST_FILE}.tmp"}:
        raise InvalidArgumentError(
            f"{dest} holds something else than a backup. Pass an empty folder, or a backup's."
        )


def _list_of(reader: StoreReader, dest: Path) -> BackupList:
    sizes = reader.sizes
    if not is_backup(dest):
        names = ("commitlog", "consumequeue", "timerlog")
        measured: dict[str, int | None] = {
            f"{name}_segment_bytes": getattr(sizes, f"{name}_segment_bytes") for name in names
        }
        measured["wheel_slot_count"] = sizes.wheel_slot_count
        measured["precision_ms"] = reader.precision_ms
        measured["roll_window_slots"] = sizes.roll_window_slots
        return BackupList(dest, sizes.store_tag, measured)
    found = read_list(dest)
    if found.store_tag not in (sizes.store_tag, -1):
        raise InvalidArgumentError(
            f"{dest} is a backup of another store than {reader.path}. Pass another folder."
        )
    if found.segment_bytes != sizes.commitlog_segment_bytes:
        raise InvalidArgumentError(
            f"{dest} has segments of {found.segment_bytes} bytes, {reader.path} has them of "
            f"{sizes.commitlog_segment_bytes}: that is another store. Pass another folder."
        )
    found.store_tag = sizes.store_tag  # a broker's store may have become ours
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
        self.reader, self.list, self.disk, self._progress = reader, found, disk, progress
        self.now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._done, self._total = 0, 1

    def take(self, keep: int | None) -> BackupReport:
        """Copy what is new; make it a point."""
        reader, listed = self.reader, self.list
        problems, message_count = list[Problem](), 0
        going_on = self._chain_end()
        start = end = reader.commitlog.start if going_on is None else going_on
        self._total = 2 * max(flushed_end(reader) - start, 1)
        for part in sound_log(reader, start):
            if isinstance(part, Problem):
                problems.append(part)
            else:
                message_count += part[0]
                self._told(max(part[1] - end, 0))
                end = max(end, part[1])
        self._total = 2 * (end - start)
        self._make_durable(end)
        if going_on is None:
            self._begin_chain()
        self._copy(start, end)
        point = self._write_point(end)
        listed.points.append(point)
        dropped = listed.points[:-keep] if keep is not None else []
        listed.points = listed.points[len(dropped) :]
        self._forget_marks()
        listed.write(self.disk)
        self._write_top(point)
        self._prune()
        return BackupReport(
            path=os.fspath(reader.path),
            dest=os.fspath(listed.path),
            point=point,
            copied_bytes=end - start,
            message_count=message_count,
            problems=tuple(problems),
            point_count=len(listed.points),
        )

    # --- the log

    def _chain_end(self) -> int | None:
        """Return from where the backup's log is continued; None where a new chain begins."""
        listed, log = self.list, self.reader.commitlog
        if (listed.path / EARLIER_FOLDER / str(listed.chain)).is_dir():
            listed.chain += 1  # it was moved there, and then the run ended
        points = listed.in_chain()
        if not points:
            return None
        end = points[-1].log_end
        find_divergence(self.reader, listed, points[-1])
        if end < log.start:
            return None
        first = max(points[-1].log_start, log.start, end - _SAME_BYTES)
        number = max(0, end - 1) // log.segment_bytes
        first = max(first, number * log.segment_bytes)
        if first < end:
            ours = self._read_copy(number, first - number * log.segment_bytes, end - first)
            if end > log.files_end or log.read(first, end - first) != ours:
                raise InvalidArgumentError(
                    f"The log of {self.reader.path} is not the one that {listed.path} holds up to "
                    f"offset {end}: it was restored to an earlier point, or is another copy of the "
                    "store, or the backup was changed. Pass a new folder for it."
                )
        return end

    def _read_copy(self, number: int, position: int, count: int) -> bytes:
        path = self.list.segment_path(self.list.chain, number)
        try:
            with path.open("rb") as file:
                file.seek(position)
                return file.read(count)
        except FileNotFoundError:
            return b""

    def _make_durable(self, end: int) -> None:
        """Have the store's log durable up to `end`, or a power cut would leave it behind ours."""
        reader, log = self.reader, self.reader.commitlog
        checkpoint = reader.checkpoint
        if not reader.is_open or checkpoint is None:
            return
        flushed = max(checkpoint.commitlog_flushed, log.start)
        for number in range(flushed // log.segment_bytes, -(-end // log.segment_bytes)):
            view = log.map(number)
            sync_mapping(view.ctypes.data, len(view))

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

    def _told(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    # --- the point

    def _files(self) -> dict[str, bytes]:
        files = self.reader.steady.files()
        return {
            name: data
            for name, data in files.items()
            if name not in _LEFT_OUT and not name.endswith(".tmp")
        }

    def _write_point(self, end: int) -> BackupPoint:
        listed, disk, files = self.list, self.disk, self._files()
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

    def _write_top(self, point: BackupPoint) -> None:
        """Let the folder look like the store at its last point; the cursors come last."""
        path, files = self.list.path, self._files()
        for name in ("abort", "checkpoint", "timerstore.json"):
            if name not in files and (path / name).exists():
                self.disk.remove(path / name)
        for each in sorted((path / "config").glob("*")):
            if str(each.relative_to(path)) not in files and each.is_file():
                self.disk.remove(each)
        last = "config/timercheck"
        for name in sorted(files, key=lambda each: each == last):
            self.disk.make_folder((path / name).parent)
            if _content(path / name) != files[name]:
                self.disk.replace(path / name, files[name])

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
            needed.setdefault(point.chain, set()).update(self.list.numbers_of(point))
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


def flushed_end(reader: StoreReader) -> int:
    """Return up to where a log was flushed; of a broker's, which does not say it, its end."""
    log, checkpoint = reader.commitlog, reader.checkpoint
    if checkpoint is None or checkpoint.by_broker:
        return log.files_end
    return min(max(checkpoint.commitlog_flushed, log.start), log.files_end)


def sound_log(reader: StoreReader, start: int) -> Iterator[tuple[int, int] | Problem]:
    """Yield (messages, where the last one ends) of the log from `start` on, and each Problem.

    It ends with the last message that is whole. Before what was flushed, anything that is none is
    damage, and passed by; behind it, it is the end. A broker does not say how much it flushed.
    """
    checkpoint, flushed = reader.checkpoint, flushed_end(reader)
    ours = checkpoint is not None and not checkpoint.by_broker
    waiting: list[Problem] = []
    for part in read_past_damage(reader, start, flushed):
        if isinstance(part, Damage):
            problem = Problem("commitlog", part.offset, part.reason)
            if ours:
                yield problem
            elif not part.is_empty:
                waiting.append(problem)
            continue
        yield from waiting
        waiting.clear()
        yield len(part), int(part.offset[-1] + part.size[-1])
    if ours:
        scanned = reader.scan(max(start, flushed))
        for rows in scanned:
            yield len(rows), int(rows.offset[-1] + rows.size[-1])
        yield 0, scanned.end


def _content(path: Path) -> bytes | None:
    try:
        return read_small(path)
    except MissingFileError:
        return None
