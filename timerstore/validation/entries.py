"""Queue entries, each beside its message; what of the commit log is lost, so that none is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.record import Flags, Words, read_only
from timerstore.tables.commitlog import in_topic
from timerstore.tables.records import find_queue, queue_stop
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.reading import audit as kernels
from timerstore.timelog.reading.pastdamage import Damage, LogRanges, fillers, read_past_damage
from timerstore.timelog.reading.reader import ReadSegments, StoreReader, read_entries
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.validation.facts import Findings

_LOG: Final = "commitlog"
_CHUNK_ENTRIES: Final = 65_536


class Lost(NamedTuple):
    """What is lost of one segment."""

    damaged: LogRanges
    covered: LogRanges


def _lost_of(view: StoreView, number: int) -> Lost:
    """Find what is lost of a segment; once for each view. O(segment)."""
    if (_LOG, number) in view.known:
        known: Lost = view.known[_LOG, number]
        return known
    log, found = view.reader.commitlog, Lost(LogRanges(), LogRanges())
    base = number * log.segment_bytes
    for item in read_past_damage(view.reader, base, min(base + log.segment_bytes, view.log_stop)):
        if isinstance(item, Damage):
            found.damaged.add(item.offset, item.resume)
            continue
        for row in fillers(view.reader, item):
            found.covered.add(int(row.offset), int(row.offset + row.size))
    view.known[_LOG, number] = found
    return found


def _lost_at(view: StoreView, offsets: Words) -> Iterator[Lost]:
    """Yield what is lost of the segments in which these offsets lie."""
    log = view.reader.commitlog
    for number in np.unique(offsets // log.segment_bytes).tolist():
        if number in log.numbers:
            yield _lost_of(view, number)


def is_damaged(view: StoreView, offsets: Words) -> Flags:
    """Tell which offsets lie in damage: bool[n]. O(segment), once for each that they lie in."""
    inside = np.zeros(len(offsets), np.bool_)
    for lost in _lost_at(view, offsets):
        inside |= lost.damaged.contains(offsets)
    return inside


def lost_entries(view: StoreView, entries: np.ndarray) -> Flags:
    """Tell which entries, of QUEUE_ENTRY, lead to damage, or stand for what was lost: bool[n].

    O(segment), once for each that they lead to.
    """
    offsets, sizes = entries["offset"].astype(np.int64), entries["size"]
    found = np.zeros(len(entries), np.bool_)
    for lost in _lost_at(view, offsets[sizes > 0]):
        fillers = [start for start, _ in lost.covered]
        found |= lost.damaged.contains(offsets)
        found |= (sizes == fmt.QUEUE_LOST_SIZE) & np.isin(offsets - 1, fillers)
    return found & (sizes > 0)


def last_filler(reader: StoreReader) -> int:
    """Return the offset of a store's last filler, −1 if it has none. O(1)."""
    last, salvaged = -1, text(fmt.SALVAGED_TOPIC)
    for (topic, _), queue in reader.queues.items():
        stop = -(-queue.used_end() // fmt.ENTRY_BYTES)
        if topic == salvaged and stop * fmt.ENTRY_BYTES > queue.start:
            last = max([last, *read_entries(queue, stop - 1, 1)["offset"].tolist()])
    return last


def lost_count(
    view: StoreView, queue: ReadSegments, start: int, stop: int, *, damaged: bool
) -> int:
    """Count a queue's entries in [start, stop) whose messages are lost. O(entries).

    `damaged`: the log is, so that any of them can lead to that.
    """
    count = 0
    for first in range(start, stop, _CHUNK_ENTRIES):
        entries = read_entries(queue, first, min(_CHUNK_ENTRIES, stop - first))
        count += int(
            lost_entries(view, entries[damaged | (entries["size"] == fmt.QUEUE_LOST_SIZE)]).sum()
        )
    return count


def look_at_entries(findings: Findings, name: str, start: int, stop: int) -> None:
    """Look at the entries with indexes in [start, stop) of a queue. O(entries)."""
    scope, view = findings.scope, findings.scope.view
    queue = view.reader.queues[find_queue(name)]
    for first in range(start, stop, _CHUNK_ENTRIES):
        entries, verdicts = _judge(view, name, first, min(stop, first + _CHUNK_ENTRIES))
        offsets, sizes = entries["offset"].astype(np.int64), entries["size"]
        wrong = (verdicts == kernels.ENTRY_WRONG) | (verdicts == kernels.ENTRY_NONE)
        places = np.arange(first, first + len(entries))
        # What a broker left out at the start of a file that was made ahead.
        wrong &= (places * fmt.ENTRY_BYTES % queue.segment_bytes > 0) | (places == 0) | (sizes > 1)
        wrong |= verdicts == kernels.ENTRY_BEHIND
        removed = verdicts == kernels.ENTRY_REMOVED
        wrong |= removed & (sizes <= 0)
        steps_back = (offsets[1:] <= offsets[:-1]) & (sizes[1:] != fmt.QUEUE_LOST_SIZE)
        wrong[1:] |= removed[1:] & removed[:-1] & steps_back
        # Gaps, and entries of removed messages, stand before all others.
        old = (verdicts == kernels.ENTRY_BLANK) | removed
        good = np.flatnonzero(verdicts == kernels.ENTRY_GOOD)
        if len(good):
            wrong[good[0] :] |= old[good[0] :]
        torn = np.zeros(len(entries), np.bool_)
        if wrong.any():
            ends = _ends(findings, name)
            # Behind the end there are zeros, and in a store that is open what was put since.
            unwritten = verdicts == kernels.ENTRY_NONE
            if view.cut.is_open:
                unwritten |= verdicts == kernels.ENTRY_BEHIND
            wrong &= ~unwritten | (places < ends.sound)
            wrong[wrong] &= ~lost_entries(view, entries[wrong])
            torn = scope.torn_in_log(offsets) | ((places >= ends.low) & (places < ends.high))
            torn &= places >= ends.flushed
        reason = "the entry does not point to a message of this queue and index"
        findings.judge("entry_message", wrong, name, places * fmt.ENTRY_BYTES, reason, torn)
        findings.tally.counts["entries"] += int((~old).sum())


class _Ends(NamedTuple):
    """Where a queue ends."""

    sound: int  # index behind the last entry that is sound
    flushed: int  # … of which the message was flushed
    low: int  # indexes of the messages that were not flushed
    high: int


def _ends(findings: Findings, name: str) -> _Ends:
    """Find where a queue ends; once for each view. O(entries behind that + log not flushed)."""
    view = findings.scope.view
    if name in view.known:
        known: _Ends = view.known[name]
        return known
    topic, queue_id = find_queue(name)
    first = view.reader.queues[topic, queue_id].start // fmt.ENTRY_BYTES
    sound, flushed, stop = first, first, queue_stop(view, topic, queue_id)
    while stop > first and (sound == first or (view.ours and flushed == first)):
        start = max(first, stop - _CHUNK_ENTRIES)
        entries, verdicts = _judge(view, name, start, stop)
        good = np.flatnonzero(verdicts == kernels.ENTRY_GOOD)
        before = good[entries["offset"][good] < view.durable]
        if len(good):
            sound = max(sound, start + int(good[-1]) + 1)
        if len(before):
            flushed = start + int(before[-1]) + 1
        stop = start
    low, high = 0, 0
    if findings.scope.is_unclean:  # a broker does not say what it flushed
        low, high = _unflushed(view, topic, queue_id) if view.ours else (0, 1 << 62)
    view.known[name] = _Ends(sound, flushed, low, high)
    return _Ends(sound, flushed, low, high)


def _unflushed(view: StoreView, topic: str, queue_id: int) -> tuple[int, int]:
    """Return the indexes of a queue's messages that were not flushed: the first, a stop."""
    log, indexes = view.reader.commitlog, list[int]()
    encoded = topic.encode("utf-8", "surrogateescape")
    for item in read_past_damage(view.reader, view.durable, view.log_stop):
        rows = item.framed if isinstance(item, Damage) else item
        mine = in_topic(log, rows, encoded) & (rows.queue_id == queue_id)
        indexes += rows.queue_index[mine].tolist()
    return min(indexes, default=0), max(indexes, default=-1) + 1


def _judge(view: StoreView, name: str, start: int, stop: int) -> tuple[fmt.Entries, Words]:
    """Return the entries with indexes in [start, stop), and a verdict on each."""
    topic, queue_id = find_queue(name)
    entries = read_entries(view.reader.queues[topic, queue_id], start, stop - start)
    log, verdicts = view.reader.commitlog, np.zeros(len(entries), np.int64)
    found, state = MessageParts(), np.zeros(2, np.int64)
    encoded = np.frombuffer(topic.encode("utf-8", "surrogateescape"), np.uint8)
    run = kernels.QueueRun(read_only(entries.view(np.uint8)), 0, start, encoded, queue_id)
    while True:
        done = kernels.judge_entries(
            log.table, run, log.start, view.log_stop, found, verdicts, state
        )
        if done == len(verdicts):
            return entries, verdicts
        number = int(state[1]) // log.segment_bytes
        if number in log.numbers:
            log.map(number)
        else:
            verdicts[done] = kernels.ENTRY_WRONG
            state[0] = done + 1


def is_level(delay_ms: Any) -> Any:
    """Tell whether a delay, or each of an array, can be that of a level: whole seconds.

    What the levels were when a message was put is written nowhere, and they may change.
    """
    return (delay_ms > 0) & (delay_ms % 1000 == 0)


def compare_entries(
    file: ReadSegments | None, rows: LoggedMessages
) -> tuple[fmt.Entries, Flags, Flags]:
    """Compare scanned messages of one queue with their entries.

    Return the entries, whether each is another message's, whether only its tags code is wrong.
    """
    indexes = rows.queue_index
    mine = np.zeros(len(rows), fmt.QUEUE_ENTRY)
    low, high = int(indexes.min()), int(indexes.max())
    if low >= 0 and high - low <= 2 * len(rows) + (1 << 20):  # else the indexes are damaged
        read = read_entries(file, low, high - low + 1)
        there = indexes - low < len(read)
        mine[there] = read[indexes[there] - low]
    wrong = (mine["offset"] != rows.offset) | (mine["size"] != rows.size)
    other_tags = ~wrong & (mine["tags_code"] != rows.tags_code)
    return mine, wrong, other_tags
