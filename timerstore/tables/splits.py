"""A table cut into splits, which any process that sees the store's files can read.

One split for each segment, several for a large one, one for many small ones. The rows are the same
wherever the table is cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from timerstore.errors import CorruptStoreError
from timerstore.tables import timers as timers
from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds
from timerstore.tables.records import queue_name, queue_stop
from timerstore.tables.schema import CLOCK_SLACK_MS, SPLIT_BYTES, find_table
from timerstore.tables.view import Cut, StoreView, cut_store, level_offsets
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.oserrors import telling
from timerstore.timelog.reading.reader import Fault, ReadSegments, StoreReader, read_entries
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_int

# --- where records begin
#
# The entries of the consume queues point at messages; if they are missing, a scan from the
# segment's start finds one.


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


# --- a table cut into splits, at exact record boundaries


SPLITS_MAX: Final = 100_000
_TIMER_BYTES: Final = 256

LOG: Final = "commitlog"
UNITS: Final = "timerlog"
WHEEL: Final = "timerwheel"
FILES: Final = "files"
_STORED: Final = {"messages": "stored_ms", "fired": "fired_ms"}


class Range(NamedTuple):
    """What is read of one part of a store: offsets, indexes, or places in a list."""

    part: str
    start: int
    stop: int


class Split(NamedTuple):
    """Ranges of one store's table that are read together."""

    cut: Cut
    table: str
    ranges: tuple[Range, ...]


class _Extent(NamedTuple):
    """A part of a store before it is cut; `weight`: bytes that one step of its range takes."""

    view: StoreView
    part: str
    start: int
    stop: int
    weight: int = 1

    @property
    def bytes_count(self) -> int:
        return (self.stop - self.start) * self.weight


@telling
def plan(
    paths: Sequence[str],
    table: str,
    bounds: Bounds | None = None,
    *,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    partitions: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    clock_slack_ms: int = CLOCK_SLACK_MS,
    failfast: bool = False,
) -> list[Split]:
    """Cut a table of some stores into splits.

    `partitions`: about so many of them, else one for each `split_bytes` of a store. `upto`: see
    `cut_store`. `bounds`: leaves out what certainly has no row within them; times of messages are
    taken to grow, except for steps back of the clock up to `clock_slack_ms`. `failfast`: files that
    are not as they must be are an error.
    """
    find_table(table)
    bounds = Bounds() if bounds is None else bounds
    stores = [path for path in paths if bounds.may_be("store", path)]
    views = [cut_store(path, upto=upto, delay_levels=delay_levels) for path in stores]
    return plan_views(
        views,
        table,
        bounds,
        partitions=partitions,
        split_bytes=split_bytes,
        clock_slack_ms=clock_slack_ms,
        failfast=failfast,
    )


def plan_views(
    views: Sequence[StoreView],
    table: str,
    bounds: Bounds,
    *,
    partitions: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    clock_slack_ms: int = CLOCK_SLACK_MS,
    failfast: bool = False,
) -> list[Split]:
    """Cut a table of some stores that were looked at into splits; see `plan`."""
    if partitions is not None:
        partitions = check_int(partitions, "partitions", 1, SPLITS_MAX)
    split_bytes = check_int(split_bytes, "split_bytes", 1, 1 << 62)
    if failfast:
        for view in views:
            for fault in file_faults(view):
                raise CorruptStoreError(*fault)
    extents = [[*_extents(view, table, bounds)] for view in views]
    total = sum(extent.bytes_count for each in extents for extent in each)
    if partitions is not None:
        split_bytes = max(1, -(-total // partitions))
    split_bytes = max(split_bytes, total // SPLITS_MAX)
    splits: list[Split] = []
    for view, each in zip(views, extents, strict=True):
        pieces = [
            (piece, (piece.stop - piece.start) * extent.weight)
            for extent in each
            for piece in _within(view, table, bounds, _cut(extent, split_bytes), clock_slack_ms)
        ]
        splits += [Split(view.cut, table, ranges) for ranges in _grouped(pieces, split_bytes)]
    return splits


def plan_log(view: StoreView, table: str, start: int, stop: int, split_bytes: int) -> list[Split]:
    """Cut the range [start, stop) of a commit log into splits; messages begin at both ends."""
    start = max(start, view.reader.commitlog.start)
    view = StoreView(view.cut._replace(log_stop=stop), view.reader)
    pieces = _cut(_Extent(view, LOG, start, stop), split_bytes)
    return [Split(view.cut, table, (piece,)) for piece in pieces]


def log_faults(view: StoreView) -> list[Fault]:
    """Return what is wrong with the files that say what a store is, and of its commit log."""
    return [*view.reader.faults, *view.reader.commitlog.faults]


def file_faults(view: StoreView) -> list[Fault]:
    """Return what is wrong with the files of a store themselves."""
    reader = view.reader
    faults = [*log_faults(view), *reader.timerlog.faults]
    for queue in reader.queues.values():
        faults += queue.faults
    if reader.checkpoint_data and view.checkpoint is None:
        faults.append(Fault("config/timercheck", 0, "it holds no cursors that can be read"))
    try:
        level_offsets(reader)
    except CorruptStoreError as e:
        faults.append(Fault("config/delayOffset.json", e.offset, e.reason))
    return faults + _missing_files(view)


def _missing_files(view: StoreView) -> list[Fault]:
    """Return what a closed store of ours must have at the ends of its logs, and has not.

    Of one in use retention may have removed more than the checkpoint says that was read.
    """
    checkpoint, reader, found = view.checkpoint, view.reader, list[Fault]()
    if checkpoint is None or not view.ours or view.cut.is_open:
        return found
    log, units = reader.commitlog, reader.timerlog
    queue = reader.queues.get((fmt.TIMER_TOPIC.decode(), 0))
    queue_bytes = checkpoint.queue_index * fmt.ENTRY_BYTES
    for name, end, flushed in (
        (LOG, log.files_end, checkpoint.commitlog_flushed),
        (UNITS, units.files_end, checkpoint.timerlog_flushed),
        (queue_name(fmt.TIMER_TOPIC.decode(), 0), queue.files_end if queue else 0, queue_bytes),
    ):
        if end < flushed:
            found.append(
                Fault(name, end, (f"it ends at this offset, and was flushed up to {flushed}"))
            )
    first = checkpoint.lost_from(log.start)
    if first is not None:
        reason = f"it begins at {log.start}, and bytes before that are needed"
        found.append(Fault(LOG, first, reason))
    if not len(reader.slots):
        found.append(Fault(WHEEL, 0, "there is no wheel"))
    if units.start > checkpoint.timerlog_from and not checkpoint.by_broker:
        reason = f"it begins at {units.start}, and units before that are needed"
        found.append(Fault(UNITS, checkpoint.timerlog_from, reason))
    return found


def _extents(view: StoreView, table: str, bounds: Bounds) -> Iterator[_Extent]:
    log, units = view.reader.commitlog, view.reader.timerlog
    if table in ("messages", "fired", "problems"):
        yield _Extent(view, LOG, log.start, view.log_stop)
    if table in ("units", "problems"):
        yield _Extent(view, UNITS, units.start, view.units_stop)
    if table in ("slots", "problems"):
        yield _Extent(view, WHEEL, 0, 2 * view.reader.sizes.wheel_slot_count, fmt.SLOT_BYTES)
    if table in ("queues", "problems"):
        for topic, queue_id in sorted(view.reader.queues):
            low, high = bounds.of("queue_id")
            if table == "problems" or (bounds.may_be("topic", topic) and low <= queue_id <= high):
                first = view.reader.queues[topic, queue_id].start // fmt.ENTRY_BYTES
                stop = queue_stop(view, topic, queue_id)
                yield _Extent(view, queue_name(topic, queue_id), first, stop, fmt.ENTRY_BYTES)
    if table == "timers":
        for part, start, stop in timers.ranges(view):
            yield _Extent(view, part, start, stop, 1 if part == timers.UNITS else _TIMER_BYTES)
    if table in ("checkpoint", "problems"):
        yield _Extent(view, FILES, 0, 1)


def _cut(extent: _Extent, piece_bytes: int) -> list[Range]:
    part, start, stop = extent.part, extent.start, extent.stop
    if stop <= start:
        return []
    if part == LOG:
        cuts = cut_log(extent.view, start, stop, piece_bytes)
    elif part in (UNITS, timers.UNITS):
        segment_bytes = extent.view.reader.timerlog.segment_bytes
        wanted = range(start + piece_bytes, stop, piece_bytes)
        cuts = [start, *(_unit_at(each, segment_bytes) for each in wanted), stop]
    else:
        cuts = [start, *range(start, stop, max(1, piece_bytes // extent.weight))[1:], stop]
    cuts = sorted({min(max(each, start), stop) for each in cuts})
    return [Range(part, a, b) for a, b in pairwise(cuts)]


def _unit_at(offset: int, segment_bytes: int) -> int:
    """Return where the unit begins that `offset` lies in, or the next segment behind a blank."""
    at = offset % segment_bytes // fmt.UNIT_BYTES * fmt.UNIT_BYTES
    if fmt.UNIT_BYTES + fmt.TIMERLOG_BLANK_BYTES > segment_bytes - at:
        return (offset // segment_bytes + 1) * segment_bytes
    return offset - offset % segment_bytes + at


def _within(
    view: StoreView, table: str, bounds: Bounds, pieces: list[Range], clock_slack_ms: int
) -> list[Range]:
    """Leave out the pieces that certainly hold no row within the bounds."""
    name = {"queues": "index", "slots": "index"}.get(table, "offset")
    if table not in ("problems", "checkpoint", "timers"):
        low, high = bounds.of(name)
        pieces = [piece for piece in pieces if piece.start <= high and piece.stop > low]
    if table not in _STORED or not pieces:
        return pieces
    low, high = bounds.of(_STORED[table])
    if table == "fired":
        low = max(low, bounds.of("due_ms")[0])  # nothing fires early
    if (low, high) == (LOWEST, HIGHEST):
        return pieces
    begins = [stored_ms(view, piece.start) for piece in pieces]
    ends = [*begins[1:], None]
    return [
        piece
        for piece, begin, end in zip(pieces, begins, ends, strict=True)
        if (begin is None or begin - clock_slack_ms <= high)
        and (end is None or end + clock_slack_ms >= low)
    ]


def stored_ms(view: StoreView, offset: int) -> int | None:
    """Return when the message at `offset` was stored; None if it cannot be read."""
    for rows in view.reader.scan(offset, offset + 1):
        return int(rows.stored_ms[0])
    return None


def _grouped(pieces: list[tuple[Range, int]], split_bytes: int) -> Iterator[tuple[Range, ...]]:
    """Put small pieces together, in their order; join those that touch."""
    group: list[Range] = []
    size = 0
    for piece, piece_bytes in pieces:
        if group and size + piece_bytes > split_bytes:
            yield tuple(group)
            group, size = [], 0
        if group and (group[-1].part, group[-1].stop) == (piece.part, piece.start):
            group[-1] = group[-1]._replace(stop=piece.stop)
        else:
            group.append(piece)
        size += piece_bytes
    if group:
        yield tuple(group)
