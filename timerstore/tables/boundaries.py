"""Where records of the commit log begin, so that a segment can be cut between two of them.

The entries of the consume queues point at messages; if they are missing, a scan from the
segment's start finds one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.reading.reader import ReadSegments, StoreReader, read_entries

_QUEUES_MAX: Final = 4
"""Queues that are asked, those with the most segments first."""
_TRIES_MAX: Final = 8
"""Entries that are tried, if one points to damage."""


def cut_log(view: StoreView, start: int, stop: int, piece_bytes: int) -> list[int]:
    """Return offsets at which messages begin, from `start` to `stop`, about `piece_bytes` apart.

    `start` is one of them; `stop`, which may be the log's end, stands at the end of the list.
    """
    segment_bytes = view.reader.commitlog.segment_bytes
    cuts, queues = [start], _busiest_queues(view)
    target = start + piece_bytes
    while target < stop:
        base = target - target % segment_bytes
        found = base if target == base else _boundary(view, queues, target)
        found = min(found, base + segment_bytes, stop)
        if cuts[-1] < found < stop:
            cuts.append(found)
        target = max(target, found) + piece_bytes
    return [*cuts, stop]


def message_from(view: StoreView, target: int, stop: int) -> int:
    """Return where the first known message at or behind `target` begins, or `stop`."""
    segment_bytes = view.reader.commitlog.segment_bytes
    if target >= stop or target % segment_bytes == 0:
        return min(target, stop)
    end = (target // segment_bytes + 1) * segment_bytes
    return min(_boundary(view, _busiest_queues(view), target), end, stop)


def log_end(view: StoreView, start: int) -> int:
    """Return the offset behind the last message that may be read. O(bytes) of a broker's log.

    Ours says so in its checkpoint; if a broker wrote last, the log is read from `start`, where a
    message begins, or from the last one that a queue knows.
    """
    if view.ours and view.log_stop <= view.durable:
        return view.log_stop
    offset = max(start, view.reader.commitlog.start, min(view.durable, view.log_stop))
    for queue, stop in _busiest_queues(view):
        last = _offset(queue, stop - 1) if stop * fmt.ENTRY_BYTES > queue.start else -1
        if last > offset and view.reader.is_message(last):
            offset = last
    scanned = view.reader.scan(offset, view.log_stop)
    for rows in scanned:
        offset = int(rows.offset[-1] + rows.size[-1])
    return offset


def _busiest_queues(view: StoreView) -> list[tuple[ReadSegments, int]]:
    """Return some queues, each with the index behind its last entry."""
    queues = sorted(view.reader.queues.values(), key=lambda each: -len(each.numbers))
    return [(each, -(-each.used_end() // fmt.ENTRY_BYTES)) for each in queues[: 4 * _QUEUES_MAX]]


def _boundary(view: StoreView, queues: list[tuple[ReadSegments, int]], target: int) -> int:
    """Return where the first known message at or behind `target` begins."""
    segment_bytes = view.reader.commitlog.segment_bytes
    end = (target // segment_bytes + 1) * segment_bytes
    found = [offset for queue, stop in queues for offset in _entries_from(queue, stop, target)]
    for offset in sorted(found)[:_TRIES_MAX]:
        if offset >= end:
            return end
        if view.reader.is_message(offset):
            return offset
    return _scan_to(view.reader, target, end)


def _entries_from(queue: ReadSegments, stop: int, target: int) -> Iterator[int]:
    """Yield the messages of the first entries at or behind `target`. O(log entries)."""
    start = queue.start // fmt.ENTRY_BYTES
    first = bisect_left(range(start, stop), target, key=lambda index: _offset(queue, index)) + start
    for index in range(first, min(first + _TRIES_MAX, stop)):
        offset = _offset(queue, index)
        if offset >= target:
            yield offset


def _offset(queue: ReadSegments, index: int) -> int:
    entries = read_entries(queue, index, 1)
    return int(entries["offset"][0]) if len(entries) else 0


def _scan_to(reader: StoreReader, target: int, end: int) -> int:
    """Return where the first message at or behind `target` begins, read from the segment's start.

    Or `end`, if there is none.
    """
    segment_bytes = reader.commitlog.segment_bytes
    offset = target - target % segment_bytes
    while 0 <= offset < target:
        scanned = reader.scan(offset, target, verify=False)
        for _ in scanned:
            pass
        offset = scanned.end
        if offset < target:
            offset = reader.next_message(offset, end)
    return end if offset < 0 else offset
