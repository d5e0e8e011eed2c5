"""A standby: the last point of a backup, kept in a folder that can become the store.

The folder looks like a store without indexes, with a list of one point (see `points.py`), so it
can be looked at and verified, and nothing fires in it. Each step fetches only the new part of the
log, then writes the point's files, then the list: wherever it ends, the point that the list names
is whole. `standby.json` says where the backup lies, and how far a promotion has come.
"""

from __future__ import annotations

import logging
import random
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from timerstore.backups.building import cut_log, remove_tree, write_files
from timerstore.backups.catalog import Catalog, read_catalog
from timerstore.backups.destination import Destination, find_destination
from timerstore.backups.fetching import lay_log
from timerstore.backups.points import (
    EARLIER_FOLDER,
    POINTS_FOLDER,
    BackupList,
    BackupLock,
    BackupPoint,
    Mark,
    numbers_of,
    read_list,
)
from timerstore.backups.segmentcopies import crc_of_bytes
from timerstore.backups.timeline import check_restores
from timerstore.core.directory import LIST_FILE, is_backup
from timerstore.errors import InvalidArgumentError, MissingFileError, TimerStoreError
from timerstore.ground.kinds import check_path
from timerstore.services.world.background import Flag
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, understood, whole, write_json
from timerstore.timelog.files.names import INT32_MAX, held_names, segment_name, segment_offset
from timerstore.timelog.files.smallfile import read_small

log = logging.getLogger("timerstore")

WAIT_S_MAX: Final = 60.0
"""Between two tries while something fails."""
STANDBY_FILE: Final = "standby.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyStep:
    """What one look at a backup brought."""

    point: BackupPoint
    copied_bytes: int
    """Of the log; 0 if there was nothing new."""


class Standby:
    """A folder that follows a destination."""

    def __init__(
        self, path: Path, dest: Destination, address: str, disk: Disk | None = None
    ) -> None:
        """Take the folder, or make it; `address` leads to the destination again.

        Raises InvalidArgumentError if it is something else, StoreLockedError.
        """
        self.path, self.dest, self.disk = check_path(path), dest, disk or Disk()
        self.disk.make_folder(path)
        names = held_names(path) - {"commitlog", POINTS_FOLDER}
        if names and not names & {LIST_FILE, STANDBY_FILE, f"{STANDBY_FILE}.tmp"}:
            raise InvalidArgumentError(
                f"{path} holds files that belong to no standby. Pass an empty folder."
            )
        self._lock = BackupLock(path)
        try:
            plan = read_plan(path)
            if plan and find_destination(plan["dest"]).shown != dest.shown:
                raise InvalidArgumentError(
                    f"{path} is a standby of {plan['dest']}, not of {dest}. Pass another folder."
                )
            if not plan:
                write_json(self.disk, path / STANDBY_FILE, {"dest": address})
            self.listed: BackupList | None = read_list(path) if is_backup(path) else None
        except BaseException:
            self._lock.release()
            raise

    def run(self, stop: Flag, every_s: float) -> None:
        """Look again and again until `stop` is set; what fails is logged, and tried again."""
        failed_count = 0
        while True:
            wait_s = every_s
            try:
                self.step()
                failed_count = 0
            except (TimerStoreError, OSError) as e:
                log.warning(
                    "%s cannot be brought up to date from %s at the moment: %s",
                    self.path,
                    self.dest,
                    e,
                )
                failed_count += 1
                wait_s = max(every_s, min(WAIT_S_MAX, 2.0**failed_count * random.random()))
            if stop.wait(wait_s):
                return

    def close(self) -> None:
        """Let the folder go; twice does nothing."""
        self._lock.release()

    @property
    def last(self) -> BackupPoint | None:
        """The point that the folder holds, None if there is none yet."""
        return self.listed.points[-1] if self.listed is not None else None

    def step(self) -> StandbyStep:
        """Fetch the last point if it is a new one. O(bytes that are new). Durable on return.

        Raises NotAStoreError if there is no backup, InvalidArgumentError if it has no point,
        CorruptStoreError, StoreAccessError, StoreFullError: the point before stays.
        """
        if "restores" in read_plan(self.path):
            raise InvalidArgumentError(
                f"{self.path} is being promoted, which was interrupted. Run: timerstore promote "
                f"{self.path}"
            )
        catalog = read_catalog(self.dest)
        if not catalog.points:
            raise InvalidArgumentError(f"{self.dest} holds no point yet. Take a backup first.")
        point = catalog.points[-1]
        last, run = self.last, catalog.run_of(point)
        if last is not None and replace(last, files={}) == point:
            return StandbyStep(point=last, copied_bytes=0)
        self._check_same(catalog)
        start, marks = point.log_start, dict[int, list[Mark]]()
        if self.listed is not None and last is not None:
            if catalog.has_run(last.chain, run) and last.log_end >= start:
                self._check_seen(catalog, last, point)
                start, marks = last.log_end, self.listed.marks.get(self.listed.chain, {})
            else:
                self._move_aside(self.listed)
        self._fetch(catalog, point, run, start, marks)
        return StandbyStep(point=point, copied_bytes=point.log_end - start)

    def _check_same(self, catalog: Catalog) -> None:
        """Refuse a destination that holds another store by now."""
        assert catalog.chain is not None
        if self.listed is not None and self.listed.store_tag != catalog.chain.store_tag:
            raise InvalidArgumentError(
                f"{self.dest} holds another store than {self.path} was made from. Pass another "
                "folder for the standby."
            )

    def _check_seen(self, catalog: Catalog, last: BackupPoint, point: BackupPoint) -> None:
        """Refuse to go on behind a point that its writer added when it might not do so any more."""
        later = (chain for chain in catalog.known if chain.number > last.chain)
        is_behind = last.log_end > point.log_end or last.number > point.number
        if is_behind or any(each.last_point < last.number for each in later):
            raise InvalidArgumentError(
                f"{self.dest} lacks points that {self.path} was made from. Pass another folder "
                "for the standby."
            )

    def _move_aside(self, listed: BackupList) -> None:
        """Move the log of the point before to a place in which the list still finds it."""
        folder, aside = self.path / "commitlog", self.path / EARLIER_FOLDER / str(listed.chain)
        if folder.is_dir() and not aside.is_dir():
            self.disk.make_folder(aside.parent)
            folder.rename(aside)
            self.disk.sync_folder(aside.parent)
            self.disk.sync_folder(self.path)

    def _fetch(
        self,
        catalog: Catalog,
        point: BackupPoint,
        run: int,
        start: int,
        known: dict[int, list[Mark]],
    ) -> None:
        disk, chain, size = self.disk, catalog.chain, catalog.segment_bytes
        assert chain is not None
        folder = self.path / "commitlog"
        files = catalog.read_files(point)
        if folder.is_dir() and any(folder.iterdir()):
            cut_log(disk, folder, start, size)  # what a step that ended midway left there
        lay_log(catalog, run, start, point.log_end, folder, disk=disk, told=lambda count: None)
        found = BackupList(self.path, chain.store_tag, dict(chain.sizes), point.chain)
        for number in numbers_of(point, size, point.log_end):
            stop = min(point.log_end - number * size, size)
            at, crc = known.get(number, [(0, 0)])[-1]
            if at > stop:
                at, crc = 0, 0
            crc = self._crc(found, number, at, stop, crc)
            found.marks_of(point.chain, number).append((stop, crc))
        write_files(disk, found.point_folder(point.number), files)
        crcs = {name: zlib.crc32(data) for name, data in files.items()}
        found.points.append(replace(point, files=crcs))
        found.write(disk)
        _write_top(disk, self.path, files)
        self.listed = found
        self._prune(point, size)

    def _crc(self, found: BackupList, number: int, start: int, stop: int, crc: int) -> int:
        name = segment_name(number * found.segment_bytes)
        with (self.path / "commitlog" / name).open("rb") as file:
            file.seek(start)
            return crc_of_bytes(file, stop - start, crc)

    def _prune(self, point: BackupPoint, size: int) -> None:
        for folder in sorted((self.path / POINTS_FOLDER).iterdir()):
            if folder.name != str(point.number):
                remove_tree(self.disk, folder)
        if (self.path / EARLIER_FOLDER).is_dir():
            remove_tree(self.disk, self.path / EARLIER_FOLDER)
        kept = numbers_of(point, size, point.log_end)
        for each in sorted((self.path / "commitlog").iterdir()):
            offset = segment_offset(each.name)
            if offset is not None and offset // size not in kept:
                self.disk.remove(each)


def _write_top(disk: Disk, path: Path, files: dict[str, bytes]) -> None:
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


def read_plan(path: Path) -> dict[str, Any]:
    """Return what `standby.json` says; nothing if there is none. Raises CorruptStoreError."""
    plan = read_json(path / STANDBY_FILE) or {}
    with understood(STANDBY_FILE):
        if plan and not isinstance(plan["dest"], str):
            raise ValueError("dest is no text")
        if "claim" in plan:
            number, name = plan["claim"]
            whole(number, 1, INT32_MAX)
            if not isinstance(name, str):
                raise ValueError("the claim's name is no text")
        check_restores(plan.get("restores", []))
    return plan
