"""What of a store goes into a backup: its log up to a whole message, its small files."""

from __future__ import annotations

import os
import time
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from timerstore.copies.report import Problem, Summed
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.services.opening.recover_damage import torn_batch
from timerstore.timelog.files.checkpoint import DERIVED_FILES, decode_checkpoint
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.files.reader_end import read_file
from timerstore.timelog.files.smallfile import open_at, status_at
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage, rows_of_topic
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.writing.compose import ACKS_TOPIC, PUTS_MAX

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
    start, disk = max(checkpoint.commitlog_flushed, start), Disk(reader.folder)
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
    disk.sync_folder(log.folder)


class NewLog(NamedTuple):
    """What of a log is new."""

    end: int
    message_count: int
    stored_ms: int
    """When the last message of it was stored, 0 if there is none."""
    problems: tuple[Problem, ...]

    def grown(self, part: LoggedMessages, count: int, end: int) -> NewLog:
        """Return it with the first messages of a part, up to `end`."""
        stored_ms = int(part.stored_ms[count - 1]) if count else self.stored_ms
        count += self.message_count
        return self._replace(end=end, message_count=count, stored_ms=stored_ms)


def read_new(reader: StoreReader, start: int, told: Summed) -> NewLog:
    """Look at the log from `start` on. Half of the work is left to be told.

    It ends where a recovery would cut it: behind the last message that is whole, or before a
    record of which the puts are not all there. Before what was flushed, bytes that are no message
    are damage, and are skipped; behind it, they are the end. A broker does not say how much it
    flushed.
    """
    checkpoint, flushed = reader.checkpoint, flushed_end(reader)
    ours = checkpoint is not None and not checkpoint.by_broker
    found = before = NewLog(start, 0, 0, ())
    waiting, lacking = list[Problem](), 0
    told.total = 2 * max(flushed - start, 1)
    behind = reader.scan(max(start, flushed)) if ours else None
    for part in chain(read_past_damage(reader, start, flushed), behind or ()):
        if isinstance(part, Damage):
            if ours or not part.is_empty:
                waiting.append(Problem("commitlog", part.offset, part.reason))
            if not ours:
                continue  # it may be the end
        if waiting:  # the log goes on behind it, so what stood before it was whole
            found, lacking = found._replace(problems=(*found.problems, *waiting)), 0
            waiting.clear()
        if isinstance(part, Damage):
            continue
        records = rows_of_topic(reader, part, ACKS_TOPIC, PUTS_MAX + 1)
        lacking, record = torn_batch(reader.commitlog, part, records, lacking)
        if record >= 0:
            before = found.grown(part, record, int(part.offset[record]))
        end = int(part.offset[-1] + part.size[-1])
        told(max(end - found.end, 0))
        found = found.grown(part, len(part), max(found.end, end))
    if lacking:
        found = before
    elif behind is not None:
        found = found._replace(end=max(found.end, behind.end))
    told.total = 2 * (found.end - start)
    return found


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


def life_of(reader: StoreReader) -> tuple[int, int]:
    """Return what names the opening of a store that is open; the same if it is closed."""
    try:
        status = status_at(reader.path / "abort", reader.at)
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns
