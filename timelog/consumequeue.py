"""Consume queues: 20-byte entries of each topic's queue, pointing into the commit log.

The appender writes them through a `QueueTable`; here are the files behind its rows, and reading.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from timerstore.errors import InvalidArgumentError, NotAStoreError, StoreFullError
from timerstore.timelog.append import (
    NAME_STRIDE,
    QUEUE_COUNT,
    QUEUE_COUNT_MAX,
    QueueTable,
    new_queue_table,
)
from timerstore.timelog.disk import Disk
from timerstore.timelog.format import (
    ENTRY_BYTES,
    QUEUE_BLANK_SIZE,
    QUEUE_ENTRY,
    TIMER_TOPIC,
    TOPIC_BYTES_READ_MAX,
)
from timerstore.timelog.intrinsics import get_u8, load_acquire
from timerstore.timelog.kernel import inlined, kernel
from timerstore.timelog.segments import TABLE_LENGTH, SegmentedFile

TIMER_ROW = 0
Entries = np.ndarray[Any, Any]


@inlined
def _bucket(buf: Any, at: int, count: int, queue_id: int) -> int:
    code = queue_id
    for i in range(count):
        code = (code * 31 + get_u8(buf, at + i)) & 0xFFFFFFFF
    return code & (2 * QUEUE_COUNT_MAX - 1)


@inlined
def find_row(queues: Any, buf: Any, at: int, count: int, queue_id: int) -> int:
    """Return the row of a topic's queue, or −1. O(1) expected."""
    bucket = _bucket(buf, at, count, queue_id)
    while True:
        row = queues.lookup[bucket]
        if row < 0:
            return -1
        if queues.name_bytes[row] == count and queues.queue_id[row] == queue_id:
            same = True
            for i in range(count):
                if queues.name[row * NAME_STRIDE + i] != get_u8(buf, at + i):
                    same = False
                    break
            if same:
                return row
        bucket = (bucket + 1) & (2 * QUEUE_COUNT_MAX - 1)


@kernel
def _free_bucket(queues: Any, buf: Any, count: int, queue_id: int) -> int:
    bucket = _bucket(buf, 0, count, queue_id)
    while queues.lookup[bucket] >= 0:
        bucket = (bucket + 1) & (2 * QUEUE_COUNT_MAX - 1)
    return bucket


def enter_queue(table: QueueTable, row: int, topic: bytes, queue_id: int) -> None:
    """Give a queue its row, so that `find_row` finds it."""
    name = np.frombuffer(topic, np.uint8)
    table.name[row * NAME_STRIDE : row * NAME_STRIDE + len(name)] = name
    table.name_bytes[row] = len(name)
    table.queue_id[row] = queue_id
    table.lookup[_free_bucket(table, name, len(name), queue_id)] = row
    table.words[QUEUE_COUNT] = row + 1


class ConsumeQueues:
    """All consume queues of a store. A row, once given, stays."""

    def __init__(
        self, disk: Disk, folder: Path, segment_bytes: int, *, open_count_max: int
    ) -> None:
        """Find the queues that exist on disk; row 0 is always the timer topic's queue 0."""
        if segment_bytes % ENTRY_BYTES:
            raise InvalidArgumentError(
                f"consumequeue_segment_bytes is {segment_bytes}. Use a multiple of {ENTRY_BYTES}."
            )
        self.disk, self.folder, self.segment_bytes = disk, folder, segment_bytes
        self.open_count_max = open_count_max
        self.segment_entries = segment_bytes // ENTRY_BYTES
        self.table: QueueTable = new_queue_table(self.segment_entries)
        self.lock = threading.RLock()
        self.files: list[SegmentedFile] = []
        self.topics: list[bytes] = []
        self._topic_rows: dict[bytes, list[int]] = {}
        self._rows: dict[tuple[bytes, int], int] = {}
        self.row(TIMER_TOPIC, 0)
        if folder.is_dir():
            for topic in sorted(folder.iterdir()):
                for queue in sorted(topic.iterdir()):
                    if not queue.name.isdigit():
                        raise NotAStoreError(f"{queue} is no queue. Move it out of the store.")
                    self.row(topic.name.encode("utf-8", "surrogateescape"), int(queue.name))

    def row(self, topic: bytes, queue_id: int = 0) -> int:
        """Return the row of a queue, making one if needed. Files are made with the first entry."""
        row = self._rows.get((topic, queue_id))
        if row is not None:
            return row
        with self.lock:
            row = len(self.files)
            if (topic, queue_id) in self._rows:
                return self._rows[topic, queue_id]
            if row == QUEUE_COUNT_MAX:
                raise StoreFullError(
                    f"The store has {row} queues already. Use fewer topics, or a second store."
                )
            bad = not topic or topic in (b".", b"..") or b"/" in topic or b"\0" in topic
            if bad or len(topic) > TOPIC_BYTES_READ_MAX:
                raise NotAStoreError(f"{topic!r} cannot be a topic. Look where it was read.")
            path = self.folder / topic.decode("utf-8", "surrogateescape") / str(queue_id)
            file = SegmentedFile(
                self.disk,
                path,
                self.segment_bytes,
                open_count_max=self.open_count_max,
                table_length=TABLE_LENGTH if row == TIMER_ROW else 1,
            )
            enter_queue(self.table, row, topic, queue_id)
            self.files.append(file)
            self.topics.append(topic)
            self._topic_rows.setdefault(topic, []).append(row)
            self._rows[topic, queue_id] = row
        return row

    def rows(self, topic: bytes) -> list[int]:
        """Return the rows of all queues of a topic."""
        return self._topic_rows.get(topic, [])

    def next_index(self, row: int) -> int:
        """Return the index that the next entry of a queue will have."""
        return int(load_acquire_word(self.table.next_index, row))

    def first_index(self, row: int) -> int:
        """Return the smallest index that is kept."""
        return self.files[row].start // ENTRY_BYTES

    def first_kept(self, row: int, commitlog_start: int) -> int:
        """Return the smallest index whose message is kept, or the queue's end. O(log entries).

        A queue's first segment may begin with entries of removed messages, or with blanks.
        """
        low, high = self.first_index(row), self.next_index(row)
        while low < high:
            middle = (low + high) // 2
            entry = self.read(row, middle, 1)[0]
            if entry["offset"] >= commitlog_start and entry["size"] != QUEUE_BLANK_SIZE:
                high = middle
            else:
                low = middle + 1
        return low

    def fill_blanks(self, row: int, index: int) -> None:
        """Fill a new queue's first segment with blanks up to its first entry."""
        number, position = divmod(index, self.segment_entries)
        blanks = np.zeros(position, QUEUE_ENTRY)
        blanks["size"] = QUEUE_BLANK_SIZE
        data = np.frombuffer(blanks.tobytes(), np.uint8)
        self.files[row].ensure(number).view[: len(data)] = data

    def prepare(self, row: int, *, ahead: bool = False, index: int = 0) -> None:
        """Map the segment that the next entry goes to; with `ahead` the one behind it as well.

        That one is also mapped if it holds `index`: messages that go together may need both.
        """
        file = self.files[row]
        with file.lock:
            number, position = divmod(int(self.table.next_index[row]), self.segment_entries)
            wanted = [number]
            late = ahead and 2 * position >= self.segment_entries
            if late or index // self.segment_entries == number + 1:
                wanted.append(number + 1)
            for each in wanted:
                slot = 2 * row + (each & 1)
                if self.table.number[slot] != each:
                    mapped = file.ensure(each)
                    self.table.address[slot] = mapped.address
                    self.table.number[slot] = each

    def read(self, row: int, index: int, count: int) -> Entries:
        """Return a copy of entries [index, index + count), which must exist: QUEUE_ENTRY[count]."""
        data = self.files[row].read(index * ENTRY_BYTES, count * ENTRY_BYTES)
        return np.frombuffer(data, QUEUE_ENTRY)

    def set_end(self, row: int, index: int) -> None:
        """Say that the next entry of a queue is `index`."""
        self.table.next_index[row] = self.table.planned[row] = index
        self.table.number[2 * row : 2 * row + 2] = -1
        self.files[row].end = index * ENTRY_BYTES

    def trim(self) -> None:
        """Drop maps over the limit; only while no kernel runs that did not pin them."""
        for row, file in enumerate(self.files):
            file.end = int(self.table.next_index[row]) * ENTRY_BYTES
            file.trim()

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(file.disk_bytes for file in self.files)

    def close(self) -> None:
        """Drop all maps without flushing."""
        self.table.number[:] = -1
        for file in self.files:
            file.close()


@kernel
def load_acquire_word(words: Any, index: int) -> int:
    """Load one word that another thread stores with release order."""
    return load_acquire(words, index)
