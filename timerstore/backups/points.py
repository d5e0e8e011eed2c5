"""The list of a backup that was laid down, or of a standby: its points, what each of them needs.

That is a folder that looks like a store without its indexes:

    backup.json      the list; a folder that has it is a backup
    commitlog/       segments of the chain that goes on
    config/ …        the small files of the last point
    points/N/        the small files of point N
    earlier/C/       segments of chain C, which ended: the store had removed what followed

A *chain* is a piece of the log without a gap. A segment's *marks* say what CRC-32 its first bytes
have, for each end that a point ever had in it; each one continues the one before.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from timerstore.backups.report import Report
from timerstore.core.directory import LIST_FILE
from timerstore.errors import NotAStoreError, StoreLockedError
from timerstore.ground.moments import moment
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.identity import SIZES
from timerstore.timelog.files.jsonfile import (
    check_seal,
    read_json,
    sealed,
    understood,
    whole,
    write_json,
)
from timerstore.timelog.files.names import INT32_MAX, is_small_file, segment_name

POINTS_FOLDER: Final = "points"
EARLIER_FOLDER: Final = "earlier"
_VERSION: Final = 1
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""

Mark = tuple[int, int]
"""So many first bytes of a segment, their CRC-32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupPoint(Report):
    """What a backup holds of one moment."""

    number: int
    time_ms: int
    """When it was taken."""
    chain: int
    log_start: int
    log_end: int
    """The commit log as it was: from its first segment to the end of its last message."""
    files: dict[str, int]
    """The small files, with the CRC-32 of each; of a backup as objects they are not listed."""

    @property
    def time(self) -> datetime:
        """When it was taken, in UTC."""
        return moment(self.time_ms)

    @property
    def bytes_count(self) -> int:
        """Bytes of the log that it needs."""
        return self.log_end - self.log_start


@dataclass
class BackupList:
    """A backup's list, in memory; `write` makes it durable."""

    path: Path
    store_tag: int
    sizes: dict[str, int | None]
    chain: int = 1
    points: list[BackupPoint] = field(default_factory=list)
    marks: dict[int, dict[int, list[Mark]]] = field(default_factory=dict)

    @property
    def segment_bytes(self) -> int:
        """Return the length of a commit log segment."""
        size = self.sizes["commitlog_segment_bytes"]
        assert size is not None
        return size

    def log_folder(self, chain: int) -> Path:
        """Return where the segments of a chain lie."""
        earlier = self.path / EARLIER_FOLDER / str(chain)
        return earlier if earlier.is_dir() else self.path / "commitlog"

    def segment_path(self, chain: int, number: int) -> Path:
        """Return the path of a segment."""
        return self.log_folder(chain) / segment_name(number * self.segment_bytes)

    def point_folder(self, number: int) -> Path:
        """Return where a point's small files lie."""
        return self.path / POINTS_FOLDER / str(number)

    def marks_of(self, chain: int, number: int) -> list[Mark]:
        """Return a segment's marks, the first one first."""
        return self.marks.setdefault(chain, {}).setdefault(number, [])

    def write(self, disk: Disk) -> None:
        """Replace the file; durable on return."""
        marks = {
            str(chain): {str(number): each for number, each in sorted(segments.items())}
            for chain, segments in sorted(self.marks.items())
        }
        content = {
            "version": _VERSION,
            "store_tag": self.store_tag,
            "sizes": self.sizes,
            "chain": self.chain,
            "points": [point.to_dict() for point in self.points],
            "marks": marks,
        }
        write_json(disk, self.path / LIST_FILE, sealed(content))


def numbers_of(point: BackupPoint, segment_bytes: int, log_end: int) -> range:
    """Return the numbers of the segments of a point's log that begin before `log_end`."""
    return range(point.log_start // segment_bytes, -(-log_end // segment_bytes))


def read_list(path: Path) -> BackupList:
    """Read a backup's list. Raises NotAStoreError, CorruptStoreError."""
    file = path / LIST_FILE
    content = read_json(file)
    if content is None:
        raise NotAStoreError(
            f"{path} is no backup, because it holds no {LIST_FILE}. Pass the path of a backup."
        )
    check_seal(file, content)
    if content.get("version") != _VERSION:
        raise NotAStoreError(
            f"{file} has version {content.get('version')!r}, and this timerstore reads version "
            f"{_VERSION}. Use the timerstore that made the backup."
        )
    with understood(LIST_FILE):
        found = BackupList(
            path,
            whole(content["store_tag"], -1),
            {name: _size(content["sizes"], name) for name in SIZES},
            whole(content["chain"], 1),
            [_point(each) for each in content["points"]],
            {
                whole(int(chain), 1): {
                    whole(int(number)): [(whole(count), whole(crc)) for count, crc in each]
                    for number, each in segments.items()
                }
                for chain, segments in content["marks"].items()
            },
        )
        whole(found.segment_bytes, 1)
        return found


def _size(sizes: dict[str, Any], name: str) -> int | None:
    return None if sizes[name] is None else whole(sizes[name], 1)


def _point(told: dict[str, Any]) -> BackupPoint:
    """Return a point; raises what `understood` takes for a list that is none."""
    for name in told["files"]:
        if not is_small_file(name):
            raise ValueError(f"a store has no file {name!r:.80}")
    return BackupPoint(
        number=whole(told["number"], 1, INT32_MAX),
        time_ms=whole(told["time_ms"], 0, TIME_MS_MAX),
        chain=whole(told["chain"], 1, INT32_MAX),
        log_start=whole(told["log_start"]),
        log_end=whole(told["log_end"], told["log_start"]),
        files={name: whole(crc) for name, crc in told["files"].items()},
    )


class BackupLock:
    """A lock on the folder of a backup or standby, among processes of this machine.

    Who writes has it alone, for as long as this object lives.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise StoreLockedError(
                f"Another backup, follower or standby is using {path}. Wait until it has ended, "
                "or stop it."
            ) from e

    def release(self) -> None:
        """Let it go; twice does nothing."""
        fd, self._fd = self._fd, -1  # first: closed twice, it may be another's
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __del__(self) -> None:
        """Let it go."""
        if hasattr(self, "_fd"):
            self.release()
