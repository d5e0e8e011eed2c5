"""What a salvage has covered: the entries that lead to it, the copies of it."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.timelog import scan
from timerstore.timelog.decode import decode_message, text
from timerstore.timelog.filler import LOST_SIZE, SALVAGED_TOPIC
from timerstore.timelog.format import ENTRY_BYTES, QUEUE_ENTRY
from timerstore.timelog.jit.record import Words
from timerstore.timelog.logranges import LogRanges
from timerstore.timelog.reader import ReadSegments, StoreReader
from timerstore.validation.findings import Flags

_CHUNK_ENTRIES: Final = 65_536


def lost_entries(reader: StoreReader, entries: np.ndarray) -> Flags:
    """Tell which entries, of QUEUE_ENTRY, stand for lost messages: bool[n]. O(n)."""
    lost = np.zeros(len(entries), np.bool_)
    fillers: dict[int, bool] = {}
    for i in np.flatnonzero(entries["size"] == LOST_SIZE).tolist():
        offset = int(entries["offset"][i]) - 1
        if offset not in fillers:
            fillers[offset] = _is_filler(reader, offset)
        lost[i] = fillers[offset]
    return lost


def _is_filler(reader: StoreReader, offset: int) -> bool:
    log = reader.commitlog
    if not log.start <= offset < log.files_end or offset // log.segment_bytes not in log.numbers:
        return False
    try:
        return decode_message(log.view(offset), offset).topic == text(SALVAGED_TOPIC)
    except CorruptStoreError:
        return False


def last_filler(reader: StoreReader) -> int:
    """Return the offset of a store's last filler, −1 where it has none. O(1)."""
    last, salvaged = -1, text(SALVAGED_TOPIC)
    for (topic, _), queue in reader.queues.items():
        stop = -(-queue.used_end() // ENTRY_BYTES)
        if topic == salvaged and stop * ENTRY_BYTES > queue.start:
            entry = queue.read((stop - 1) * ENTRY_BYTES, ENTRY_BYTES)
            last = max(last, int(np.frombuffer(entry, QUEUE_ENTRY)["offset"][0]))
    return last


def in_fillers(reader: StoreReader, offsets: Words) -> Flags:
    """Tell which offsets a salvage has covered: bool[n]. O(segment) for each that they lie in."""
    inside, log = np.zeros(len(offsets), np.bool_), reader.commitlog
    if last_filler(reader) < 0:
        return inside
    for base in np.unique(offsets // log.segment_bytes * log.segment_bytes).tolist():
        fillers = LogRanges()
        for rows in reader.scan(base, base + log.segment_bytes):
            for row in rows[rows[:, scan.ROW_TOPIC_BYTES] == len(SALVAGED_TOPIC)].tolist():
                if log.read(row[scan.ROW_TOPIC], row[scan.ROW_TOPIC_BYTES]) == SALVAGED_TOPIC:
                    fillers.add(row[scan.ROW_OFFSET], row[scan.ROW_OFFSET] + row[scan.ROW_SIZE])
        inside |= fillers.contains(offsets)
    return inside


def lost_count(reader: StoreReader, queue: ReadSegments, start: int, stop: int) -> int:
    """Count a queue's entries in [start, stop) that stand for lost messages. O(entries)."""
    count = 0
    for first in range(start, stop, _CHUNK_ENTRIES):
        bytes_count = min(_CHUNK_ENTRIES, stop - first) * ENTRY_BYTES
        data = queue.read(first * ENTRY_BYTES, bytes_count)
        entries = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], QUEUE_ENTRY)
        count += int(lost_entries(reader, entries).sum())
    return count
