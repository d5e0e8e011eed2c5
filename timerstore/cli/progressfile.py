"""How far an import has come, in a small file beside the input.

Before each chunk of rows it is written, durably, with where the store's log ended then. An import
that was killed may have put a part of its last chunk: its first rows, in their order; that is
how a store puts. The log behind that place tells which part: a put has an id that says where in the
log it is, and it has its row's content. So a second run puts the rest, nothing twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timerstore.cli.rows import Row
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    MissingFileError,
    StoreLockedError,
    TimerStoreError,
)
from timerstore.timelog.files.smallfile import read_small
from timerstore.values.durably import write_durably

_PIECE_BYTES = 1 << 20


@dataclass
class Progress:
    """What is known of an import; `done_count` rows are in the store for certain."""

    sha256: str
    options: dict[str, Any]
    base_ms: int
    byte_count: int
    row_count: int = 0
    done_count: int = 0
    log_end: int = -1
    """Where the store's log ended before the chunk behind `done_count`; −1: none was begun."""
    is_whole: bool = False


def progress_path(file: Path, store_tag: int) -> Path:
    """Return where the progress of importing a file into a store is kept."""
    return file.with_name(f"{file.name}.{store_tag & 0xFFFFFFFF:08X}.import")


def read_progress(path: Path, new: Progress, file: Path, *, again: bool = False) -> Progress:
    """Return how far an import has come: `new` if there was none, or all is to be put `again`.

    Raises InvalidArgumentError if the file, or what was said of it, is another one now.
    """
    try:
        from timerstore.timelog.files.jsonfile import understood

        with understood(path.name):
            old = _parse(json.loads(read_small(path)))
    except MissingFileError:
        return new
    except CorruptStoreError as e:
        raise InvalidArgumentError(
            f"{path} cannot be read: {e.reason}. This file says how much of {file} was imported. "
            "Put back a copy that is whole."
        ) from e
    if old.sha256 != new.sha256 and not old.is_whole:
        raise InvalidArgumentError(
            f"{file} was changed after at least {old.done_count:,} of its rows had been "
            f"imported. Put the old file back, and the import continues; or remove {path}, and "
            "all rows are put."
        )
    if again and old.is_whole:
        return new
    if old.sha256 != new.sha256:
        if digest_of(file, old.byte_count) != old.sha256:
            return new  # another file of that name
        raise InvalidArgumentError(
            f"{file} was imported before, when it had {old.row_count:,} rows, and has grown "
            "since. Pass a file with only the new rows, or pass --again to put all rows."
        )
    if old.options != new.options and not old.is_whole:
        raise InvalidArgumentError(
            f"The import of {file} was begun with other options: {old.options}. Use the same."
        )
    return old


def _parse(values: dict[str, Any]) -> Progress:
    """Return what a file says; raises what `understood` takes for a file that says something else.

    Files of other versions may lack what has a default.
    """
    from timerstore.timelog.files.jsonfile import whole  # arrays with it: not for --help

    found = Progress(**values)
    counts = (found.base_ms, found.byte_count, found.row_count, found.done_count)
    for each in counts:
        whole(each)
    whole(found.log_end, -1)
    kinds = (found.sha256, str), (found.options, dict), (found.is_whole, bool)
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise TypeError("a value is of another type")
    return found


def write_progress(path: Path, progress: Progress) -> None:
    """Write how far an import has come; durable on return."""
    write_durably(path, json.dumps(asdict(progress)))


@contextmanager
def held(file: Path) -> Iterator[str]:
    """Yield the SHA-256 of an input that nobody else imports meanwhile."""
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise StoreLockedError(
                f"Another process is importing {file}. Wait until it has ended."
            ) from e
        yield digest_of(file)


def digest_of(file: Path, byte_count: int = sys.maxsize) -> str:
    """Return the SHA-256 of a file, or of its first bytes."""
    digest, left = hashlib.sha256(), byte_count
    with file.open("rb") as opened:
        while left > 0 and (piece := opened.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


# --- what a chunk that was begun has put


def count_put(path: Path, log_end: int, rows: list[Row]) -> int:
    """Return how many of `rows`, from the first on, were put behind `log_end` of a store's log."""
    count = 0
    for row in puts_behind(path, log_end, {row.due_ms for row in rows}):
        if count < len(rows) and is_same(rows[count], *row):
            count += 1
    return count


def is_same(row: Row, put: Row, put_ms: int) -> bool:
    """Tell whether a row was put as `put`, at `put_ms`; what was overdue is due when it was put."""
    due_ms = max(row.due_ms, min(put.due_ms, put_ms))
    return row._replace(due_ms=due_ms) == put


def puts_behind(path: Path, log_end: int, due_ms: set[int]) -> Iterator[tuple[Row, int]]:
    """Yield the timers that were put behind an offset of a store's log, with when; in order.

    Only those that are due at one of some times, or were when they were put: others may have put
    very many since.
    """
    import numpy as np

    from timerstore.timelog.bytes.decode import decode_message, user_properties
    from timerstore.timelog.reading.reader import StoreReader
    from timerstore.values.ids import parse_id

    reader = StoreReader(path, np.zeros(0, np.int64))
    if log_end < reader.commitlog.start:
        raise TimerStoreError(
            f"{path} has removed the part of its log behind offset {log_end}, so nobody can tell "
            "which rows of the last chunk were put. Look for them in the store, and import the "
            "other rows as a file of their own."
        )
    wanted = np.array(sorted(due_ms), np.int64)
    for rows in reader.scan(log_end):
        due = rows.exact_due_ms
        overdue = (due >= 0) & (due <= rows.stored_ms)
        fitting = np.isin(due, wanted) | overdue
        for offset in rows.offset[fitting].tolist():
            message = decode_message(reader.commitlog.view(offset), offset)
            id = parse_id(message.properties.get("UNIQ_KEY", ""))
            if id is None or id.offset != offset or id.tag != reader.store_tag & 0xFFFFFFFF:
                continue  # a copy, say: it was put before, or is none of this store's
            properties = message.properties
            yield (
                Row(
                    topic=properties.get("REAL_TOPIC", message.topic),
                    body=message.body,
                    due_ms=id.due_ms,
                    key=properties.get("KEYS"),
                    tag=properties.get("TAGS"),
                    properties=user_properties(properties),
                ),
                message.born_ms,
            )
