"""What of a store goes into a backup: its log up to a whole message, its small files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from timerstore.copies.report import Problem, Summed
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.timelog.files.checkpoint import DERIVED_FILES, decode_checkpoint
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.files.reader_end import read_file
from timerstore.timelog.files.smallfile import open_at
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.reader import StoreReader

_LEFT_OUT: Final = DERIVED_FILES | {
    f"config/{name}" for name in ("wheelsums", "timermetrics", "rebuild.json", "spare")
}
"""They belong to the indexes; the last holds nothing but room."""
_LOOK_S: Final = 0.02
"""So often a checkpoint is read while it is waited for."""


def refuse_inside(path: Path, dest: Path) -> None:
    """Refuse a folder that is the store's own, or lies in it, or around it."""
    store, target = path.resolve(), dest.resolve()
    if store == target or store in target.parents or target in store.parents:
        raise InvalidArgumentError(
            f"One of {dest} and {path} lies inside the other. Pass a folder outside the store, "
            "best on another disk."
        )


def check_whole(reader: StoreReader) -> None:
    """Raise CorruptStoreError if segments of the commit log are missing, or cut."""
    for fault in reader.commitlog.faults:
        raise CorruptStoreError(*fault)


def sizes_of(reader: StoreReader) -> dict[str, int | None]:
    """Return what a store was made with, as a backup keeps it."""
    sizes = reader.sizes
    names = ("commitlog", "consumequeue", "timerlog")
    measured: dict[str, int | None] = {
        f"{name}_segment_bytes": getattr(sizes, f"{name}_segment_bytes") for name in names
    }
    measured["wheel_slot_count"] = sizes.wheel_slot_count
    measured["precision_ms"] = reader.precision_ms
    measured["roll_window_slots"] = sizes.roll_window_slots
    return measured


def check_same_store(reader: StoreReader, tag: int, segment_bytes: int, dest: object) -> None:
    """Raise InvalidArgumentError if a backup is not that of the store."""
    sizes = reader.sizes
    if tag not in (sizes.store_tag, -1):
        raise InvalidArgumentError(
            f"{dest} is a backup of another store than {reader.path}. Pass another folder."
        )
    if segment_bytes != sizes.commitlog_segment_bytes:
        raise InvalidArgumentError(
            f"{dest} is a backup of another store than {reader.path}: its segments have "
            f"{segment_bytes} bytes, those of the store have {sizes.commitlog_segment_bytes}. "
            "Pass another folder."
        )


def check_continued(reader: StoreReader, end: int, is_same: bool, dest: object) -> None:
    """Raise InvalidArgumentError if the log is not the one that a backup holds up to `end`."""
    if end > reader.commitlog.files_end or not is_same:
        raise InvalidArgumentError(
            f"The log of {reader.path} differs from the log in {dest}, which goes up to offset "
            f"{end}. The store was restored to an earlier point, or is another copy, or somebody "
            "changed the backup. Pass a new folder."
        )


def make_durable(reader: StoreReader, start: int, end: int, patience_s: float = 0.0) -> None:
    """Have [start, end) of a log durable, or a power cut would leave it behind ours.

    If a process has the store open, it does that itself with each checkpoint: so long we wait for
    one, since two that sync a log get in each other's way.
    """
    log, checkpoint = reader.commitlog, reader.checkpoint
    if not reader.is_open or checkpoint is None:
        return
    for _ in range(round(patience_s / _LOOK_S)):
        if checkpoint.commitlog_flushed >= end:
            break
        time.sleep(_LOOK_S)
        data = read_file(reader.path / "config" / "timercheck", reader.at) or b""
        checkpoint = decode_checkpoint(data) or checkpoint
    start, disk = max(checkpoint.commitlog_flushed, start), Disk()
    if start >= end:
        return
    for number in range(start // log.segment_bytes, -(-end // log.segment_bytes)):
        path = log.folder / segment_name(number * log.segment_bytes)
        try:  # a mapping that is only for reading would not do: Linux syncs nothing then
            fd = open_at(path, reader.at)
        except FileNotFoundError:
            continue  # what is removed needs no copy any more
        try:
            disk.sync(fd, path)
        finally:
            os.close(fd)


class NewLog(NamedTuple):
    """What of a log is new."""

    end: int
    message_count: int
    problems: tuple[Problem, ...]


def read_new(reader: StoreReader, start: int, told: Summed) -> NewLog:
    """Look at the log from `start` on; see `sound_log`. Half of the work is left to be told."""
    end, message_count, problems = start, 0, list[Problem]()
    told.total = 2 * max(flushed_end(reader) - start, 1)
    for part in sound_log(reader, start):
        if isinstance(part, Problem):
            problems.append(part)
        else:
            message_count += part[0]
            told(max(part[1] - end, 0))
            end = max(end, part[1])
    told.total = 2 * (end - start)
    return NewLog(end, message_count, tuple(problems))


def small_files_of(reader: StoreReader) -> dict[str, bytes]:
    """Return the small files that a point keeps, by their names."""
    files = reader.steady.files()
    return {
        name: data
        for name, data in files.items()
        if name not in _LEFT_OUT and not name.endswith(".tmp")
    }


def flushed_end(reader: StoreReader) -> int:
    """Return the offset up to which a log was flushed, or the end of a broker's log."""
    log, checkpoint = reader.commitlog, reader.checkpoint
    if checkpoint is None or checkpoint.by_broker:
        return log.files_end
    return min(max(checkpoint.commitlog_flushed, log.start), log.files_end)


def sound_log(reader: StoreReader, start: int) -> Iterator[tuple[int, int] | Problem]:
    """Yield (messages, where the last one ends) of the log from `start` on, and each Problem.

    It ends with the last message that is whole. Before what was flushed, bytes that are no message
    are damage, and are skipped; behind it, they are the end. A broker does not say how much it
    flushed.
    """
    checkpoint, flushed = reader.checkpoint, flushed_end(reader)
    ours = checkpoint is not None and not checkpoint.by_broker
    waiting: list[Problem] = []
    for part in read_past_damage(reader, start, flushed):
        if isinstance(part, Damage):
            problem = Problem("commitlog", part.offset, part.reason)
            if ours:
                yield problem
            elif not part.is_empty:
                waiting.append(problem)
            continue
        yield from waiting
        waiting.clear()
        yield len(part), int(part.offset[-1] + part.size[-1])
    if ours:
        scanned = reader.scan(max(start, flushed))
        for rows in scanned:
            yield len(rows), int(rows.offset[-1] + rows.size[-1])
        yield 0, scanned.end
