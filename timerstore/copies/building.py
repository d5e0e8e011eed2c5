"""Building a store beside its place: it gets its name once it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from timerstore.copies.points import BackupLock
from timerstore.copies.report import Problem
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError
from timerstore.services.opening.recovery_findings import RecoveryFindings
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.identity import find_identity
from timerstore.timelog.files.names import BUILDING_FOLDER, held_names, segment_offset
from timerstore.values.config import Config


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
    """Tell whether a path is that of nothing, or of an empty folder."""
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
