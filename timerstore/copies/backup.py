"""Taking a backup: what a store holds at one moment, copied while others write to it.

The commit log is the truth, so a backup is the log up to the end of a message, with the small files
of the last checkpoint before it: what a store that was killed at that moment would have on disk,
without its indexes, which recovery makes anew. The store's owner is not asked and not stopped. No
segment that is being read is used again, because a reader shares the lock on the log's folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from timerstore.copies.destination import Destination, Place, find_destination
from timerstore.copies.follow_status import FollowLock
from timerstore.copies.progress import Progress
from timerstore.copies.ship import ship_once
from timerstore.copies.snapshot import check_whole, refuse_inside
from timerstore.copies.taken import BackupReport
from timerstore.core.directory import is_standby
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.files.folders import HeldFolder, hold_to_read
from timerstore.timelog.files.oserrors import telling
from timerstore.timelog.reading.reader import StoreReader
from timerstore.values.config import Config
from timerstore.values.kinds import check_int, check_kind, check_path

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

    `dest`: a folder; an address such as s3://bucket/timers, gs://…, abfs://…, file:///folder; or a
    pyarrow.fs.FileSystem. What is new is written there as objects, which never change.

    Raises InvalidArgumentError if `dest` is something else, or another store's; StoreFullError,
    StoreLockedError, also if a process follows the store there; StoreAccessError if it cannot be
    reached; CorruptStoreError if segments are missing: then the earlier points stay.

    >>> timerstore.backup("timers/", "backup/").ok
    True
    """
    return take_point(
        check_path(path), find_destination(dest), keep=keep, config=config, progress=progress
    )


def take_point(
    path: Path,
    dest: Destination,
    *,
    keep: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
    now_ms: int | None = None,
    store: HeldFolder | None = None,
) -> BackupReport:
    """Do what `backup` says, at a time; `store`: its folder, if it is open here."""
    if keep is not None:
        keep = check_int(keep, "keep", 1, _KEEP_MAX)
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    if dest.folder is not None:
        refuse_inside(path, dest.folder)
    store = store or hold_to_read(path)
    if is_standby(path, store.at):
        raise InvalidArgumentError(
            f"{path} is a standby, not a store. Take the backup of the store that it follows."
        )
    levels = np.array(config.delay_levels_ms(), np.int64)
    reader = StoreReader(path, levels, folder=store)
    check_whole(reader)
    follow_lock = FollowLock.beside(path, store.at, dest)
    try:
        with dest.alone():
            return ship_once(reader, dest, keep=keep, progress=progress, now_ms=now_ms)
    finally:
        if follow_lock is not None:
            follow_lock.release()
