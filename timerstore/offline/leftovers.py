"""What is left of a store: copying its log as far as it can be read, with what says its sizes.

Nothing is trusted: files may be missing, cut, too long, unreadable in the middle, or no store's.
"""

from __future__ import annotations

import errno
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from timerstore.copies.report import Problem
from timerstore.core.offsets import ConsumerOffsets
from timerstore.errors import CorruptStoreError, NotAStoreError, TimerStoreError
from timerstore.timelog.files.checkpoint import TimerCheckpoint, decode_checkpoint
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.identity import Identity, find_identity
from timerstore.timelog.files.jsonfile import check_seal, read_json
from timerstore.timelog.files.names import segment_name, segment_offset
from timerstore.timelog.files.smallfile import read_small
from timerstore.timelog.files.steady import list_names, ranges_of, read_file
from timerstore.values.config import Config

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
            check_seal(file, content or {})
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
