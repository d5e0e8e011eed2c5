"""Ranges of a commit log that are lost: found, then covered with fillers.

What a lost copy said of its source, as far as that can still be known
(`timelog/reading/pastdamage.py`), the filler in its place then says instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from timerstore.jit.record import Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import put_blank_at
from timerstore.timelog.files.disk import Disk
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
    put_blank_at(blank, 0, offset)
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
