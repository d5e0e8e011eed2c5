"""What is left of a damaged store, and what is lost of its log.

What a lost copy said of its source, as far as that can still be known
(`timelog/reading/pastdamage.py`), the filler in its place then says instead.
"""

from __future__ import annotations

import errno
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from timerstore.copies.report import Problem
from timerstore.core.offsets import ConsumerOffsets
from timerstore.errors import CorruptStoreError, NotAStoreError, TimerStoreError
from timerstore.jit.record import Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import put_blank
from timerstore.timelog.files.checkpoint import (
    Identity,
    TimerCheckpoint,
    decode_checkpoint,
    find_identity,
)
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json
from timerstore.timelog.files.names import segment_name, segment_offset
from timerstore.timelog.files.reader_end import list_names, ranges_of, read_file
from timerstore.timelog.files.smallfile import read_small
from timerstore.timelog.reading.pastdamage import (
    NO_COPIES,
    NO_SOURCE,
    Damage,
    copies_of,
    fillers,
    fired_source,
    read_past_damage,
    rolled_sources,
    used_behind_blank,
)
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.writing.compose import BYTES_OF_ORIGIN, cut_range, filler
from timerstore.values.config import Config


@dataclass
class LostRange:
    """A piece of the log in which no message can be read."""

    start: int
    stop: int
    reason: str
    stored_ms: int
    """When the message before it was stored."""
    origins: list[int] = field(default_factory=list)
    """Messages whose copies stood here."""


@dataclass
class LogFound:
    """What a log holds."""

    start: int
    end: int
    """Behind its last message, or behind what was flushed if that is lost."""
    message_count: int = 0
    ranges: list[LostRange] = field(default_factory=list)
    blanks: list[int] = field(default_factory=list)
    """Those that have something behind them, which is no part of the log."""
    queue_id: int = 0
    """For fillers: a queue of their topic that has none yet."""


def find_ranges(reader: StoreReader, flushed: int) -> LogFound:
    """Read the whole log; return where it ends, and what cannot be read before that.

    `flushed`: so much was durable once; what is wrong behind the last message and behind that is a
    torn tail. O(bytes).
    """
    log, size = reader.commitlog, reader.commitlog.segment_bytes
    found = LogFound(log.start, log.start)
    trailing: list[LostRange] = []
    stored_ms, copies, previous = 0, list[Words](), log.start
    for item in read_past_damage(reader, log.start, log.files_end):
        if isinstance(item, Damage):
            if item.offset // size > previous // size:
                found.blanks += _used(reader, [previous])
            lost = LostRange(item.offset, item.resume, item.reason, stored_ms)
            source = fired_source(reader, item.framed)
            if source != NO_SOURCE:
                lost.origins.append(source)
            trailing.append(lost)
            previous = item.resume
            continue
        found.ranges += trailing
        trailing.clear()
        found.message_count += len(item)
        starts = item.offset
        ends = np.append(previous, starts[:-1] + item.size[:-1])
        found.blanks += _used(reader, ends[starts // size > ends // size].tolist())
        found.end = previous = int(item.offset[-1] + item.size[-1])
        stored_ms = int(item.stored_ms[-1])
        copied = item.origin >= 0
        copies.append(copies_of(item[copied]))
        for row in fillers(reader, item):
            found.message_count -= 1
            found.queue_id = max(found.queue_id, int(row.queue_id) + 1)
    found.ranges += [lost for lost in trailing if lost.start < flushed]
    if found.ranges:
        found.end = max(found.end, found.ranges[-1].stop)
        _keep_rolled(reader, found, np.concatenate([NO_COPIES, *copies]))
    return found


def _used(reader: StoreReader, ends: list[int]) -> list[int]:
    """Return where a blank closes a segment, of `ends`, and is not all that is left of it."""
    log = reader.commitlog
    closed = [end for end in ends if end % log.segment_bytes]
    return [end for end in closed if len(set(used_behind_blank(log, end))) > 1]


def _keep_rolled(reader: StoreReader, found: LogFound, copies: Words) -> None:
    """Note in each range what a rolled copy in it was made of, if the timer went on from there.

    `copies`: all that are sound, see `pastdamage.py`.
    """
    starts, stops = np.array([(each.start, each.stop) for each in found.ranges], np.int64).T
    place = np.searchsorted(starts, copies[:, 0], "right") - 1
    made = copies[(place >= 0) & (copies[:, 0] < stops[place])]
    fired = [source for each in found.ranges for source in each.origins]
    known = np.append(copies[:, 0], np.array(fired, np.int64))
    for source, lost, _ in rolled_sources(reader, made, known).tolist():
        found.ranges[np.searchsorted(starts, lost, "right") - 1].origins.append(source)


def cover(disk: Disk, reader: StoreReader, found: LogFound) -> int:
    """Write fillers into the ranges; return how many. Durable on return. O(ranges).

    What stands behind a blank becomes zeros. A range that is shorter than any filler, which only a
    broker's message can be, stays as it is: who reads passes it.
    """
    index, size = 0, reader.commitlog.segment_bytes
    with _writer(disk, reader) as write:
        for offset in found.blanks:
            write(offset, _blank(size, offset))
        for lost in found.ranges:
            covered = lost.start
            for offset, data in _fillers(size, lost, found.queue_id, index):
                write(offset, data)
                index, covered = index + 1, offset + len(data)
            if lost.stop % size == 0 and lost.stop - covered >= fmt.BLANK_BYTES:
                write(covered, _blank(size, covered))
    return index


def _blank(segment_bytes: int, offset: int) -> bytes:
    """Return what closes a segment at `offset`, up to its end."""
    blank = np.zeros(segment_bytes - offset % segment_bytes, np.uint8)
    put_blank(blank, 0, offset)
    return blank.tobytes()


@contextmanager
def _writer(disk: Disk, reader: StoreReader) -> Iterator[Callable[[int, bytes], None]]:
    """Yield what writes bytes at an offset, best in order; durable when it ends without an error.

    A segment is made durable once the next one is written to: there may be thousands of pieces.
    """
    size, number, fd = reader.commitlog.segment_bytes, -1, -1
    path = reader.commitlog.folder

    def close(*, durable: bool) -> None:
        nonlocal fd
        if fd < 0:
            return
        try:
            if durable:
                disk.sync(fd, path)
        finally:
            os.close(fd)
            fd = -1

    def write(offset: int, data: bytes) -> None:
        nonlocal number, fd, path
        if offset // size != number or fd < 0:
            close(durable=True)
            number = offset // size
            path = reader.commitlog.path(number)
            fd = disk.open_file(path)
        disk.write_at(fd, data, offset % size, path)

    try:
        yield write
        close(durable=True)
    finally:
        close(durable=False)


def _fillers(
    segment_bytes: int, lost: LostRange, queue_id: int, index: int
) -> Iterator[tuple[int, bytes]]:
    """Yield what is written where."""
    to_end = lost.stop % segment_bytes == 0
    sizes = cut_range(lost.stop - lost.start, len(lost.origins), to_end=to_end)
    offset, origins = lost.start, lost.origins.copy()
    for size in sizes or ():
        origin = origins.pop(0) if origins and size >= BYTES_OF_ORIGIN else -1
        data = filler(
            *(offset, size),
            queue_id=queue_id,
            index=index,
            stored_ms=lost.stored_ms,
            origin=origin,
        )
        yield offset, data
        offset, index = offset + size, index + 1


# --- its files, copied as far as they can be read
#
# Nothing is trusted: files may be missing, cut, too long, unreadable in the middle, or no store's.


_PIECE_BYTES: Final = 1 << 20
_SECTOR_BYTES: Final = 4_096
_SEGMENT_BYTES_MAX: Final = 1 << 30
_INDEX_FILES: Final = frozenset(("timermetrics", "wheelsums", "rebuild.json", "timercheck"))
_GROUPS_FILE: Final = "consumerOffset.json"


class Leftovers(NamedTuple):
    """What there is to begin with."""

    folder: Path
    """Where the segments of the commit log lie."""
    files: dict[int, int]
    """Their lengths, by the offsets that their names say."""
    segment_bytes: int
    identity: Identity | None
    checkpoint: TimerCheckpoint | None


def look_at(path: Path) -> Leftovers:
    """Look at what is left. Raises NotAStoreError if there is nothing of a log."""
    folder = path / "commitlog"
    if not folder.is_dir():
        folder = path  # the bare segments
    files = {
        offset: (folder / name).stat().st_size
        for name in list_names(folder)
        if (offset := segment_offset(name)) is not None
        if (folder / name).is_file() and not (folder / name).is_symlink()
    }
    if not any(files.values()):
        raise NotAStoreError(
            f"{path} holds no file of a commit log, and a store is made from that. Pass the "
            "folder that held the store, or its folder commitlog."
        )
    try:
        identity, _ = find_identity(path)
    except (TimerStoreError, OSError):
        identity = None
    try:
        data = read_file(path / "config" / "timercheck")
    except (TimerStoreError, OSError):
        data = None
    checkpoint = None if data is None else decode_checkpoint(data)
    size = infer_size(files) if identity is None else identity.commitlog_segment_bytes
    return Leftovers(folder, files, size, identity, checkpoint)


def infer_size(files: dict[int, int]) -> int:
    """Return how long segments were, by their names and lengths.

    >>> infer_size({0: 4096, 4096: 4096, 8192: 100})
    4096
    """
    lengths = Counter(length for length in files.values() if length)
    for length, _ in lengths.most_common():
        if all(offset % length == 0 for offset in files):
            return length
    common = math.gcd(*files)
    return common if 0 < common <= _SEGMENT_BYTES_MAX else max(lengths)


def copy_log(
    disk: Disk, found: Leftovers, folder: Path, told: Callable[[int], None]
) -> Iterator[Problem]:
    """Write whole segments, zeros if something is lost; yield what is wrong with the files."""
    size = found.segment_bytes
    disk.make_folder(folder)
    numbers = sorted(offset // size for offset in found.files if offset % size == 0)
    for offset in sorted(found.files):
        if offset % size:
            reason = f"it does not start at a multiple of {size} bytes; it is left out"
            yield Problem(f"commitlog/{segment_name(offset)}", 0, reason)
    for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
        name, base = segment_name(number * size), number * size
        fd = disk.open_file(folder / name, create=True)
        try:
            os.ftruncate(fd, size)
            length = found.files.get(base)
            if length is None:
                yield Problem(f"commitlog/{name}", base, f"it is missing, {size} bytes")
                continue
            if length < size:
                reason = f"it ends after {length} of {size} bytes"
                yield Problem(f"commitlog/{name}", base + length, reason)
            elif length > size:
                reason = f"it has {length - size} bytes more than {size}; they are left out"
                yield Problem(f"commitlog/{name}", base + size, reason)
            yield from _copy_readable(disk, found.folder / name, fd, base, size, told)
            disk.sync(fd, folder / name)
        finally:
            os.close(fd)
    disk.sync_folder(folder)


def _copy_readable(
    disk: Disk, source: Path, target: int, base: int, size: int, told: Callable[[int], None]
) -> Iterator[Problem]:
    """Copy what the disk gives; if it fails, sector by sector."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for first, last in ranges_of(fd, 0, size):
            at = first
            while at < last:
                count = min(_PIECE_BYTES, last - at)
                try:
                    _copy(disk, fd, target, at, count, source)
                except OSError as e:
                    if e.errno != errno.EIO:
                        raise
                    yield from _copy_sectors(disk, fd, target, base, at, count, source)
                at += count
                told(count)
    finally:
        os.close(fd)


def _copy(disk: Disk, fd: int, target: int, at: int, count: int, source: Path) -> None:
    disk.write_at(target, os.pread(fd, count, at), at, source)


def _copy_sectors(
    disk: Disk, fd: int, target: int, base: int, start: int, count: int, source: Path
) -> Iterator[Problem]:
    for at in range(start, start + count, _SECTOR_BYTES):
        try:
            _copy(disk, fd, target, at, min(_SECTOR_BYTES, start + count - at), source)
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            reason = f"the disk cannot read the {_SECTOR_BYTES} bytes from this offset on"
            yield Problem(f"commitlog/{source.name}", base + at, reason)


def small_files(disk: Disk, path: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return the small files that can be read, and sentences about those that cannot."""
    files, lost = dict[str, bytes](), list[str]()
    for name in sorted(list_names(path / "config")):
        file = path / "config" / name
        if name in _INDEX_FILES or not name.endswith(".json") or not file.is_file():
            continue
        try:
            content = read_json(file)
            if name == _GROUPS_FILE:
                ConsumerOffsets(disk, file)
            if content is not None:
                files[f"config/{name}"] = read_small(file)
        except (CorruptStoreError, NotAStoreError, OSError) as e:
            lost.append(f"config/{name} cannot be read ({e}); it is left out.")
    if f"config/{_GROUPS_FILE}" not in files:
        lost.append(
            "The offsets of the groups are lost: all messages that fired and are still in the "
            "log are handed out again."
        )
    return files, lost


def sizes_for(found: Leftovers, config: Config, tag: int) -> Identity:
    """Return what a store of ours is taken to be made with, if nothing says it any more."""
    config = replace(config, commitlog_segment_bytes=found.segment_bytes)
    return Identity(
        store_tag=tag,
        precision_ms=config.precision_ms,
        roll_window_slots=config.roll_window_slots,
        wheel_slot_count=config.wheel_slot_count,
        commitlog_segment_bytes=config.commitlog_segment_bytes,
        consumequeue_segment_bytes=config.consumequeue_segment_bytes,
        timerlog_segment_bytes=config.timerlog_segment_bytes,
    )
