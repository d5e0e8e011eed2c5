"""What followers say of a store's copies elsewhere: a small file for each, in the store's folder.

    follow/CRC.json    what the follower of one destination said last; CRC is of the destination
    follow/CRC.lock    is locked by that follower

They are not made durable: who follows again writes them anew.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timerstore.copies.report import CopyLock
from timerstore.errors import TimerStoreError
from timerstore.timelog.files.disk import FILE_MODE, FOLDER_MODE
from timerstore.timelog.files.reader_end import list_names
from timerstore.timelog.files.smallfile import At, by_path, is_there, read_head
from timerstore.values.amounts import Moment, moment

if TYPE_CHECKING:
    from timerstore.copies.destination import Destination

FOLLOW_FOLDER: Final = "follow"
_FILE_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatus:
    """How far a copy elsewhere has come."""

    dest: str
    every_ms: int
    """It looks so often for what is new."""
    alive_ms: int
    """When the follower said this; it does so every ten seconds at least."""
    shipped_ms: int
    """All that was put before this time is in the copy; 0: nothing was shipped yet."""
    shipped_end: int
    """The offset up to which the log is in the copy."""
    sent_bytes: int
    """Since it began."""
    request_count: int
    """Calls of the file system since it began; each is one request or a few."""
    failing_since_ms: int | None
    """Since when nothing can be shipped, None if all is well."""
    error: str | None
    """Why nothing can be shipped."""
    next_try_ms: int | None
    """When it tries again; None if it does not fail, or has given up."""
    ended: bool
    """The follower has ended, by itself or because it was told to."""

    alive = Moment[datetime]("When the follower said this, in UTC.")

    @property
    def shipped(self) -> datetime | None:
        """All that was put before this time is in the copy, in UTC; None: nothing was shipped."""
        return moment(self.shipped_ms) if self.shipped_ms else None

    failing_since = Moment[datetime | None]("Since when nothing can be shipped, in UTC.")
    next_try = Moment[datetime | None]("When it tries again, in UTC.")

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return asdict(self)


def write_status(path: Path, at: At, key: str, status: CopyStatus) -> None:
    """Write what a follower says into a store's folder; who reads sees all of it or none."""
    file = _file(path, key, "json")
    temporary = file.with_name(file.name + ".tmp")
    fd = _open_to_write(temporary, at)
    try:
        os.truncate(fd, 0)
        os.write(fd, json.dumps(status.to_dict()).encode())
    finally:
        os.close(fd)
    (before, folder), (after, _) = at(temporary), at(file)
    os.rename(before, after, src_dir_fd=folder, dst_dir_fd=folder)


def _open_to_write(file: Path, at: At) -> int:
    name, above = at(file.parent)
    with suppress(FileExistsError):
        os.mkdir(name, FOLDER_MODE, dir_fd=above)
    name, above = at(file)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, FILE_MODE, dir_fd=above)


def read_statuses(path: Path, at: At = by_path) -> list[CopyStatus]:
    """Return what each follower of a store said last; a file that says nothing is passed over."""
    found = list[CopyStatus]()
    folder = path / FOLLOW_FOLDER
    with suppress(OSError, TimerStoreError):
        for name in sorted(list_names(folder, at)):
            if name.endswith(".json"):
                with suppress(OSError, TimerStoreError, ValueError, LookupError, TypeError):
                    found.append(_status(folder / name, at))
    return found


def _status(file: Path, at: At) -> CopyStatus:
    told = json.loads(read_head(file, _FILE_BYTES_MAX, at))
    values = {each.name: told[each.name] for each in fields(CopyStatus)}
    for name, value in values.items():
        may_lack = name in ("failing_since_ms", "error", "next_try_ms")
        kind = str if name in ("dest", "error") else bool if name == "ended" else int
        if type(value) is not kind and not (may_lack and value is None):
            raise ValueError(f"{name} is {value!r:.80}")
    return CopyStatus(**values)


def forget_status(path: Path, key: str, at: At = by_path) -> bool:
    """Forget a copy, so that nobody is warned of it; return whether there was one."""
    try:
        name, folder = at(_file(path, key, "json"))
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _file(path: Path, key: str, kind: str) -> Path:
    return path / FOLLOW_FOLDER / f"{zlib.crc32(os.fsencode(key)):08x}.{kind}"


class FollowLock(CopyLock):
    """The right to write into one destination."""

    def __init__(self, path: Path, at: At, dest: Destination) -> None:
        fd = _open_to_write(_file(path, dest.key, "lock"), at)
        who = f"Another process already follows {path} into {dest}"
        super().__init__(fd, f"{who}. Stop one of the two.")

    @classmethod
    def beside(cls, path: Path, at: At, dest: Destination) -> FollowLock | None:
        """Take it for a backup, which makes no file; return None if nobody ever followed there."""
        return cls(path, at, dest) if is_there(_file(path, dest.key, "lock"), at) else None
