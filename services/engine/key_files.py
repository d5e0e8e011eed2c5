"""The key index of one store: keeps the files of `index/` up with the queues of what waits.

It follows the timer topic's queue and those of the delay levels, as a broker's follows its log: the
flush thread does it every few moments, and a search does it first. So a put does nothing for it,
and a store that was killed goes on from what `config/keyindex.json` says: which files are durable,
how many of their entries, and up to which index each queue is in them. What does not agree with
that is made anew from the queues.

Ground rules: everything goes under `lock`, which is taken before any lock of the services. A file
whose last message is done with is dropped; so are all, if their record is missing or wrong.
"""

from __future__ import annotations

import logging
import os
import stat
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    StoreFullError,
    TimerStoreError,
)
from timerstore.jit.arraytypes import read_only
from timerstore.jit.lent import lend
from timerstore.jit.locks import KernelLock
from timerstore.services.world.clock import Clock
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.jsonfile import (
    check_seal,
    read_json,
    sealed,
    understood,
    whole,
    write_json,
)
from timerstore.timelog.files.names import INT64_MAX, is_index_file
from timerstore.timelog.files.oserrors import kind_of, told_of
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.smallfile import is_there
from timerstore.timelog.writing.consumequeue import ConsumeQueues
from timerstore.timelog.writing.keyindex import (
    FILE_COUNT_MAX,
    chain_entries,
    entries_of,
    file_bytes,
    header_of,
    index_entries,
    new_key_index,
)

log = logging.getLogger("timerstore")

RECORD_FILE: Final = "config/keyindex.json"
ROOM_MIN: Final = 1_024
ROOM_MAX: Final = 1 << 22
"""Entries of a file: as many as all others have, so that a store with few keys stays small; 100 MB
at most, because it goes as a whole. Larger ones if there are very many files."""
_MANY_FILES: Final = FILE_COUNT_MAX // 2
_ROOM_OF_MANY: Final = 1 << 24
_STEP_COUNT: Final = 4_096
"""Entries of a queue that are looked at in one hold of the lock, some 0.3 ms."""
UNRECORDED_MAX: Final = 1 << 19
"""So many may have been looked at since the record was written; after a crash they are again."""
_COLUMNS: Final = ("next_entry", "latest_ms", "last_index", "last_level", "last_message")


class _File(NamedTuple):
    """One file of the index."""

    map: MappedFile
    room: int


class _Noted(NamedTuple):
    """What a record will say."""

    cursors: dict[str, list[int]]
    files: list[tuple[_File, list[int]]]
    seen_count: int


class KeyFiles:
    """The key index of an engine; any thread may use it."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        queues: ConsumeQueues,
        commitlog: SegmentedFile,
        clock: Clock,
        store_tag: int,
        *,
        is_used: bool,
    ) -> None:
        """Nothing is read yet. Without `is_used` nothing ever is, nor written."""
        self._disk, self._folder, self._record = disk, path / "index", path / RECORD_FILE
        self._queues, self._commitlog, self._clock = queues, commitlog, clock
        self._tag = store_tag
        self._is_wanted = is_used and disk.writes
        self.is_used = False
        """Whether it is open, and up to date except for what `catch_up` adds."""
        self.lock = KernelLock()
        self.index = new_key_index()
        self._files: list[_File] = []
        self._leaving: list[_File] = []  # no longer part of it, and still to be removed
        self._sums: dict[Path, tuple[int, int]] = {}  # entries that were summed, and their CRC
        self._synced: dict[Path, int] = {}

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files."""
        return sum(each.map.length for each in self._files)

    # --- opening

    def open(self, world: World) -> None:
        """Take what the last life left, as far as it is whole, and catch up; before any service
        runs. O(entries that are kept + entries of the queues behind them).
        """
        self._world = world
        if not self._is_wanted:
            return
        self.is_used = True
        if self._disk.exists(self._folder):
            mode = self._disk.status(self._folder).st_mode
            if not stat.S_ISDIR(mode):
                raise NotAStoreError(
                    f"{self._folder} is {kind_of(mode)}, but must be a folder. Move it away."
                )
        with self.lock.guard():
            reason = "no record of it"
            try:
                with understood(self._record.name):
                    if record := self._read_record():
                        self._load(record)
                        reason = ""
            except (TimerStoreError, OSError) as e:
                reason = str(e)
            if reason:
                if self._disk.exists(self._folder):
                    log.info("%s: made anew: %s", self._folder, reason)
                self._forget()
            self._remove_strangers()
        try:
            self.catch_up()
        except StoreFullError as e:  # who searches is told; the flush thread tries again
            log.warning("%s: %s", self._folder, e)

    def _read_record(self) -> dict[str, Any] | None:
        record = read_json(self._record, self._disk.read)
        if record is not None:
            check_seal(self._record, record)
            if record["storeTag"] != self._tag or "checksum" not in record:
                raise CorruptStoreError(self._record.name, 0, "it is another store's")
        return record

    def _load(self, record: dict[str, Any]) -> None:
        """Map what is recorded; raise if it is not so any more."""
        for name, (index, message) in record["cursors"].items():
            queue = whole(int(name), 0, fmt.LEVEL_COUNT_MAX)
            row = dict(self._rows()).get(queue, -1)
            if row < 0 or not 0 <= whole(index) <= self._queues.next_index(row):
                raise CorruptStoreError(self._record.name, 0, "a queue is shorter")
            if index > self._queues.first_index(row):
                if int(self._queues.read(row, index - 1, 1)[0]["offset"]) != message:
                    raise CorruptStoreError(self._record.name, 0, "a queue is another one")
            self.index.cursor[queue] = index
        for each in record["files"]:
            if not is_index_file(each["name"]) or not 2 <= whole(each["room"]) <= _ROOM_OF_MANY:
                raise CorruptStoreError(self._record.name, 0, "it names no file")
            path = self._folder / each["name"]
            if not self._disk.exists(path) or self._disk.size(path) != file_bytes(each["room"]):
                raise CorruptStoreError(path.name, 0, "the file is missing, or of another size")
            file = _File(self._disk.map_existing(path, file_bytes(each["room"])), each["room"])
            values = [whole(each[name], -INT64_MAX) for name in _COLUMNS]
            if not 2 <= values[0] <= file.room:
                raise CorruptStoreError(path.name, 0, "it has another number of entries")
            self._sums[path] = values[0], _sum_entries(file, 1, values[0], 0)
            if self._sums[path][1] != each["crc"]:
                raise CorruptStoreError(path.name, 0, "the checksum does not match")
            self._check_messages(file, values[0])
            self._disk.allocate(file.map, file.map.length)
            self._add(file, values)
            self._take_up(file, values[0])
            self._synced[path] = values[0]

    def _check_messages(self, file: _File, count: int) -> None:
        """Raise if the log has no message at the places of some entries."""
        for entry in np.unique(np.linspace(1, count - 1, 8, dtype=np.int64)).tolist():
            at = int(entries_of(file.map.view, entry, entry + 1)[0]["offset"])
            if at < self._commitlog.start:
                continue
            if at >= self._commitlog.end or self._own_offset(at) != at:
                raise CorruptStoreError(file.map.path.name, at, "the log has no such message")

    def _own_offset(self, at: int) -> int:
        view = self._commitlog.view(at)[: fmt.MESSAGE_HEADER_BYTES]
        return (
            int(view.view(fmt.MESSAGE_HEADER)[0]["offset"])
            if len(view) == fmt.MESSAGE_HEADER_BYTES
            else -1
        )

    def _take_up(self, file: _File, count: int) -> None:
        """Link the entries of a file of an earlier life, in which some were cut out."""
        header, last = header_of(file.map.view), entries_of(file.map.view, count - 1, count)[0]
        header["end_ms"] = int(header["begin_ms"]) + 1_000 * int(last["seconds"])
        header["end_offset"] = last["offset"]
        chain_entries(self.index, len(self._files) - 1, np.zeros(file.room, np.int32))

    def _forget(self) -> None:
        """Begin without a file; those that are there are removed."""
        self._files.clear()
        self._sums.clear()
        self._synced.clear()
        self.index.file_count = self.index.word = self.index.unmapped = self.index.seen = 0
        self.index.old_linked = self.index.old_passed = 0
        self.index.new_linked = self.index.new_passed = 0
        self.index.cursor[:] = 0
        if self._disk.exists(self._record):
            self._disk.remove(self._record)
            self._disk.sync_folder(self._record.parent)

    def _remove_strangers(self) -> None:
        """Remove what is in the folder and no part of the index."""
        known = {each.map.path.name for each in self._files}
        for name in sorted(self._disk.names(self._folder)):
            path = self._folder / name
            if name not in known and is_there(path, self._disk.at, stat.S_ISREG):
                self._disk.remove(path)

    # --- following the queues

    def _rows(self) -> list[tuple[int, int]]:
        """Return each queue that is followed, 0 the timers', with its row."""
        levels = enumerate(self._world.levels.row.tolist(), 1)
        return [(0, 0), *((level, row) for level, row in levels if row >= 0)]

    def catch_up(self) -> None:
        """Index all that was put up to now. Raises StoreFullError."""
        if self.is_used:
            self._note_progress()
            for queue, row in self._rows():
                while self.index.cursor[queue] < self._queues.next_index(row):
                    with self.lock.guard():
                        self._step(queue, row)

    def catch_up_locked(self) -> None:
        """Do the same for who holds the lock."""
        for queue, row in self._rows():
            while self.index.cursor[queue] < self._queues.next_index(row):
                self._step(queue, row)

    def _step(self, queue: int, row: int) -> None:
        """Index the next entries of a queue."""
        queues, first = self._queues, self._queues.first_index(row)
        if self.index.cursor[queue] < first:  # what is before was removed
            self.index.cursor[queue] = first
        at = int(self.index.cursor[queue])
        left = queues.segment_entries - at % queues.segment_entries
        count = min(queues.next_index(row) - at, left, _STEP_COUNT)
        if count <= 0:
            return
        try:
            entries, position, kept = queues.run(row, at, count)
        except CorruptStoreError:
            if queues.first_index(row) > at:  # removed just now: it is done with
                return
            raise
        with self._commitlog.reading() as commitlog:
            done = index_entries(
                self.index,
                commitlog,
                read_only(entries),
                position,
                count,
                queue,
                self._world.cleaning.floor,
            )
        del kept
        if done < count:
            message = self.index.unmapped
            if message < 0:
                self._add_file()
            else:
                self._commitlog.readable(message // self._commitlog.segment_bytes)

    def _add_file(self) -> None:
        """Make the file that further entries go to."""
        rooms = [each.room for each in self._files]
        if len(rooms) == FILE_COUNT_MAX:
            raise StoreFullError(
                f"{self._folder} has {len(rooms)} files, and may have no more. Consume the "
                "messages that have fired, so that the oldest files are removed, or open the "
                "store with key_index=False."
            )
        largest = ROOM_MAX if len(rooms) < _MANY_FILES else _ROOM_OF_MANY
        room = min(max(sum(rooms), ROOM_MIN), largest)
        before = self._files[-1] if self._files else None
        path = self._folder / self._next_name(before)
        self._disk.make_folder(self._folder)
        made = self._disk.create_mapped(path, file_bytes(room))
        try:
            self._disk.allocate(made, made.length)
        except StoreFullError:
            self._disk.remove(path)
            raise
        header = header_of(made.view)
        header["next_entry"] = 1
        if before is not None:
            last = header_of(before.map.view)
            header["begin_ms"] = header["end_ms"] = last["end_ms"]
            header["begin_offset"] = header["end_offset"] = last["end_offset"]
        self._add(_File(made, room), [1, 0, -1, -1, -1])

    def _next_name(self, before: _File | None) -> str:
        """Return the clock's time as a broker names its files; behind the last one's."""
        for ms in (self._clock.now_ms, *range(self._clock.now_ms + 1, self._clock.now_ms + 10_000)):
            when = datetime.fromtimestamp(ms / 1_000, UTC)
            name = when.strftime("%Y%m%d%H%M%S") + f"{ms % 1_000:03d}"
            if before is None or name > before.map.path.name:
                return name
        assert before is not None
        return f"{int(before.map.path.name) + 1:017d}"  # the clock went back

    def _add(self, file: _File, values: list[int]) -> None:
        """Tell kernels of a file behind the others."""
        index, number = self.index, len(self._files)
        lend(index.lent, number, file.map.view)
        index.room[number] = file.room
        for name, value in zip(_COLUMNS, values, strict=True):
            getattr(index, name)[number] = value
        self._files.append(file)
        index.file_count = number + 1

    # --- what is done with

    def _note_progress(self) -> None:
        """Do what `note_progress` in key_search.py does."""
        index, world = self.index, self._world
        linked, passed = world.enqueue_put.linked_index, world.dequeue_put.passed_slot
        if passed > index.new_passed:
            with self.lock.guard():
                index.old_linked, index.old_passed = index.new_linked, index.new_passed
                index.new_linked, index.new_passed = linked, passed

    def _drop_settled(self) -> None:
        """Take out files in which nothing waits any more; the last one stays."""
        number = 0
        waiting = self._first_waiting_level()
        while number < len(self._files) - 1:
            if not self._is_settled(number, waiting):
                number += 1
                continue
            self._leaving.append(self._files.pop(number))
            index = self.index
            for name in ("lent", "room", *_COLUMNS):
                column = getattr(index, name)
                column[number:-1] = column[number + 1 :].copy()
            index.file_count = len(self._files)

    def _is_settled(self, number: int, waiting: int) -> bool:
        index = self.index
        if index.last_message[number] < self._world.cleaning.floor:
            return True
        if index.last_level[number] >= waiting or index.old_passed >= index.new_passed:
            return False
        slot = index.latest_ms[number] // self._world.settings.precision_ms
        return bool(index.last_index[number] < index.old_linked and slot < index.new_passed)

    def _first_waiting_level(self) -> int:
        """Return the offset of the first message that waits in any level; else the log's end."""
        found = [self._commitlog.end]
        for level, row in self._rows()[1:]:
            offset = int(self._world.levels.offset[level - 1])
            if offset < self._queues.next_index(row):
                found.append(int(self._queues.read(row, offset, 1)[0]["offset"]))
        return min(found)

    # --- the record

    def note(self, *, clean: bool) -> _Noted | None:
        """Say what a record would say that is written once the log is durable up to now.

        None if it is not worth one. Before a checkpoint is captured.
        """
        if not self.is_used:
            return None
        if clean:
            try:
                self.catch_up()
            except StoreFullError as e:
                log.warning("%s: %s", self._folder, e)
        with self.lock.guard():
            self._drop_settled()
            seen_count = self.index.seen
            due = self._leaving or seen_count > UNRECORDED_MAX
            if not (due or (clean and self._files and seen_count)):
                return None
            files = []
            for number, file in enumerate(self._files):
                files.append((file, [int(getattr(self.index, c)[number]) for c in _COLUMNS]))
            return _Noted(self._cursors(), files, seen_count)

    def _cursors(self) -> dict[str, list[int]]:
        """Return up to which index each queue is indexed, with the message before; by number."""
        cursors, queues = {}, self._queues
        for queue, row in self._rows():
            at = int(self.index.cursor[queue])
            try:
                if at > queues.first_index(row):
                    message = int(queues.read(row, at - 1, 1)[0]["offset"])
                    cursors[str(queue)] = [at, message]
            except CorruptStoreError:
                if queues.first_index(row) < at:
                    raise  # else it was removed just now, and the next opening begins behind it
        return cursors

    def write(self, noted: _Noted | None) -> None:
        """Make the files durable, then the record; behind the checkpoint. Raises FlushFailedError.

        If there is no room for the record, an older one holds, or none.
        """
        if noted is not None:
            try:
                with told_of(self._folder):
                    self._write(noted)
            except StoreFullError as e:
                log.warning("%s: %s", self._folder, e)

    def _write(self, noted: _Noted) -> None:
        rows, is_new = [], False
        for file, values in noted.files:
            if values[0] < 2:
                continue  # made just now; its entries come again
            path = file.map.path
            is_new = is_new or path not in self._synced
            if self._synced.get(path) != values[0]:
                self._disk.sync(file.map, path)
                self._synced[path] = values[0]
            count, code = self._sums.get(path, (1, 0))
            code = _sum_entries(file, count, values[0], code)
            self._sums[path] = values[0], code
            row = {"name": path.name, "room": file.room, "crc": code}
            rows.append(row | dict(zip(_COLUMNS, values, strict=True)))
        if is_new:
            self._disk.sync_folder(self._folder)
        record = {"storeTag": self._tag, "cursors": noted.cursors, "files": rows}
        write_json(self._disk, self._record, sealed(record))
        with self.lock.guard():
            self.index.seen -= noted.seen_count
            leaving = list(self._leaving)
        for file in leaving:
            self._sums.pop(file.map.path, None)
            self._synced.pop(file.map.path, None)
            self._disk.remove(file.map.path)
            self._leaving.remove(file)

    def remove(self) -> None:
        """Leave no file of it: a broker makes its own, of other sizes."""
        with self.lock.guard():
            self.is_used = False
            self._forget()
            self._remove_strangers()
            with suppress(OSError):  # there is none, or somebody else's folder in it
                name, above = self._disk.at(self._folder)
                os.rmdir(name, dir_fd=above)

    def close(self) -> None:
        """Drop all maps."""
        self.index.file_count = 0
        self._files.clear()
        self._leaving.clear()


def _sum_entries(file: _File, start: int, stop: int, code: int) -> int:
    """Return the CRC-32 of what never changes of some entries, behind others with `code`."""
    entries = entries_of(file.map.view, start, stop)
    rows = entries.view(np.uint8).reshape(-1, fmt.KEY_ENTRY_BYTES)
    return zlib.crc32(rows[:, : fmt.KEY_PREVIOUS_AT].tobytes(), code)
