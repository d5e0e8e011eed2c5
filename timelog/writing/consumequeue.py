"""Consume queues: 20-byte entries of each topic's queue, pointing into the commit log.

The appender writes them through a `QueueTable`; here are the files behind its rows, and reading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    StoreFullError,
)
from timerstore.jit.guards import RLock
from timerstore.jit.intrinsics import bytes_are, get_u8, load_acquire
from timerstore.jit.kernel import inlined, kernel_ahead, kernel_later
from timerstore.jit.mapping import lend, publish_at
from timerstore.jit.record import Bytes, ReadBytes, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.memory import MapShare
from timerstore.timelog.files.names import is_topic, number_of
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.reading.scan import QueueNames
from timerstore.timelog.writing.append import (
    NAME_STRIDE,
    QUEUE_COUNT_MAX,
    QueueTable,
    new_queue_table,
)

TIMER_ROW = 0
Flags = np.ndarray[Any, np.dtype[np.bool_]]


def is_gap(indexes: Words, steps: Words, segment_entries: int) -> Flags:
    """Tell before which indexes a broker has left out the first entry of a segment.

    It takes the first entry of a queue's last file for one, though the file was only made ahead.
    `steps`: from the index before to each.
    """
    found: Flags = (steps == 2) & ((indexes - 1) % segment_entries == 0)
    return found


@inlined
def _bucket(buf: Bytes, at: int, count: int, queue_id: int) -> int:
    code = queue_id
    for i in range(count):
        code = (code * 31 + get_u8(buf, at + i)) & 0xFFFFFFFF
    return code & (2 * QUEUE_COUNT_MAX - 1)


@inlined
def find_row(queues: QueueTable, buf: Bytes, at: int, count: int, queue_id: int) -> int:
    """Return the row of a topic's queue, or −1. O(1) expected."""
    bucket = _bucket(buf, at, count, queue_id)
    while True:
        row = queues.lookup[bucket]
        if row < 0:
            return -1
        if queues.name_bytes[row] == count and queues.queue_id[row] == queue_id:
            if bytes_are(buf, at, queues.name, row * NAME_STRIDE, count):
                return row
        bucket = (bucket + 1) & (2 * QUEUE_COUNT_MAX - 1)


@kernel_later
def find_rows(queues: QueueTable, commitlog: SegmentTable, names: QueueNames, result: Words) -> int:
    """Fill `result`, int64[n], with queue rows; return the first message without one, or −1.

    So it does if a message's segment is not mapped: a reader of its topic maps it.
    """
    for i in range(len(result)):
        offset = names.topic_at[i]
        buf = segment_at(commitlog, offset)
        if len(buf) == 0:
            return i
        at = offset % commitlog.segment_bytes
        row = find_row(queues, buf, at, names.topic_bytes[i], names.queue_id[i])
        if row < 0:
            return i
        result[i] = row
    return -1


@kernel_ahead
def _free_bucket(queues: QueueTable, buf: ReadBytes, count: int, queue_id: int) -> int:
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
    table.count = row + 1


class ConsumeQueues:
    """All consume queues of a store. A row, once given, stays."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        segment_bytes: int,
        maps: MapShare | None = None,
        *,
        is_gone: bool = False,
    ) -> None:
        """Find the queues that exist on disk; row 0 is always the timer topic's queue 0.

        With `is_gone` there are none, even if files are there.
        """
        if segment_bytes % fmt.ENTRY_BYTES:
            raise InvalidArgumentError(
                f"consumequeue_segment_bytes is {segment_bytes}. "
                f"Use a multiple of {fmt.ENTRY_BYTES}."
            )
        self.disk, self.folder, self.segment_bytes = disk, folder, segment_bytes
        self.maps, self.is_gone = maps or MapShare(), is_gone
        self.segment_entries = segment_bytes // fmt.ENTRY_BYTES
        self.table: QueueTable = new_queue_table(self.segment_entries)
        self.lock = RLock()
        self.files: list[SegmentedFile] = []
        self.topics: list[bytes] = []
        self.known_count = 0
        """How many rows `rows` knows, so that who asked it can tell whether to ask again."""
        self._seen = self.table.next_index.data  # Python reads it faster
        self._topic_rows: dict[bytes, list[int]] = {}
        self._rows: dict[tuple[bytes, int], int] = {}
        self._prepared = np.zeros(QUEUE_COUNT_MAX, np.int64)  # its end when it was prepared last
        self._unfinished: tuple[int, bytes, int, SegmentedFile] | None = None
        self.row(fmt.TIMER_TOPIC, 0)
        if folder.is_dir() and not is_gone:
            for topic in sorted(folder.iterdir()):
                for queue in sorted(topic.iterdir()):
                    queue_id = number_of(queue.name)
                    if queue_id is None:
                        raise NotAStoreError(
                            f"{queue} is no folder of a queue. Move it out of the store."
                        )
                    self.row(topic.name.encode("utf-8", "surrogateescape"), queue_id)

    def row(self, topic: bytes, queue_id: int = 0) -> int:
        """Return the row of a queue, making one if needed. Files are made with the first entry."""
        row = self._rows.get((topic, queue_id))
        if row is not None:
            return row
        with self.lock.guard():
            self._finish()
            row = len(self.files)
            if (topic, queue_id) in self._rows:
                return self._rows[topic, queue_id]
            if row == QUEUE_COUNT_MAX:
                raise StoreFullError(
                    f"The store has {row} queues already. Use fewer topics, or a second store."
                )
            if not is_topic(topic) or number_of(str(queue_id)) is None:
                raise NotAStoreError(
                    f"{topic!r} cannot be the name of a topic, or {queue_id} cannot be one of "
                    "its queues. Check where these values come from."
                )
            name = topic.decode("utf-8", "surrogateescape")
            path = self.folder / name / str(queue_id)
            file = SegmentedFile(
                self.disk,
                path,
                self.segment_bytes,
                self.maps,
                for_kernels=row == TIMER_ROW,
                is_gone=self.is_gone,
                name=f"consumequeue/{name}/{queue_id}",
            )
            self._unfinished = row, topic, queue_id, file
            self._finish()
        return row

    def _finish(self) -> None:
        """Make a row known; each step once, also if a signal ended the call that began it."""
        if self._unfinished is None:
            return
        row, topic, queue_id, file = self._unfinished
        # Python already has what a kernel finds in the table; code that counts the files finds the
        # rest of them.
        self.table.queue_id[row] = queue_id
        if len(self.topics) == row:
            self.topics.append(topic)
        if len(self.files) == row:
            self.files.append(file)
        if row not in self._topic_rows.setdefault(topic, []):
            self._topic_rows[topic].append(row)
        if self.table.count == row:  # from here on kernels may use it
            enter_queue(self.table, row, topic, queue_id)
        self._rows[topic, queue_id] = row
        self.known_count = row + 1
        self._unfinished = None

    def rows(self, topic: bytes) -> list[int]:
        """Return the rows of all queues of a topic."""
        return self._topic_rows.get(topic, [])

    def name(self, row: int) -> str:
        """Return a queue's folder, inside the store's, as an error names it."""
        return f"consumequeue/{text(self.topics[row])}/{self.table.queue_id[row]}"

    def next_index(self, row: int) -> int:
        """Return the index that the next entry of a queue will have."""
        return int(load_acquire_word(self.table.next_index, row))

    def seen_index(self, row: int) -> int:
        """Return the same, for a caller that looks at those entries only in a later kernel.

        A call of a kernel for one load lets the GIL go; this keeps it. Calling the next one is what
        keeps loads in their order.
        """
        return self._seen[row]

    def first_index(self, row: int) -> int:
        """Return the smallest index that is kept."""
        return self.files[row].start // fmt.ENTRY_BYTES

    def first_kept(self, row: int, commitlog_start: int) -> int:
        """Return the smallest index whose message is kept, or the queue's end. O(log entries).

        A queue's first segment may begin with entries of removed messages, or with blanks.
        """
        while True:
            first = self.first_index(row)
            try:
                return self._first_kept(row, first, commitlog_start)
            except CorruptStoreError:
                if self.first_index(row) == first:  # else retention removed what was looked at
                    raise

    def _first_kept(self, row: int, first: int, commitlog_start: int) -> int:
        low, high = first, self.next_index(row)
        while low < high:
            middle = at = (low + high) // 2
            while at < high and self.read(row, at, 1)["size"][0] == 0:
                at += 1  # zeros do not say whether their messages were removed
            if at < high and self._is_removed(row, at, commitlog_start):
                low = at + 1
            else:  # also what is damaged: its reader sees that
                high = middle
        step = 1  # a damaged entry that says "removed" leads the search past what is kept
        while low - step >= first:
            if not self._is_removed(row, low - step, commitlog_start):
                return self._search(row, first, low, commitlog_start)
            step *= 2
        return low

    def _is_removed(self, row: int, index: int, commitlog_start: int) -> bool:
        return bool(_removed(self.read(row, index, 1), commitlog_start)[0])

    def _search(self, row: int, first: int, stop: int, commitlog_start: int) -> int:
        """Return the first index in [first, stop) whose message is kept, or `stop`. O(entries)."""
        entries = self.read(row, first, stop - first)
        kept = np.flatnonzero(~_removed(entries, commitlog_start) & (entries["size"] != 0))
        return first + int(kept[0]) if len(kept) else stop

    def fill_blanks(self, row: int, index: int) -> None:
        """Fill a new queue's first segment with blanks up to its first entry."""
        number, position = divmod(index, self.segment_entries)
        blanks = np.zeros(position, fmt.QUEUE_ENTRY)
        blanks["size"] = fmt.QUEUE_BLANK_SIZE
        data = np.frombuffer(blanks.tobytes(), np.uint8)
        file, start = self.files[row], number * self.segment_bytes
        file.ensure(number)
        file.reserve(start, start + len(data))
        file.existing(number).view[: len(data)] = data

    def prepare(self, row: int, *, ahead: bool = False, index: int = -1) -> None:
        """Map the segment that the next entry goes to; with `ahead` the one behind it as well.

        With `index` there is room up to that entry, and all segments up to it are mapped: messages
        that go together may need several. With `ahead` there is room further ahead.
        """
        file, table = self.files[row], self.table
        with file.lock.guard():
            next_index = int(table.next_index[row])
            number, position = divmod(next_index, self.segment_entries)
            late = ahead and 2 * position >= self.segment_entries
            last = max(number + late, index // self.segment_entries)
            file.end = next_index * fmt.ENTRY_BYTES
            file.ensure(number)
            if ahead:
                file.prepare_next()
            if index >= next_index:
                file.make_room((index + 1) * fmt.ENTRY_BYTES)
            # No append writes any more to what lies before the next entry's segment.
            places = self._places(row)
            table.allocated[places][table.number[places] < number] = 0
            for each in range(number, last + 1):
                place, mapped = self._place(row, each), file.ensure(each)
                lend(table.lent, place, mapped.view)
                table.number[place] = each
                entries = each * self.segment_entries + mapped.allocated_bytes // fmt.ENTRY_BYTES
                publish_at(table.allocated, place, entries)  # last: now kernels may use it

    def _place(self, row: int, number: int) -> int:
        """Return the place of a row's segment in the table, as `queue_place` does for kernels."""
        count = self.table.places
        return row * count + number % count

    def _places(self, row: int) -> slice:
        """Return where a row's places are in the table."""
        count = self.table.places
        return slice(row * count, (row + 1) * count)

    def prepare_ahead(self) -> None:
        """Prepare what is ahead of each queue that was written to since the last call."""
        count = len(self.files)
        self.table.opened[: self._places(count).start] = 0  # they may be written back by now
        ends = self.table.next_index[:count].copy()
        for row in np.flatnonzero(ends != self._prepared[:count]).tolist():
            self.prepare(row, ahead=True)
            self._prepared[row] = ends[row]

    def read(self, row: int, index: int, count: int) -> fmt.Entries:
        """Return a copy of entries [index, index + count), which must exist: QUEUE_ENTRY[count]."""
        data = self.files[row].read(index * fmt.ENTRY_BYTES, count * fmt.ENTRY_BYTES)
        return np.frombuffer(data, fmt.QUEUE_ENTRY)

    def run(self, row: int, index: int, count: int) -> tuple[Bytes, int, object]:
        """Return bytes that hold entries [index, index + count), which must exist, and where.

        They are those of the file itself if one segment holds all of them, and only to be read.
        Keep the third as long as the bytes are used.
        """
        number, position = divmod(index, self.segment_entries)
        if position + count > self.segment_entries:
            entries = self.read(row, index, count)
            return entries.view(np.uint8), 0, None
        file = self.existing(row, number)
        return file.view, position * fmt.ENTRY_BYTES, file

    def set_end(self, row: int, index: int) -> None:
        """Say that the next entry of a queue is `index`; any before it may have a key."""
        self.table.next_index[row] = self.table.planned[row] = self.table.keyless_from[row] = index
        self.table.allocated[self._places(row)] = 0
        self.table.opened[self._places(row)] = 0
        self.files[row].end = index * fmt.ENTRY_BYTES

    def existing(self, row: int, number: int) -> MappedFile:
        """Map a segment that must exist; it can be read as long as the result is kept."""
        return self.files[row].existing(number)

    def drop_behind(self) -> None:
        """Remove what was made ahead of each queue's end; while nobody appends or reads.

        A broker takes the first entry of a queue's last file for one, unread. The first file of a
        queue without entries stays: it says that there never was one.
        """
        for row, file in enumerate(self.files):
            if end := self.next_index(row):
                file.drop_from(end * fmt.ENTRY_BYTES)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(file.disk_bytes for file in self.files)

    def close(self) -> None:
        """Drop all maps without flushing."""
        self.table.allocated[: self._places(len(self.files)).start] = 0
        for file in self.files:
            file.close()


def _removed(entries: fmt.Entries, commitlog_start: int) -> Flags:
    """Tell of which entries the messages were removed; blanks have none."""
    offset, size = entries["offset"], entries["size"]
    blank = (offset == 0) & (size == fmt.QUEUE_BLANK_SIZE)
    removed: Flags = blank | ((size != 0) & (offset >= 0) & (offset < commitlog_start))
    return removed


@kernel_ahead
def load_acquire_word(words: Words, index: int) -> int:
    """Load one word that another thread stores with release order."""
    return load_acquire(words, index)
