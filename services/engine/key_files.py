"""The key index of one store: keeps the files of `index/` up with the queues of what waits.

It follows the timer topic's queue and those of the delay levels, as a broker's follows its log: the
flush thread does it every few moments, and a search does it first. So a put only says whether it
has a key; what stands behind the last one that has is passed, unread. A clean close leaves in
`config/keyindex` which files there are, and up to which index each queue is in them. If that does
not hold, all is made anew from the queues: by a thread that does nothing else, or by the call that
needs it.

Ground rules: everything goes under `lock`, which is taken before any lock of the services, in steps
of `_STEP_COUNT` entries. A file whose last message is done with is dropped.
"""

from __future__ import annotations

import logging
import os
import stat
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError, NotAStoreError, StoreFullError, TimerStoreError
from timerstore.jit.locks import TurnLock
from timerstore.jit.mapping import lend
from timerstore.jit.record import read_only
from timerstore.jit.system import set_thread_name
from timerstore.services.world.background import BackgroundThread, Flag
from timerstore.services.world.clock import Clock
from timerstore.services.world.state import reads_units
from timerstore.services.world.world import World
from timerstore.timelog.files.checkpoint import KEYS_FILE, Stamp, read_derived, write_derived
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.names import INT64_MAX
from timerstore.timelog.files.oserrors import kind_of, told_of
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.smallfile import is_there
from timerstore.timelog.writing.consumequeue import ConsumeQueues
from timerstore.timelog.writing.keyindex import (
    FILE_COUNT_MAX,
    file_bytes,
    header_of,
    index_entries,
    new_key_index,
    pass_keyless,
)

log = logging.getLogger("timerstore")

ROOM_MIN: Final = 1_024
ROOM_MAX: Final = 1 << 22
"""Entries of a file: as many as all others have, so that a store with few keys stays small; 100 MB
at most, because it goes as a whole. Larger ones if there are very many files."""
_MANY_FILES: Final = FILE_COUNT_MAX // 2
_ROOM_OF_MANY: Final = 1 << 24
_STEP_COUNT: Final = 4_096
_WAIT_S: Final = 0.05
"""Entries of a queue that are looked at in one hold of the lock, some 0.3 ms."""
MUCH: Final = 1 << 16
"""So many are looked at by the flush thread at once; if there are more at opening, a thread of its
own looks at them."""
_COLUMNS: Final = ("next_entry", "latest_ms", "last_index", "last_level", "last_message")
_CURSOR: Final = np.dtype("<i8")
_FILE: Final = np.dtype([(name, "<i8") for name in ("name", "room", *_COLUMNS, "crc")])


class _File(NamedTuple):
    """One file of the index."""

    map: MappedFile
    room: int


class KeyFiles:
    """The key index of an engine; any thread may use it."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        queues: ConsumeQueues,
        commitlog: SegmentedFile,
        clock: Clock,
        *,
        is_used: bool,
    ) -> None:
        """Nothing is read yet. Without `is_used` nothing ever is, nor written."""
        self._disk, self._folder, self._left = disk, path / "index", path / KEYS_FILE
        self._queues, self._commitlog, self._clock = queues, commitlog, clock
        self._is_wanted = is_used and disk.writes
        self.is_used = False
        """Whether it is open."""
        self.lock = TurnLock()
        self.index = new_key_index()
        self._files: list[_File] = []
        self._thread: BackgroundThread | None = None
        self._ending = Flag()

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files."""
        return sum(each.map.length for each in self._files)

    # --- opening, closing

    def open(self, world: World, stamp: Stamp | None) -> None:
        """Take what the clean close with that stamp left; else begin anew.

        Before any service runs. O(bytes of the files).
        """
        self._world = world
        if not self._is_wanted:
            return
        self.is_used = True
        mode = self._disk.mode(self._folder)
        if mode and not stat.S_ISDIR(mode):
            raise NotAStoreError(
                f"{self._folder} is {kind_of(mode)}, but must be a folder. Move it away."
            )
        with self.lock.guard():
            try:
                is_whole = stamp is not None and self._load(stamp)
            except (TimerStoreError, OSError):
                is_whole = False
            if not is_whole:
                self._forget()
            self._remove_strangers()

    def _load(self, stamp: Stamp) -> bool:
        """Map the files that a clean close left; False if they are not as it left them."""
        arrays = read_derived(self._disk, self._left, stamp, _CURSOR, _FILE)
        if arrays is None:
            return False
        cursors, rows = arrays
        ends = np.zeros_like(self.index.cursor)
        for queue, row in self._rows():
            ends[queue] = self._queues.next_index(row)
        if cursors.shape != ends.shape or (cursors < 0).any() or (cursors > ends).any():
            return False
        names, rooms, counts = rows["name"], rows["room"], rows["next_entry"]
        sound = len(rows) <= FILE_COUNT_MAX and (names[1:] > names[:-1]).all()
        sound = sound and (names >= 0).all() and (names < 10**17).all()
        sound = sound and (rooms <= _ROOM_OF_MANY).all() and (counts <= rooms).all()
        if not sound or (counts < 1).any():
            return False
        for each in rows:
            path, room = self._folder / f"{each['name']:017d}", int(each["room"])
            if not self._disk.exists(path) or self._disk.size(path) != file_bytes(room):
                return False
            file = _File(self._disk.map_existing(path, file_bytes(room)), room)
            if _sum(file) != each["crc"]:
                return False
            self._disk.allocate(file.map, file.map.length)
            self._add(file, [int(each[name]) for name in _COLUMNS])
        self.index.cursor[:] = cursors
        return True

    def write(self, stamp: Stamp) -> None:
        """Leave the index to the next life, at a clean close, when nobody calls any more.

        Durable on return. If there is no room, the next life makes it anew, as it does if that
        takes no time. O(bytes of the files). Raises FlushFailedError.
        """
        if not self.is_used:
            return
        for queue, row in self._rows():
            pass_keyless(self.index, self._queues.table, queue, row)
        if not (self._files or self.index.cursor.sum() > MUCH):
            return
        rows = np.zeros(len(self._files), _FILE)
        try:
            with told_of(self._folder):
                for number, file in enumerate(self._files):
                    self._disk.sync(file.map, file.map.path)
                    rows[number]["name"], rows[number]["room"] = file.map.path.name, file.room
                    rows[number]["crc"] = _sum(file)
                    for name in _COLUMNS:
                        rows[number][name] = getattr(self.index, name)[number]
                if self._files:
                    self._disk.sync_folder(self._folder)
                write_derived(self._disk, self._left, stamp, self.index.cursor, rows)
        except StoreFullError as e:
            log.warning("%s: %s", self._folder, e)

    def _forget(self) -> None:
        """Begin without a file."""
        self._files.clear()
        self.index.file_count = self.index.word = self.index.unmapped = 0
        self.index.old_linked = self.index.old_passed = 0
        self.index.new_linked = self.index.new_passed = 0
        self.index.cursor[:] = 0

    def _remove_strangers(self) -> None:
        """Remove what is in the folder and no part of the index."""
        known = {each.map.path.name for each in self._files}
        for name in sorted(self._disk.names(self._folder)):
            path = self._folder / name
            if name not in known and is_there(path, self._disk.at, stat.S_ISREG):
                self._disk.remove(path)

    def remove(self) -> None:
        """Leave no file of it: a broker makes its own, of other sizes."""
        with self.lock.guard():
            self.is_used = False
            self._forget()
            self._remove_strangers()
            if self._disk.exists(self._left):
                self._disk.remove(self._left)
            with suppress(OSError):  # there is none, or somebody else's folder in it
                name, above = self._disk.at(self._folder)
                os.rmdir(name, dir_fd=above)

    def close(self) -> None:
        """Drop all maps."""
        self.index.file_count = 0
        self._files.clear()

    # --- in the background

    def start(self, on_error: Callable[[BaseException], None]) -> None:
        """Have a thread look at what was not looked at yet, if it is much."""
        if self.is_used and self._behind_count() > MUCH:
            self._thread = BackgroundThread("timerstore-keys", self._make_anew, on_error)
            self._thread.start()

    def stop(self) -> None:
        """Stop that thread; the next life goes on where it is."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _make_anew(self) -> None:
        set_thread_name("keys")
        while reads_units(self._world.prefetch) and not self._ending.is_set():
            self._ending.wait(_WAIT_S)
        with suppress(StoreFullError):  # the flush thread tries again, and says so
            self.catch_up()

    @property
    def left_count(self) -> int:
        """How many entries of queues that thread has still to look at."""
        is_working = self._thread is not None and self._thread.is_alive
        return self._behind_count() if is_working else 0

    def _behind_count(self) -> int:
        count, queues = 0, self._queues
        for queue, row in self._rows():
            done = max(int(self.index.cursor[queue]), queues.first_index(row))
            count += max(0, int(queues.table.keyless_from[row]) - done)
        return count

    def follow(self) -> None:
        """Look at some of what was put since, for the flush thread. Raises StoreFullError."""
        if self._thread is None or not self._thread.is_alive:
            self.catch_up(MUCH)

    # --- following the queues

    def _rows(self) -> list[tuple[int, int]]:
        """Return each queue that is followed, 0 the timers', with its row."""
        levels = enumerate(self._world.levels.row.tolist(), 1)
        return [(0, 0), *((level, row) for level, row in levels if row >= 0)]

    def catch_up(self, count_max: int = INT64_MAX) -> None:
        """Index what was put up to now, so many entries at most. Raises StoreFullError."""
        if not self.is_used:
            return
        self._note_progress()
        for queue, row in self._rows():
            while count_max > 0 and self._is_behind(queue, row) and not self._ending.is_set():
                with self.lock.guard():
                    if self.is_used:
                        self._step(queue, row)
                count_max -= _STEP_COUNT

    def catch_up_locked(self) -> None:
        """Index all that was put up to now, for who holds the lock. Raises StoreFullError."""
        for queue, row in self._rows():
            while self._is_behind(queue, row):
                self._step(queue, row)

    def _is_behind(self, queue: int, row: int) -> bool:
        return self.is_used and bool(self.index.cursor[queue] < self._queues.next_index(row))

    def _step(self, queue: int, row: int) -> None:
        """Index the next entries of a queue."""
        queues, first = self._queues, self._queues.first_index(row)
        if self.index.cursor[queue] < first:  # what is before was removed
            self.index.cursor[queue] = first
        left = pass_keyless(self.index, queues.table, queue, row)
        if left == 0:
            return
        at = int(self.index.cursor[queue])
        count = min(left, queues.segment_entries - at % queues.segment_entries, _STEP_COUNT)
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

    def drop_settled(self) -> None:
        """Remove files in which nothing waits any more; the last one stays."""
        if not self.is_used:
            return
        index, number, leaving = self.index, 0, list[_File]()
        with self.lock.guard():
            waiting = self._first_waiting_level()
            while number < len(self._files) - 1:
                if not self._is_settled(number, waiting):
                    number += 1
                    continue
                leaving.append(self._files.pop(number))
                for name in ("lent", "room", *_COLUMNS):
                    column = getattr(index, name)
                    column[number:-1] = column[number + 1 :].copy()
                index.file_count = len(self._files)
        for file in leaving:
            self._disk.remove(file.map.path)

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


def _sum(file: _File) -> int:
    return zlib.crc32(file.map.view)  # type: ignore[arg-type]
