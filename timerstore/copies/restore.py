"""Restoring a backup: a store as it was at a point, or at a time between two of them.

What is laid down is what a kill at that moment would have left, so recovery brings it to life: it
fires nothing again of what the log says was fired, and makes the indexes anew. It is built beside
its place under another name, and gets its own once it is whole.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

import numpy as np

from timerstore.copies.backup_content import refuse_inside
from timerstore.copies.catalog import Catalog, read_catalog
from timerstore.copies.chains import note_restore
from timerstore.copies.destination import Destination, Place, find_destination, find_place
from timerstore.copies.fetching import (
    OnFault,
    Reached,
    bring_to_life,
    built_beside,
    cut_log,
    lay_backup,
    lay_log,
    write_files,
)
from timerstore.copies.report import (
    TIME_MS_MAX,
    BackupPoint,
    Problem,
    Progress,
    Report,
    Summed,
    shown_problems,
)
from timerstore.copies.standby import StandbyState, copy_standby, held_folder, read_standby
from timerstore.core.offsets import ConsumerOffsets
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.services.world.background import Flag
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.names import INT64_MAX
from timerstore.timelog.files.oserrors import telling, told_of
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.reader import StoreReader
from timerstore.values.amounts import Moment, shown_time
from timerstore.values.check_arguments import given_instant
from timerstore.values.config import Config
from timerstore.values.kinds import check_int, check_kind, check_path

_LIVES_MS: Final = 600_000
"""A store of which a point is younger may still live."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreReport(Report):
    """What a restore laid down."""

    path: str
    """The backup."""
    dest: str
    point: int
    """The number of the point that it began with."""
    as_of_ms: int
    """The store is as it was then."""
    log_end: int
    pending_count: int
    """Timers that are pending, those that have fallen due since among them."""
    message_count: int
    group_count: int
    """Consumer groups; messages that one consumed after the point come again."""
    twice_count: int
    """Timers that fire in both stores if the one that was backed up still runs. That is possible if
    its last point is younger than ten minutes; else this is 0."""
    problems: tuple[Problem, ...]
    """Damage that was in the store when the backup was taken."""

    as_of = Moment[datetime]("The store is as it was then, in UTC.")

    @property
    def ok(self) -> bool:
        """Whether all that was restored is sound."""
        return not self.problems

    def __str__(self) -> str:
        lines = [
            f"{self.dest} is the store as of {shown_time(self.as_of_ms)}: {self.pending_count:,} "
            f"timers pending, {self.message_count:,} messages, {self.group_count:,} groups. What "
            "was fired or consumed after that time is handed out again."
        ]
        if self.twice_count:
            lines.append(
                "  WARNING: the last point was taken just now, so the store may still be "
                f"running. If it is, {self.twice_count:,} timers fire in both: stop it before "
                "you open this one."
            )
        lines += shown_problems("  DAMAGED: ", self.problems, len(self.problems))
        return "\n".join(lines)


@telling
def backup_points(path: Place) -> list[BackupPoint]:
    """Return the points of a backup, the oldest first.

    `path`: its folder or its address, as `backup` takes it; or a standby, with one point.
    Raises NotAStoreError, CorruptStoreError, StoreAccessError.
    """
    found = find_place(path)
    standby = read_standby(found) if isinstance(found, Path) else None
    if standby is not None:
        return [] if standby.point is None else [standby.point]
    return read_catalog(find_destination(path)).points


@telling
def restore(
    path: Place,
    dest: str | os.PathLike[str],
    *,
    at: datetime | None = None,
    at_ms: int | None = None,
    config: Config | None = None,
    clock: ManualClock | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Make a store in `dest` out of the backup in `path`, and check it; return what it holds.

    `path`: its folder or its address, as `backup` takes it.
    `at` (an aware datetime) or `at_ms` (epoch milliseconds): everything that was stored by then. If
    the log between two points is there, that is exact; if it is not, and without a time, the store
    is as of the last point before. `dest` must not exist, or be empty. Nothing fires before
    somebody opens it; then all does that is due. O(bytes), read twice. Durable on return.

    Raises InvalidArgumentError, NotAStoreError, StoreFullError; CorruptStoreError if the backup
    is not what was written: then `dest` stays as it was.

    >>> point = timerstore.backup("timers/", "backup/")
    >>> timerstore.restore("backup/", "restored/").pending_count
    0
    """
    return restore_point(
        find_destination(path),
        check_path(dest),
        at_ms=given_floor_ms(at, at_ms),
        config=config,
        clock=clock,
        progress=progress,
    )


def restore_point(
    source: Destination,
    target: Path,
    *,
    at_ms: int | None = None,
    config: Config | None = None,
    clock: ManualClock | None = None,
    progress: Progress | None = None,
    disk: Disk | None = None,
) -> RestoreReport:
    """Do what `restore` says, on a disk."""
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    disk = Disk() if disk is None else disk
    if source.folder is not None:
        refuse_inside(source.folder, target)
    catalog = read_catalog(source)
    chosen = choose(catalog, at_ms)
    with told_of(target), built_beside(disk, target) as building:
        run = _Restoring(catalog, chosen, building, disk, progress)
        with run.laid_down(config) as log_end:
            return run.bring_to_life(config, clock, log_end, target)


def given_floor_ms(at: object, at_ms: int | None) -> int | None:
    """Return a time in epoch milliseconds, rounded down: what was stored later does not count."""
    if isinstance(at, datetime):
        at -= timedelta(microseconds=at.microsecond % 1_000)
    found = given_instant(at, at_ms, "at")
    return None if found is None else check_int(found, "at_ms", 0, TIME_MS_MAX)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is restored."""

    point: BackupPoint
    log_end: int
    """So much of the log is looked at; if `at_ms` is None it is all restored."""
    at_ms: int | None


def choose(catalog: Catalog, at_ms: int | None) -> Chosen:
    """Return the last point at or before a time, and the end of the log that may be needed."""
    points = catalog.points
    if not points:
        raise InvalidArgumentError(f"{catalog.shown} holds no point yet. Take a backup first.")
    if at_ms is None or at_ms >= points[-1].time_ms:
        return Chosen(points[-1], points[-1].log_end, None)
    before = [i for i, point in enumerate(points) if point.time_ms <= at_ms]
    if not before:
        raise InvalidArgumentError(
            f"The earliest point in {catalog.shown} was taken at {shown_time(points[0].time_ms)}. "
            "Pass that time, or a later one."
        )
    point, following = points[before[-1]], points[before[-1] + 1]
    if catalog.run_of(following) != catalog.run_of(point):  # what came between is not there
        return Chosen(point, point.log_end, None)
    return Chosen(point, following.log_end, at_ms)


class _Restoring:
    """One run of a restore."""

    def __init__(
        self,
        catalog: Catalog,
        chosen: Chosen,
        building: Path,
        disk: Disk,
        progress: Progress | None,
    ) -> None:
        self.catalog, self.chosen, self.path, self.disk = catalog, chosen, building, disk
        self._told = Summed(progress, chosen.log_end - chosen.point.log_start)

    @contextmanager
    def laid_down(self, config: Config) -> Iterator[int]:
        """Write the log and the small files; yield where the log ends.

        All of it is there, and durable, when the block has ended. Within it a log that need
        not be cut is read while it comes: `Disk.wait_for_log` says how far it is there.
        """
        disk, folder = self.disk, self.path / "commitlog"
        files = self.catalog.read_files(self.chosen.point)  # first: it may be thinned out
        with laying(partial(self._lay_log, folder)) as laid:
            laid.wait(INT64_MAX - 1 if self.chosen.at_ms is not None else -1)
            write_files(disk, self.path, files)
            log_end = self._cut(folder, config)
            disk.wait_for_log = laid.wait
            try:
                yield log_end
            finally:
                del disk.wait_for_log

    def _lay_log(self, folder: Path, reached: Reached) -> None:
        point, end = self.chosen.point, self.chosen.log_end
        span = self.catalog.run_of(point), point.log_start, end
        lay_log(self.catalog, *span, folder, disk=self.disk, told=self._told, reached=reached)

    def _cut(self, folder: Path, config: Config) -> int:
        """Cut the log to the time that was asked for; return where it ends."""
        log_end = self.chosen.log_end
        if self.chosen.at_ms is not None:
            log_end = self._find_cut(self.chosen.at_ms, config)
            cut_log(self.disk, folder, log_end, self.catalog.segment_bytes)
        self.disk.sync_folder(folder)
        note_restore(self.disk, self.path, log_end)
        return log_end

    def _find_cut(self, at_ms: int, config: Config) -> int:
        """Return where the first message begins that was stored after a time."""
        reader = StoreReader(self.path, np.array(config.delay_levels_ms(), np.int64))
        for rows in sound_messages(reader, self.chosen.point.log_end, self.chosen.log_end):
            later = rows.stored_ms > at_ms
            if later.any():
                return int(rows.offset[np.argmax(later)])
        return self.chosen.log_end

    def bring_to_life(
        self, config: Config, clock: ManualClock | None, log_end: int, target: Path
    ) -> RestoreReport:
        """Recover what was laid down, which makes its indexes, and checks each message."""
        sizes = self.catalog.sizes
        findings, problems = bring_to_life(self.path, self.disk, config, clock, sizes)
        offsets = ConsumerOffsets(self.disk, self.path / "config" / "consumerOffset.json")
        groups = {group for _, group in offsets.snapshot()}
        point, at_ms = self.chosen.point, self.chosen.at_ms
        now_ms = time.time_ns() // 1_000_000 if clock is None else clock.now_ms
        may_live = now_ms - self.catalog.points[-1].time_ms < _LIVES_MS
        return RestoreReport(
            path=self.catalog.shown,
            dest=os.fspath(target),
            point=point.number,
            as_of_ms=point.time_ms if at_ms is None else at_ms,
            log_end=log_end,
            pending_count=findings.pending_count,
            message_count=findings.scanned_count,
            group_count=len(groups),
            twice_count=findings.pending_count if may_live else 0,
            problems=problems,
        )


_LOOK_S: Final = 0.1


class Laid:
    """How far a log is there, from its beginning: one thread lays it down, one reads it."""

    def __init__(self) -> None:
        self._changed, self._end, self._is_given_up = Flag(), -1, False
        self._future: Future[None] | None = None

    def reach(self, end: int) -> None:
        """Say that the log is there up to `end`. Raises InterruptedError if nobody reads on."""
        if self._is_given_up:
            raise InterruptedError
        self._end = max(self._end, end)
        self._changed.set()

    def wait(self, offset: int) -> int:
        """Return how far the log is there, once that is behind `offset`; INT64_MAX: all of it is.

        Raises what ended the laying.
        """
        while (end := self._end) <= offset:
            self._changed.wait(_LOOK_S)
            self._changed.clear()  # before it looks
        if end == INT64_MAX and self._future is not None:
            self._future.result()
        return end

    def follow(self, future: Future[None]) -> None:
        """Take the laying; however it ends, nobody waits for more of the log from then on."""
        self._future = future
        future.add_done_callback(lambda _: self._finish())

    def _finish(self) -> None:
        self._end = INT64_MAX
        self._changed.set()

    def give_up(self) -> None:
        """Have the laying end at its next step."""
        self._is_given_up = True


@contextmanager
def laying(lay: Callable[[Callable[[int], None]], None]) -> Iterator[Laid]:
    """Run `lay` in a thread beside the block; it is called with what it tells how far it is.

    When the block has ended, so has `lay`. What it raises is raised by `Laid.wait`, or here.
    """
    laid = Laid()
    with ThreadPoolExecutor(1, "lay") as pool:
        future = pool.submit(lay, laid.reach)
        laid.follow(future)
        try:
            yield laid
        except BaseException:
            laid.give_up()
            raise
        future.result()


# --- a copy as a folder to read: a backup is laid down for a while, a standby lies where it is


@contextmanager
def as_folder(
    place: Place,
    *,
    only_last: bool = False,
    progress: Progress | None = None,
    on_fault: OnFault | None = None,
) -> Iterator[tuple[Path, BackupPoint | None]]:
    """Yield a folder to read for as long as the block runs, and the point that was laid down there.

    A backup is laid down below TMPDIR, which takes as much room as its log has bytes; with
    `only_last` only its last point. Else the folder is the one that was named, a store or a
    standby, and the point is None.
    """
    found = find_place(place)
    if isinstance(found, Path):
        yield held_folder(found, _state(found)), None
        return
    with _below_tmpdir() as folder:
        catalog = read_catalog(found)
        points = catalog.points[-1:] if only_last else catalog.points
        if not points:
            raise InvalidArgumentError(f"{found} holds no point yet. Take a backup first.")
        told = Summed(progress, points[-1].bytes_count)
        disk = _Fleeting()
        yield folder, lay_backup(catalog, folder, points, disk=disk, told=told, on_fault=on_fault)


@contextmanager
def as_store(place: Place, delay_levels: str) -> Iterator[Path]:
    """Yield a folder with the store that a backup or a standby would become, for the block's time.

    It lies below TMPDIR, and takes as much room as the log has bytes, with its indexes. `place` is
    only read. O(bytes). Raises CorruptStoreError, NotAStoreError, StoreAccessError, StoreFullError.
    """
    config, disk, found = Config(delay_levels=delay_levels), _Fleeting(), find_place(place)
    with _below_tmpdir() as folder:
        path = folder / "store"
        if isinstance(found, Path):
            chain = copy_standby(found, path, disk)
            bring_to_life(path, disk, config, None, chain.sizes)
        else:
            restore_point(found, path, config=config, disk=disk)
        yield path


@contextmanager
def _below_tmpdir() -> Iterator[Path]:
    """Yield an empty folder that goes when the block ends, or the process."""
    folder = Path(mkdtemp(prefix="timerstore-"))
    remove = partial(_remove_own, folder, os.getpid())
    atexit.register(remove)
    try:
        yield folder
    finally:
        atexit.unregister(remove)
        remove()


def _state(path: Path) -> StandbyState | None:
    """Return what a standby says; nothing if it is damaged, since its files may be sound."""
    try:
        return read_standby(path)
    except CorruptStoreError:
        return None


def _remove_own(folder: Path, pid: int) -> None:
    """Remove a folder that this process made; a forked child leaves it to its parent."""
    if os.getpid() == pid:
        rmtree(folder, ignore_errors=True)


class _Fleeting(Disk):
    """A disk for what goes again soon: nothing is made durable."""

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Do nothing."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing."""
