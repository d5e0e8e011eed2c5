"""What of the commit log is lost: damaged, or covered by a salvage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.reading.pastdamage import Damage, LogRanges, fillers, read_past_damage
from timerstore.timelog.reading.reader import ReadSegments, StoreReader, read_entries
from timerstore.validation.findings import Flags

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
