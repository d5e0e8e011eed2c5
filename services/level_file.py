"""`config/delayOffset.json`: how far each delay level was delivered, as a broker reads it.

It is written before the checkpoint and after the log was made durable, so whatever it says was
delivered is on disk; the larger one of its offset and the checkpoint's therefore always holds.
"""

from __future__ import annotations

from pathlib import Path

from timerstore.timelog.checkpoint import Checkpoint
from timerstore.timelog.disk import Disk
from timerstore.timelog.format import LEVEL_COUNT_MAX
from timerstore.timelog.jsonfile import (
    check_seal,
    read_json,
    sealed,
    understood,
    whole,
    write_json,
)
from timerstore.timelog.steady import Read, read_file


class LevelOffsetFile:
    """The file of one store; it is written where an offset has changed."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path
        self._written: list[int] | None = None

    def read(self, read: Read = read_file) -> list[int]:
        """Return the offset of each level, 0 where the file says nothing; `read`: reads a file.

        Raises CorruptStoreError where it is damaged.
        """
        content = read_json(self._path, read) or {}
        check_seal(self._path, content)
        offsets = [0] * LEVEL_COUNT_MAX
        with understood(self._path.name):
            for level, offset in content.get("offsetTable", {}).items():
                if 1 <= int(level) <= LEVEL_COUNT_MAX:
                    offsets[int(level) - 1] = whole(offset)
        return offsets

    def write(self, disk: Disk, checkpoint: Checkpoint) -> None:
        """Write the offsets of a checkpoint, if they have changed; durable on return."""
        offsets = checkpoint.level_offsets
        if offsets == self._written:
            return
        if self._written is None and not any(offsets) and not self._path.exists():
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
