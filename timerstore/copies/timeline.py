"""Whether a store is still the one whose backup was taken, or was restored to an earlier point.

What was restored goes on from the end that it was cut to, under the same tag. A file of the store,
`config/restored.json`, says so, one restore after the other, and comes along into its next backups.
"""

from __future__ import annotations

import sys
import uuid
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, write_json
from timerstore.timelog.files.steady import Read, read_file
from timerstore.timelog.reading.reader import StoreReader

RESTORED_FILE: Final = "config/restored.json"

Restores = list[dict[str, Any]]


def read_restores(path: Path, read: Read = read_file) -> Restores:
    """Return how a store was restored, the first time first; nothing if it never was."""
    content = read_json(path / RESTORED_FILE, read) or {}
    return check_restores(content.get("restores", []))


def check_restores(restores: object) -> Restores:
    """Return a list of restores that was read. Raises CorruptStoreError if it is none."""
    if not isinstance(restores, list) or not all(
        isinstance(each, dict) and isinstance(each.get("log_end"), int) for each in restores
    ):
        raise CorruptStoreError(RESTORED_FILE, 0, "it is no list of restores")
    return restores


def note_restore(disk: Disk, path: Path, log_end: int) -> None:
    """Say that a store goes on from `log_end`; durable on return."""
    restores = [*read_restores(path), {"log_end": log_end, "name": uuid.uuid4().hex}]
    write_json(disk, path / RESTORED_FILE, {"restores": restores})


def shared_end(before: Restores, since: Restores) -> int:
    """Return up to which commit log offset a store has the log that it had.

    `before`, `since`: how it had been restored then and by now. A store that was not restored since
    has all of it.
    """
    pairs = zip(before, since, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return min((each["log_end"] for each in (*before[same:], *since[same:])), default=sys.maxsize)


def find_divergence(reader: StoreReader, before: Restores, log_end: int, backup: object) -> None:
    """Raise InvalidArgumentError if the store is not what became of a point in `backup`.

    `before`, `log_end`: how the store had been restored by then, and where its log ended.
    """
    since = read_restores(reader.path, reader.steady.read)
    if since[: len(before)] == before and shared_end(before, since) >= log_end:
        return
    raise InvalidArgumentError(
        f"{reader.path} was restored to a time before the last point in {backup}, so the two "
        "logs differ from there on. Pass a new folder."
    )
