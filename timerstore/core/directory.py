"""The directory of a store: found, or made, with its lock."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from timerstore.errors import NotAStoreError, TimerStoreError
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.lockfile import LockFile
from timerstore.timelog.files.names import BUILDING_FOLDER, held_names
from timerstore.timelog.files.refuse_rocksdb import refuse_batch_queues, refuse_rocksdb
from timerstore.timelog.files.smallfile import At, by_path, is_there, read_head

if TYPE_CHECKING:  # who reads copies, or asks an owner, does not load the engine
    from timerstore.services.engine.engine import Engine


STANDBY_FILE: Final = "standby.json"
CHAINS_FOLDER: Final = "chains"
CHAIN_FILE: Final = re.compile(r"([0-9]{8})-([0-9a-f]{32})\.(claim|json)")
"""The name of a file that says who may write into a backup."""


def lock_directory(disk: Disk, path: Path, create: bool) -> LockFile:
    """Check a directory, or make it; return its lock, held."""
    if not path.exists() and not create:
        raise NotAStoreError(f"{path} does not exist. Pass create=True to make a store.")
    disk.make_folder(path)
    disk.hold(path)
    check_is_store(path)
    refuse_batch_queues(path, disk.at)
    if is_standby(path):
        raise NotAStoreError(
            f"{path} is a standby, and an open store would change it. Make it the store with "
            "`timerstore promote`, or look at it with read_only=True."
        )
    if not create and not held_names(path):
        raise NotAStoreError(f"{path} is empty. Pass create=True to make a store.")
    return LockFile(disk, path)


def is_standby(path: Path, at: At = by_path) -> bool:
    """Tell whether a folder is a standby."""
    return is_there(path / STANDBY_FILE, at, stat.S_ISREG)


def holds_objects(path: Path) -> bool:
    """Tell whether a folder holds a backup, as objects; one with a store named so does not."""
    folder = path / CHAINS_FOLDER
    return folder.is_dir() and any(map(CHAIN_FILE.fullmatch, os.listdir(folder)))


def check_is_store(path: Path) -> None:
    """Refuse a folder that holds something else than a store that can be read."""
    if not path.exists():
        raise NotAStoreError(f"{path} does not exist. Pass the folder of a store.")
    names = held_names(path)
    if BUILDING_FOLDER in names:
        raise NotAStoreError(
            f"{path} is a store that was not finished: a restore or a salvage into it was ended. "
            "Empty the folder, then start that again."
        )
    if holds_objects(path):
        raise NotAStoreError(
            f"{path} is a backup. Make a store from it with `timerstore restore`, or look at it "
            "with read_only=True."
        )
    if is_standby(path) and "commitlog" not in names:
        raise NotAStoreError(
            f"{path} is a standby that holds no point yet. Run `timerstore standby` until it does."
        )
    if names and not names & {"timerstore.json", "commitlog", "lock"}:
        raise NotAStoreError(
            f"{path} holds files that belong to no store. Pass an empty folder, or the folder of "
            "a store."
        )
    refuse_rocksdb(path)


# --- which kind of clock the timers go by
#
# It is made if nothing is pending, and goes, durably, as soon as the system clock is used. So a
# store without it, a broker's for one, has real timers. To make it costs no fsync: if a power cut
# loses it, a manual clock is refused once too often.


CLOCK_FILE: Final = "config/manualclock"
_MARK: Final = b"The timers of this store are a ManualClock's.\n"


def is_manual(path: Path, at: At = by_path) -> bool:
    """Tell whether only manual clocks were used since nothing was pending."""
    try:
        return read_head(path / CLOCK_FILE, len(_MARK) + 1, at) == _MARK
    except (OSError, TimerStoreError):
        return False


def note_clock(engine: Engine) -> None:
    """Note which kind of clock an engine that was recovered goes on with."""
    path = engine.path / CLOCK_FILE
    if not engine.disk.writes:
        return
    if not engine.clock.manual:
        remove_clock_mark(engine)
    elif engine.pending_count() == 0 and not is_manual(engine.path, engine.disk.at):
        fd = engine.disk.open_file(path, create=True)
        try:
            engine.disk.write_at(fd, _MARK, 0, path)
        finally:
            os.close(fd)


def remove_clock_mark(engine: Engine) -> None:
    """Let the timers be real ones from now on."""
    if engine.disk.exists(engine.path / CLOCK_FILE):
        engine.disk.remove(engine.path / CLOCK_FILE)
        engine.disk.sync_folder(engine.path / "config")
