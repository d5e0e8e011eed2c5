"""Ranges of a commit log that are lost: found, then covered with fillers.

A copy that is lost said of its source that it was made. That is kept where it can still be known:
a fired copy whose body alone is damaged names its source, a rolled one is named by what was made of
it. The filler in its place then says it instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.timelog import scan
from timerstore.timelog.blank import put_blank_at
from timerstore.timelog.disk import Disk
from timerstore.timelog.filler import BYTES_OF_ORIGIN, SALVAGED_TOPIC, cut_range, filler
from timerstore.timelog.format import BLANK_BYTES, TIMER_TOPIC
from timerstore.timelog.jit.record import Words
from timerstore.timelog.pastdamage import Damage, read_past_damage, used_behind_blank
from timerstore.timelog.reader import StoreReader

_WHO: Final = [scan.ROW_IDENTITY_HIGH, scan.ROW_IDENTITY_LOW, scan.ROW_IS_DELETE]


@dataclass
class LostRange:
    """A piece of the log where no message can be read."""

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
    """Behind its last message, or behind what was flushed where that is lost."""
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
            lost = LostRange(item.offset, item.resume, item.reason, stored_ms)
            source = _fired_from(reader, item)
            if source >= 0:
                lost.origins.append(source)
            trailing.append(lost)
            previous = item.resume
            continue
        found.ranges += trailing
        trailing.clear()
        found.message_count += len(item)
        starts = item[:, scan.ROW_OFFSET]
        ends = np.append(previous, starts[:-1] + item[:-1, scan.ROW_SIZE])
        closed = ends[(starts // size > ends // size) & (ends % size != 0)].tolist()
        found.blanks += [end for end in closed if len(set(used_behind_blank(log, end))) > 1]
        found.end = previous = int(item[-1, scan.ROW_OFFSET] + item[-1, scan.ROW_SIZE])
        stored_ms = int(item[-1, scan.ROW_STORED_MS])
        copied = item[:, scan.ROW_ORIGIN] >= 0
        copies.append(item[copied][:, [scan.ROW_ORIGIN, *_WHO]].copy())
        for row in item[item[:, scan.ROW_TOPIC_BYTES] == len(SALVAGED_TOPIC)]:
            if _topic(reader, row) == SALVAGED_TOPIC:
                found.message_count -= 1
                found.queue_id = max(found.queue_id, int(row[scan.ROW_QUEUE_ID]) + 1)
    found.ranges += [lost for lost in trailing if lost.start < flushed]
    if found.ranges:
        found.end = max(found.end, found.ranges[-1].stop)
        _keep_rolled(reader, found, np.concatenate([np.zeros((0, 4), np.int64), *copies]))
    return found


def _fired_from(reader: StoreReader, damage: Damage) -> int:
    """Return the source of a fired copy of which more than its structure is left; else −1.

    It is believed where it names a sound message of the same timer.
    """
    if not len(damage.framed):
        return -1
    copy = damage.framed[0]
    origin = int(copy[scan.ROW_ORIGIN])
    if not reader.commitlog.start <= origin < damage.offset or _topic(reader, copy) == TIMER_TOPIC:
        return -1  # a roll that is lost is made again, unless it was rolled on
    for rows in reader.scan(origin, origin + 1):
        if len(rows) and (rows[0, _WHO] == copy[_WHO]).all():
            return origin
    return -1


def _keep_rolled(reader: StoreReader, found: LogFound, copies: Words) -> None:
    """Note what a lost message was made of, where a copy of it is there: the timer went on.

    `copies`: origin, and who it is, of each sound copy. O(log) where there is any such.
    """
    wanted: dict[tuple[int, ...], dict[int, LostRange]] = {}
    starts, stops = np.array([(each.start, each.stop) for each in found.ranges], np.int64).T
    place = np.searchsorted(starts, copies[:, 0], "right") - 1
    inside = np.flatnonzero((place >= 0) & (copies[:, 0] < stops[place]))
    for i, *who in np.column_stack((place, copies[:, 1:]))[inside].tolist():
        wanted.setdefault(tuple(who), {})[i] = found.ranges[i]
    if not wanted:
        return
    sources: dict[tuple[tuple[int, ...], int], int] = {}  # by who it is, where its range begins
    low = np.array([who[1] for who in wanted], np.int64)
    for item in read_past_damage(reader, reader.commitlog.start, found.end):
        if isinstance(item, Damage):
            continue
        for row in item[np.isin(item[:, scan.ROW_IDENTITY_LOW], low)]:
            who, offset = tuple(row[_WHO].tolist()), int(row[scan.ROW_OFFSET])
            if who in wanted and _topic(reader, row) == TIMER_TOPIC:
                for lost in wanted[who].values():
                    if offset < lost.start:
                        sources[who, lost.start] = offset
    known = set(copies[:, 0].tolist())
    for who, ranges in wanted.items():
        for lost in ranges.values():
            source = sources.get((who, lost.start), -1)
            if source >= 0 and source not in known:
                lost.origins.append(source)
                known.add(source)


def _topic(reader: StoreReader, row: Words) -> bytes:
    try:
        return reader.commitlog.read(int(row[scan.ROW_TOPIC]), int(row[scan.ROW_TOPIC_BYTES]))
    except CorruptStoreError:
        return b""


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
            if lost.stop % size == 0 and lost.stop - covered >= BLANK_BYTES:
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
