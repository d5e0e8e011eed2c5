"""Readers that never write: a store's directory as it is, mapped only for reading.

They serve code that looks at a store without having it open: verify, export, retention, the Spark
tables, tests. They take no lock, never make or grow a file, and read a sparse copy as it is. A
`ReadSegments` has a `SegmentTable`, so that the kernels which scan logs work on it unchanged. What
is wrong with the files themselves becomes a `Fault` and not an error: a short file reads as if
zeros followed, a foreign name is passed over. The store's folder is held by a descriptor, so that
all is read from one folder, wherever it is moved and whatever comes to its old name.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError, NotAStoreError
from timerstore.jit.mapping import map_bytes, release_pages
from timerstore.jit.record import Bytes, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.files.checkpoint import (
    IDENTITY_FILE,
    Sizes,
    TimerCheckpoint,
    decode_checkpoint,
    find_identity,
    sealed_from,
    standing,
)
from timerstore.timelog.files.folders import FolderShare, HeldFolder, hold_to_read, no_store
from timerstore.timelog.files.names import number_of, segment_name, segment_offset
from timerstore.timelog.files.nonzero import first_used, growing_pieces, last_used
from timerstore.timelog.files.reader_end import (
    KEPT_MAX,
    list_names,
    list_segments,
    look_steadily,
    none_between,
    ranges_of,
)
from timerstore.timelog.files.refuse_rocksdb import refuse_rocksdb
from timerstore.timelog.files.segmenttable import (
    TABLE_LENGTH,
    SegmentTable,
    enter_segment,
    new_segment_table,
)
from timerstore.timelog.files.smallfile import At, is_there, open_at, status_at
from timerstore.timelog.reading import scan

OPEN_COUNT_MAX: Final = 4_096
"""Segments of one log that stay mapped at once; Linux allows a process 65,530 maps."""
FEW_MAPS: Final = 4
"""So many of a log that is read in order: of what is removed meanwhile no more takes room."""
READ_ROWS: Final = 16_384
"""Messages that one step of a scan reads: 3 MB of rows."""
_SLOTS_MAX: Final = 1 << 25
"""Of a wheel that is looked at; a file that is larger than that, a gigabyte, is no wheel."""
_PRECISION_MS_BROKER: Final = 1_000
_MAGIC: Final = fmt.MESSAGE_MAGIC.to_bytes(4, "big")[:3]  # both magics of a message begin so
_MAGIC_AT: Final = fmt.MESSAGE_MAGIC_AT


class Fault(NamedTuple):
    """What is wrong at one place; `offset` counts over all segments of `file`."""

    file: str
    offset: int
    reason: str


class Kept(NamedTuple):
    """A segment that stays mapped, with its file's inode: by now its name may be another's."""

    view: Bytes
    inode: int


class ReadSegments:
    """A folder of segment files of one size, mapped for reading as they are asked for."""

    def __init__(
        self,
        folder: Path,
        name: str,
        segment_bytes: int,
        at: At,
        *,
        open_count_max: int = OPEN_COUNT_MAX,
        kept: dict[int, Kept] | None = None,
    ) -> None:
        """List what is there; `name` is what faults call the folder; `at` leads to its files.

        `kept`: segments that are mapped for as long as this object lives; those that are there and
        not among them are added, so that they can be read when somebody has removed them. One that
        was removed and made again is mapped anew.
        """
        self.folder, self.name, self.segment_bytes, self._at = folder, name, segment_bytes, at
        self.open_count_max = open_count_max
        self.faults: list[Fault] = []
        self._kept = kept
        self._maps: dict[int, Bytes] = {}  # in the order of their last use
        self.numbers = list_segments(self._list, lambda each: is_there(self.path(each), at))
        for before, after in zip(self.numbers, self.numbers[1:], strict=False):
            if after != before + 1:
                offset = (before + 1) * segment_bytes
                self.faults.append(Fault(name, offset, "segments are missing from this offset on"))

    def _list(self) -> Iterator[int]:
        self.faults.clear()
        kept = self._kept if self._kept is not None else {}
        names = {segment_name(number * self.segment_bytes) for number in kept}
        for text in sorted(names.union(list_names(self.folder, self._at))):
            path = self.folder / text
            offset = segment_offset(text)
            if offset is None:
                reason = f"{text} is no segment; a broker cannot load the folder"
                self.faults.append(Fault(self.name, 0, reason))
                continue
            number = offset // self.segment_bytes
            try:
                status = status_at(path, self._at)
            except FileNotFoundError:  # removed since the folder was listed
                if text in names:
                    yield number
                continue
            if text in names and kept[number].inode == status.st_ino:
                yield number
                continue
            if not stat.S_ISREG(status.st_mode):
                self.faults.append(Fault(self.name, offset, f"{text} is no regular file"))
                continue
            size = status.st_size
            if offset % self.segment_bytes:
                reason = f"it does not start at a multiple of {self.segment_bytes} bytes"
                self.faults.append(Fault(self.name, offset, reason))
                continue
            if size != self.segment_bytes:
                reason = f"the segment has {size} bytes, but {self.segment_bytes} were expected"
                at = offset + min(size, self.segment_bytes)
                self.faults.append(Fault(self.name, at, reason))
            elif self._kept is not None and (number in kept or len(kept) < KEPT_MAX):
                try:
                    kept[number] = Kept(
                        map_file(self.path(number), self.segment_bytes, self._at), status.st_ino
                    )
                except FileNotFoundError:
                    continue
            yield number

    def is_whole(self, offset: int) -> bool:
        """Tell whether the segment that starts at `offset` has its full length by now."""
        try:
            status = status_at(self.path(offset // self.segment_bytes), self._at)
            return status.st_size == self.segment_bytes
        except FileNotFoundError:
            return False

    @property
    def start(self) -> int:
        """Offset of the first byte that is kept."""
        return self.numbers[0] * self.segment_bytes if self.numbers else 0

    @property
    def files_end(self) -> int:
        """Offset behind the last segment file."""
        return (self.numbers[-1] + 1) * self.segment_bytes if self.numbers else 0

    @cached_property
    def table(self) -> SegmentTable:
        """The table that kernels find mapped segments in; `map` fills it."""
        table = new_segment_table(self.segment_bytes)
        for number, view in self._maps.items():
            enter_segment(table, number, view)
        return table

    def map(self, number: int) -> Bytes:
        """Return the bytes of a segment, read-only."""
        view = self._maps.pop(number, None)
        if view is None:
            if number not in self.numbers:
                offset = number * self.segment_bytes
                raise CorruptStoreError(self.name, offset, "this segment is missing")
            kept = self._kept.get(number) if self._kept is not None else None
            view = (
                map_file(self.path(number), self.segment_bytes, self._at)
                if kept is None
                else kept.view
            )
            while len(self._maps) >= self.open_count_max:
                self._drop(next(iter(self._maps)))
            if "table" in self.__dict__:
                enter_segment(self.table, number, view)
        self._maps[number] = view
        return view

    def _drop(self, number: int) -> None:
        view = self._maps.pop(number)
        if self._kept is not None and number in self._kept:
            release_pages(view)
        if "table" in self.__dict__ and self.table.number[number % TABLE_LENGTH] == number:
            self.table.number[number % TABLE_LENGTH] = -1

    def unmap(self) -> None:
        """Let go of all maps; what was read of a large log is no longer counted as this process's.

        Views that were handed out keep theirs alive.
        """
        for number in list(self._maps):
            self._drop(number)

    def map_from(self, offset: int, count: int = 2) -> bool:
        """Map the segment of `offset` and those behind it; False if the first is missing."""
        number = offset // self.segment_bytes
        for each in range(number, number + count):
            if each in self.numbers:
                self.map(each)
        return number in self.numbers

    def view(self, offset: int) -> Bytes:
        """Return the bytes from `offset` to the end of its segment."""
        number, position = divmod(offset, self.segment_bytes)
        return self.map(number)[position:]

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of bytes that may cross segments; shorter where they end."""
        parts = []
        while count > 0 and offset // self.segment_bytes in self.numbers:
            part = self.view(offset)[:count].tobytes()
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)

    def next_used(self, start: int, stop: int) -> int:
        """Return the offset of the first byte in [start, stop) that is not 0, or `stop`.

        Holes are skipped, so a sparse or preallocated file costs next to nothing. A segment that
        is missing counts as zeros.
        """
        for number in self.numbers:
            base = number * self.segment_bytes
            low, high = max(start, base), min(stop, base + self.segment_bytes)
            if low >= high:
                continue
            for first, last in self._data_ranges(number, low - base, high - base):
                used = first_used(self.map(number)[first:last])
                if used >= 0:
                    return base + first + used
        return stop

    def _data_ranges(self, number: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of [start, stop) of a segment that are no holes."""
        try:
            fd = open_at(self.path(number), self._at)
        except FileNotFoundError:  # it was removed: the map knows no holes
            yield start, stop
            return
        try:
            yield from ranges_of(fd, start, stop)
        finally:
            os.close(fd)

    def path(self, number: int) -> Path:
        """Return the path of a segment."""
        return self.folder / segment_name(number * self.segment_bytes)

    def used_end(self) -> int:
        """Return the offset behind the last byte that is not 0; the log's start if all are."""
        for number in reversed(self.numbers):
            base = number * self.segment_bytes
            for first, last in reversed(list(self._data_ranges(number, 0, self.segment_bytes))):
                used = last_used(self.map(number)[first:last])
                if used >= 0:
                    return base + first + used + 1
        return self.start

    def find(self, pattern: bytes, start: int, stop: int) -> int:
        """Return the offset of a pattern in [start, stop), which lie in one segment, or −1."""
        base = start - start % self.segment_bytes
        data = self.map(start // self.segment_bytes)
        for at, end in growing_pieces(start - base, stop - base):
            piece = data[at : min(end + len(pattern) - 1, stop - base)]
            found = piece.tobytes().find(pattern)
            if found >= 0:
                return base + at + found
        return -1

    @property
    def bytes_count(self) -> int:
        """Bytes of all segments."""
        return len(self.numbers) * self.segment_bytes


def read_entries(queue: ReadSegments | None, index: int, count: int) -> fmt.Entries:
    """Return a queue's entries from `index` on, QUEUE_ENTRY[count]; fewer if its files end."""
    if queue is None or count <= 0:
        return np.zeros(0, fmt.QUEUE_ENTRY)
    data = queue.read(index * fmt.ENTRY_BYTES, count * fmt.ENTRY_BYTES)
    return np.frombuffer(data[: len(data) // fmt.ENTRY_BYTES * fmt.ENTRY_BYTES], fmt.QUEUE_ENTRY)


def map_file(path: Path, length: int, at: At) -> Bytes:
    """Return the first `length` bytes of a file, read-only; if it is shorter, zeros follow."""
    fd = open_at(path, at)
    try:
        size = os.fstat(fd).st_size
        if size >= length > 0:
            return map_bytes(fd, length, private=False)
        view = np.zeros(length, np.uint8)
        data = np.frombuffer(os.pread(fd, size, 0), np.uint8)
        view[: len(data)] = data
        view.flags.writeable = False
        return view
    finally:
        os.close(fd)


# --- a whole store


def read_sizes(path: Path, at: At) -> tuple[Sizes, Fault | None]:
    """Return a store's sizes, off its files if none are recorded, and what hindered reading."""
    identity, fault = None, None
    try:
        identity, lost = find_identity(path, at)
        if lost is not None:
            fault = Fault(lost.file, lost.offset, lost.reason)
    except NotAStoreError as e:
        fault = Fault(IDENTITY_FILE, 0, str(e))
    if identity is not None:
        hop, tag = identity.roll_hop_slots, identity.store_tag
        return Sizes(**identity.sizes(), roll_hop_slots=hop, store_tag=tag, by_broker=False), fault
    wheel = path / "timerwheel"
    slots = (
        status_at(wheel, at).st_size // fmt.SLOT_BYTES // 2
        if is_there(wheel, at, stat.S_ISREG)
        else fmt.SLOT_COUNT_DEFAULT
    )
    topics = _folders(path / "consumequeue", at)
    queues = [each for topic in topics for each in _folders(topic, at)]
    sizes = Sizes(
        _usual_size([path / "commitlog"], fmt.COMMITLOG_SEGMENT_BYTES_BROKER, at),
        _usual_size(queues, fmt.QUEUE_SEGMENT_BYTES_BROKER, at),
        _usual_size([path / "timerlog"], fmt.TIMERLOG_SEGMENT_BYTES_BROKER, at),
        max(1, slots),
    )
    return sizes, fault


def _folders(path: Path, at: At) -> list[Path]:
    found = [path / name for name in sorted(list_names(path, at))]
    return [each for each in found if is_there(each, at, stat.S_ISDIR)]


def _usual_size(folders: list[Path], otherwise: int, at: At) -> int:
    """Return the size that most files have; one may have been cut."""
    sizes = Counter[int]()
    for folder in folders:
        for name in list_names(folder, at):
            if segment_offset(name) is not None and is_there(folder / name, at, stat.S_ISREG):
                sizes[status_at(folder / name, at).st_size] += 1
    del sizes[0]
    return sizes.most_common(1)[0][0] if sizes else otherwise


class StoreReader:
    """A store's directory, opened only for reading: closed, a copy, or live.

    Of a live store everything up to its last checkpoint is sound; what lies behind it may be half
    written. All that goes with that checkpoint is kept open, or copied, see `reader_end.py`.
    `level_ms`: the delay of each level, from which the entries of a level's queue follow.
    """

    def __init__(
        self,
        path: Path,
        level_ms: Words,
        *,
        precision_ms: int | None = None,
        shares: bool = True,
        folder: HeldFolder | None = None,
    ) -> None:
        """Read the sizes and list the files; nothing is mapped yet.

        With `shares` all that is listed can be read for as long as this object lives, and the
        writer uses no segment again; else FEW_MAPS of a log are mapped at once, and what was
        removed is gone. `folder`: the store's, if it is open here; else it is held from now on.
        """
        self.folder = folder or hold_to_read(path)
        self.at = at = self.folder.at
        if not (
            is_there(path / "commitlog", at, stat.S_ISDIR)
            or is_there(path / "timerstore.json", at, stat.S_ISREG)
        ):
            raise no_store(path)
        refuse_rocksdb(path, at)
        self.path, self.level_ms = path, level_ms
        self._share = FolderShare(*at(path / "commitlog")) if shares else None
        self._kept: dict[str, dict[int, Kept]] | None = {} if shares else None
        self._listed: dict[str, list[int]] = {}
        self.steady = look_steadily(path, at, self._look)
        self.is_open = self.steady.is_open
        self.checkpoint_data = self.steady.checkpoint_data or b""
        self.checkpoint: TimerCheckpoint | None = None
        self.decode_checkpoint()
        measured = precision_ms or self.sizes.precision_ms or self.measure_precision()
        self.precision_ms = measured or _PRECISION_MS_BROKER

    def decode_checkpoint(self) -> None:
        """Learn what the checkpoint says, whose bytes were read or given."""
        self.checkpoint = standing(decode_checkpoint(self.checkpoint_data), self.is_open)

    def _look(self) -> bool:
        """List everything as it is now; what was mapped before is kept. See `look_steadily`."""
        path, before = self.path, self._listed.copy()
        self.is_open = is_there(path / "abort", self.at)
        self.sizes, sizes_fault = read_sizes(path, self.at)
        self.store_tag = self.sizes.store_tag
        self.faults: list[Fault] = [sizes_fault] if sizes_fault is not None else []
        # Retention removes the messages first, so they are listed last: no message is seen without
        # its entry.
        self.queues: dict[tuple[str, int], ReadSegments] = dict(self._list_queues())
        size = self.sizes.timerlog_segment_bytes
        self.timerlog = self._segments(path / "timerlog", "timerlog", size)
        size = self.sizes.commitlog_segment_bytes
        self.commitlog = self._segments(path / "commitlog", "commitlog", size)
        listed = self._listed.items()
        return all(none_between(before.get(name, []), numbers) for name, numbers in listed)

    def _segments(self, folder: Path, name: str, segment_bytes: int) -> ReadSegments:
        kept = None if self._kept is None else self._kept.setdefault(name, {})
        most = FEW_MAPS if kept is None else OPEN_COUNT_MAX
        log = ReadSegments(folder, name, segment_bytes, self.at, open_count_max=most, kept=kept)
        self._listed[name] = log.numbers
        if self.is_open and log.faults:
            last = (log.numbers[-1] if log.numbers else 0) * segment_bytes
            if log.used_end() <= last or log.is_whole(last):  # it was being made when it was listed
                log.faults = [fault for fault in log.faults if fault.offset < last]
        return log

    def _list_queues(self) -> Iterator[tuple[tuple[str, int], ReadSegments]]:
        root = self.path / "consumequeue"
        for topic in _folders(root, self.at):
            for folder in _folders(topic, self.at):
                name = f"consumequeue/{topic.name}/{folder.name}"
                queue_id = number_of(folder.name)
                if queue_id is None:
                    self.faults.append(Fault(name, 0, "this folder is no queue"))
                    continue
                size = self.sizes.consumequeue_segment_bytes
                yield (topic.name, queue_id), self._segments(folder, name, size)

    @cached_property
    def slots(self) -> np.ndarray[Any, Any]:
        """The timer wheel as a SLOT array, empty if there is none."""
        wheel = self.steady.wheel
        count = min(wheel.length // fmt.SLOT_BYTES, 2 * self.sizes.wheel_slot_count, _SLOTS_MAX)
        if not count:
            return np.zeros(0, fmt.SLOT)
        return map_bytes(wheel.fd, count * fmt.SLOT_BYTES, private=False).view(fmt.SLOT)

    @cached_property
    def used_slots(self) -> Words:
        """The indexes of the slots that hold anything."""
        found = [np.zeros(0, np.int64)]
        for first, last in self.steady.wheel.ranges:
            part = self.slots[first // fmt.SLOT_BYTES : -(-last // fmt.SLOT_BYTES)]
            words = part.view(np.int64).reshape(-1, 4)
            used = words[:, 0] | words[:, 1] | words[:, 2] | words[:, 3]
            found.append(np.flatnonzero(used) + first // fmt.SLOT_BYTES)
        indexes = np.concatenate(found)  # in order; two ranges may share a slot
        return indexes[np.diff(indexes, prepend=-1) > 0]

    def measure_precision(self) -> int | None:
        """Read the precision off a slot: a unit's time divided by its slot's number."""
        for index in self.used_slots.tolist():
            slot = self.slots[index]
            last, time = int(slot["last"]), int(slot["time"])
            if time <= 0 or not self.timerlog.start <= last < self.timerlog.files_end:
                continue
            data = self.timerlog.read(last, fmt.UNIT_BYTES)
            unit = np.frombuffer(data.ljust(fmt.UNIT_BYTES, b"\0"), fmt.UNIT)[0]
            precision_ms = (int(unit["write_ms"]) + int(unit["delta_ms"])) // time
            if precision_ms in (100, 200, 500, 1000):
                return precision_ms
        return None

    @property
    def sealed_from(self) -> int:
        """From here on the commit log's blanks must be sealed, see `checkpoint.py`."""
        return sealed_from(self.checkpoint, self.is_open)

    def topics(self) -> list[str]:
        """Return the topics that have a queue."""
        return sorted({topic for topic, _ in self.queues})

    def entries(self, topic: str, queue_id: int) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Yield (index of the first, QUEUE_ENTRY array) for each segment of a queue."""
        queue = self.queues[topic, queue_id]
        for number in queue.numbers:
            first = number * queue.segment_bytes // fmt.ENTRY_BYTES
            yield first, queue.map(number).view(fmt.QUEUE_ENTRY)

    def next_message(self, offset: int, stop: int) -> int:
        """Return where the next sound message in (offset, stop) begins, or −1. O(bytes)."""
        log = self.commitlog
        for number in log.numbers:
            base = number * log.segment_bytes
            end = min(base + log.segment_bytes, stop + _MAGIC_AT + len(_MAGIC) - 1)
            if base + log.segment_bytes <= offset + 1 or base >= stop:
                continue
            if base > offset and self.is_message(base):
                return base
            at = max(offset + 1, base) + _MAGIC_AT
            while at < end:
                at = log.find(_MAGIC, at, end)
                if at < 0:
                    break
                if self.is_message(at - _MAGIC_AT):
                    return at - _MAGIC_AT
                at += 1
        return -1

    def is_message(self, offset: int) -> bool:
        """Tell whether a sound message begins at `offset`, and says that it stands there."""
        return any(len(rows) for rows in self.scan(offset, offset + 1))

    def scan(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        verify: bool = True,
        chunk: int = READ_ROWS,
    ) -> Scan:
        """Return a scan over the messages in [start, stop), in tables of `chunk` rows at most."""
        log = self.commitlog
        return Scan(
            self,
            log.start if start is None else start,
            log.files_end if stop is None else stop,
            verify=verify,
            chunk=chunk,
        )


class Scan:
    """A pass over the commit log: iterating yields `LoggedMessages`.

    It ends at the first thing that is no sound message. `end` is where; `stopped` is why, a STOP_
    constant of `scan.py`; `bad` the status of the message there, if it is one.
    """

    def __init__(
        self, reader: StoreReader, start: int, stop: int, *, verify: bool, chunk: int
    ) -> None:
        """Begin at `start`, where a message begins."""
        self.reader, self.end, self._stop, self._verify = reader, start, stop, verify
        self._chunk = chunk
        self.stopped, self.bad = scan.STOP_COUNT, 0

    def __iter__(self) -> Iterator[scan.LoggedMessages]:
        """Yield rows that are overwritten by the next step."""
        reader, log = self.reader, self.reader.commitlog
        room = min(self._chunk, (self._stop - self.end) // fmt.MESSAGE_BYTES_MIN + 1)
        rows = scan.LoggedMessages.room(max(room, 1) + 1)
        good = rows[:-1]  # what is bad stands behind them
        place = scan.LogPlace(MessageParts(), self.end, self._stop, reader.sealed_from)
        how = scan.ReadAs(reader.store_tag, reader.precision_ms, reader.level_ms, self._verify)
        while self.end < self._stop:
            if not log.map_from(self.end):
                self.stopped = scan.STOP_UNMAPPED
                return
            count = scan.scan_commitlog(log.table, place, how, good)
            self.end, self.stopped = place.offset, place.stopped
            if self.stopped == scan.STOP_BAD:
                self.bad = int(rows.status[count])
            if count:
                yield rows[:count]
            if self.stopped in (scan.STOP_END, scan.STOP_BAD):
                return
        self.stopped = scan.STOP_END
