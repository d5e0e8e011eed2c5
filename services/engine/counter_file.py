"""`config/topiccounts`: the counters of each topic, which go on after a restart.

A place of 2,048 bytes for each queue, written if its counters or its end have changed, with the
log's end up to which they count and a CRC. It says too where the queue ended at a checkpoint, and
where the commit log did: zeros at the end of a queue's file look like its end. The first place says
up to which offset of the log all of them count.
It is written before each checkpoint, and made durable only at a clean close. After
a crash recovery counts on from there (`recover_pending.py`). A place that a power cut tore begins
anew.
"""

from __future__ import annotations

import logging
import os
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.errors import TimerStoreError
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Rows, Words
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.writing.append import NAME_STRIDE, QUEUE_COUNT_MAX, QueueTable
from timerstore.timelog.writing.consumequeue import ConsumeQueues
from timerstore.timelog.writing.tally import COUNTERS, LOST_COUNT, TALLY_WORDS

log = logging.getLogger("timerstore")

PLACE_BYTES: Final = 2_048
KNOWN_MAX: Final = QUEUE_COUNT_MAX // 2
"""With so many queues in a store, counters of further ones that have no files are forgotten: a
store may have QUEUE_COUNT_MAX of them, and topics that nobody uses any more must not take all."""
_MARK: Final = b"TMTC"
_PLACE: Final = np.dtype(
    [
        ("mark", "S4"),
        ("crc", ">u4"),  # of what follows
        ("log_end", ">i8"),
        ("queue_id", ">i4"),
        ("name_bytes", ">i4"),  # 0 in the first place
        ("name", "u1", NAME_STRIDE),
        ("counters", ">i8", COUNTERS),
        ("queue_end", ">i8"),  # its entries before it were durable when this was written
        ("flushed_log", ">i8"),  # the durable log's end then; in the first place 0 if none are said
        ("zeros", "V152"),
    ]
)
assert _PLACE.itemsize == PLACE_BYTES
_CRC_FROM: Final = 8


@kernel_ahead
def _capture(
    commitlog: SegmentTable, queues: QueueTable, lock: Words, rows: Words, ends: Words, out: Rows
) -> None:
    """Copy the counters of some rows, `out` int64[n, COUNTERS], and the log's end for each."""
    for i in range(len(rows)):
        at = rows[i] * TALLY_WORDS
        lock_acquire(lock)
        for k in range(COUNTERS):
            out[i, k] = queues.tally.words[at + k]
        ends[i] = commitlog.end
        lock_release(lock)


def _sums(queues: ConsumeQueues) -> Words:
    """Return what each row has counted, which grows whenever it counts."""
    words = queues.table.tally.words.reshape(-1, TALLY_WORDS)
    return words[: len(queues.files), : LOST_COUNT + 1].sum(axis=1)


class CounterFile:
    """The file of one store."""

    def __init__(self, disk: Disk, path: Path, queues: ConsumeQueues) -> None:
        self.path, self.damaged_count = path, 0
        self._disk, self._queues = disk, queues
        self._places: dict[tuple[bytes, int], int] = {}
        self._free: list[int] = []
        self._end = 1  # behind the last place
        self._written = np.zeros(QUEUE_COUNT_MAX, np.int64)  # `_sums` of what was written
        self._ends = np.zeros((2, QUEUE_COUNT_MAX), np.int64)  # by row: queue end, durable log end
        self._says_ends = False

    def read(self) -> tuple[int, Words]:
        """Take the counters that are whole; return the offset up to which all count, and each row.

        What is not is as if it had never been there; `damaged_count` of them.
        """
        until = np.zeros(QUEUE_COUNT_MAX, np.int64)
        try:
            data = self._disk.read(self.path) or b""
        except TimerStoreError as e:
            log.warning("%s: %s: the counters start at 0 again", self.path, e)
            self.damaged_count += 1
            return 0, until
        count, all_until = len(data) // PLACE_BYTES, 0
        places = np.frombuffer(data, _PLACE, count)
        for number in range(count):
            row = -1
            if any(content := data[number * PLACE_BYTES : (number + 1) * PLACE_BYTES]):
                if self._is_whole(places[number], content):
                    if number == 0:
                        all_until = int(places[0]["log_end"])
                        self._says_ends = bool(places[0]["flushed_log"] > 0)
                        continue
                    if self._is_forgotten(places[number]):
                        self._free.append(number)
                        continue
                    row = self._take(places[number], until, number)
                self.damaged_count += row < 0
            if row < 0 and number > 0:
                self._free.append(number)
        self._end = max(1, count)
        if self.damaged_count:
            log.warning("%s: %d counters start at 0 again", self.path, self.damaged_count)
        self._written[: len(self._queues.files)] = _sums(self._queues)
        return all_until, until

    def _is_whole(self, place: Any, content: bytes) -> bool:
        if place["mark"] != _MARK or int(place["crc"]) != zlib.crc32(content[_CRC_FROM:]):
            return False
        sound = 0 <= int(place["name_bytes"]) < NAME_STRIDE and int(place["log_end"]) >= 0
        return bool(sound and (place["counters"] >= 0).all())

    def _is_forgotten(self, place: Any) -> bool:
        """Tell whether a queue that has no files would take room that others may need."""
        topic = place["name"][: int(place["name_bytes"])].tobytes()
        is_known = any(
            self._queues.table.queue_id[row] == place["queue_id"]
            for row in self._queues.rows(topic)
        )
        return not is_known and len(self._queues.files) >= KNOWN_MAX

    def _take(self, place: Any, until: Words, number: int) -> int:
        """Take a place's counters; return its row, or −1."""
        topic = place["name"][: int(place["name_bytes"])].tobytes()
        queue_id = int(place["queue_id"])
        if (topic, queue_id) in self._places:
            return -1
        try:
            row = self._queues.row(topic, queue_id)
        except TimerStoreError:
            return -1
        self._places[topic, queue_id] = number
        self._queues.table.tally.words[row * TALLY_WORDS :][:COUNTERS] = place["counters"]
        until[row] = place["log_end"]
        self._ends[:, row] = place["queue_end"], place["flushed_log"]
        return row

    def recorded_end(self, row: int, log_end: int) -> int:
        """Return where a queue of a commit log with this end ends at least; −1 if none says so."""
        queue_end, flushed_log = self._ends[:, row].tolist()
        if queue_end == 0 and (self.damaged_count or not self._says_ends):
            return -1
        return queue_end if flushed_log <= log_end else 0

    def forget(self) -> None:
        """Remove what an earlier store left at this path."""
        if self._disk.exists(self.path):
            self._disk.remove(self.path)

    def write_again(self, rows: Words) -> None:
        """Have rows written with the next checkpoint, though they have not changed."""
        self._written[rows] = -1

    def write(
        self,
        commitlog: SegmentTable,
        lock: Words,
        queue_ends: Words,
        flushed_log: int,
        *,
        durably: bool,
    ) -> None:
        """Write what has changed; if it fails, the next time will do. O(queues).

        `queue_ends`: of each row, durable, as the commit log is up to `flushed_log`.
        """
        sums, end = _sums(self._queues), commitlog.end
        queue_ends = queue_ends[: len(sums)].copy()
        changed = (sums != self._written[: len(sums)]) | (queue_ends != self._ends[0, : len(sums)])
        rows = np.flatnonzero(changed)
        if not len(rows) and not durably:
            return
        places = np.zeros(len(rows) + 1, _PLACE)
        ends, counters = np.zeros(len(rows), np.int64), np.zeros((len(rows), COUNTERS), np.int64)
        _capture(commitlog, self._queues.table, lock, rows, ends, counters)
        places["mark"], places["log_end"][0] = _MARK, end
        places["log_end"][1:], places["counters"][1:] = ends, counters
        places["queue_end"][1:], places["flushed_log"] = queue_ends[rows], flushed_log
        try:
            self._write(rows, places, durably)
        except TimerStoreError as e:
            log.warning("%s could not be written: %s", self.path, e)
            return
        self._written[rows] = counters[:, : LOST_COUNT + 1].sum(axis=1)
        self._ends[0, rows], self._ends[1, rows] = queue_ends[rows], flushed_log

    def _write(self, rows: Words, places: Any, durably: bool) -> None:
        numbers = [self._place_of(row, places[i + 1]) for i, row in enumerate(rows.tolist())]
        self._disk.make_folder(self.path.parent)
        fd = self._disk.open_file(self.path, create=True)
        try:
            for i in range(len(places)):
                places["crc"][i] = zlib.crc32(places[i : i + 1].tobytes()[_CRC_FROM:])
            # The first place last: it says that the others are there. Each is within a page of
            # memory, which a kill does not tear.
            for i in [*range(1, len(places)), 0]:
                at = numbers[i - 1] * PLACE_BYTES if i else 0
                self._disk.write_at(fd, places[i : i + 1].tobytes(), at, self.path)
            if durably:
                self._disk.sync(fd, self.path)
        finally:
            os.close(fd)

    def _place_of(self, row: int, place: Any) -> int:
        """Name a row's queue in its place; return the place's offset in the file."""
        topic, queue_id = self._queues.topics[row], int(self._queues.table.queue_id[row])
        place["name_bytes"], place["queue_id"] = len(topic), queue_id
        place["name"][: len(topic)] = np.frombuffer(topic, np.uint8)
        number = self._places.get((topic, queue_id))
        if number is None:
            number = self._free.pop() if self._free else self._end
            self._end = max(self._end, number + 1)
            self._places[topic, queue_id] = number
        return number
