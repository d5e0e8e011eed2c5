"""A copy as a folder to read: a backup is laid down for a while, a standby lies where it is."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from timerstore.copies.catalog import read_catalog
from timerstore.copies.destination import Place, find_place
from timerstore.copies.fetching import OnFault, bring_to_life, lay_backup
from timerstore.copies.report import BackupPoint, Progress, Summed
from timerstore.copies.restore import restore_point
from timerstore.copies.standby import StandbyState, copy_standby, held_folder, read_standby
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.values.config import Config


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
