"""`config/delayOffset.json`: how far each delay level was delivered, as a broker reads it.

It is written before the checkpoint and after the log was made durable, so everything of which it
says that it was delivered is on disk; the larger one of its offset and the checkpoint's therefore
always holds.
"""

from __future__ import annotations

from pathlib import Path

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import TimerCheckpoint
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import (
    check_seal,
    read_json,
    sealed,
    understood,
    whole,
    write_json,
)
from timerstore.timelog.files.names import INT64_MAX
from timerstore.timelog.files.steady import Read, read_file


class LevelOffsetFile:
    """The file of one store; it is written if an offset has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: list[int] | None = None

    def read(self, read: Read = read_file) -> list[int]:
        """Return the offset of each level, 0 if the file says nothing; `read`: reads a file.

        Raises CorruptStoreError if it is damaged.
        """
        content = read_json(self._path, read) or {}
        check_seal(self._path, content)
        offsets = [0] * fmt.LEVEL_COUNT_MAX
        with understood(self._path.name):
            for level, offset in content.get("offsetTable", {}).items():
                if 1 <= int(level) <= fmt.LEVEL_COUNT_MAX:
                    offsets[int(level) - 1] = whole(offset, -INT64_MAX)  # recovery judges it
        return offsets

    def write(self, disk: Disk, checkpoint: TimerCheckpoint) -> None:
        """Write the offsets of a checkpoint, if they have changed; durable on return."""
        offsets = checkpoint.level_offsets
        if offsets == self._written:
            return
        if self._written is None and not any(offsets) and not disk.exists(self._path):
            return
        table = {str(level): offset for level, offset in enumerate(offsets, 1) if offset}
        version = {
            "counter": checkpoint.sequence,
            "stateVersion": 0,
            "timestamp": checkpoint.state_timestamp,
        }
        content = {"dataVersion": version, "offsetTable": table}
        write_json(disk, self._path, sealed(content))
        self._written = list(offsets)
