"""The engine: the files, arrays, locks of one open store.

It knows no public call and starts no thread. `meet` is where a kernel's NEED is answered: by a new
segment, a mapping, a row for a topic, a larger set.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.config import Config
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    StoreFullError,
)
from timerstore.services.clock import Clock
from timerstore.services.levels import (
    LEVEL_COUNT,
    LEVEL_FAILED,
    RETRY_WAIT_MS_MAX,
    new_level_table,
)
from timerstore.services.world import World, new_world
from timerstore.timelog.append import NEED as APPEND_NEED
from timerstore.timelog.append import NEED_AT, NEED_COMMITLOG, NEED_NOTHING, NEED_QUEUE, NEED_ROW
from timerstore.timelog.consumequeue import ConsumeQueues
from timerstore.timelog.disk import Disk, MappedFile
from timerstore.timelog.format import (
    BLANK_BYTES,
    LEVEL_COUNT_MAX,
    LEVEL_TOPIC,
    MESSAGE_BYTES_MAX,
    SLOT_BYTES,
)
from timerstore.timelog.jsonfile import read_json, write_json
from timerstore.timelog.kernel import kernel
from timerstore.timelog.message import (
    FOUND_WORDS,
    GOOD,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    read_message,
)
from timerstore.timelog.record import Words
from timerstore.timelog.segments import SegmentedFile
from timerstore.timelog.system import KernelLock, poll_words
from timerstore.wheel import state
from timerstore.wheel.near import new_near_wheel
from timerstore.wheel.sets import grown, new_table
from timerstore.wheel.slots import NO_UNIT, TimerWheel

FORMAT_VERSION: Final = 1
CANCELLED_GROWTH: Final = 4_096
"""Room that is made at once when deletes of an earlier life fill the cancelled set."""
_SIZES: Final = (
    "precision_ms",
    "roll_window_slots",
    "wheel_slot_count",
    "commitlog_segment_bytes",
    "consumequeue_segment_bytes",
    "timerlog_segment_bytes",
)


@kernel
def _read_at(buf: Any, at: int, found: Any) -> int:
    return read_message(buf, at, found, False)


class Engine:
    """One open store."""

    def __init__(self, path: Path, config: Config, clock: Clock, disk: Disk) -> None:
        """Open or make the files; nothing is recovered yet."""
        self.path, self.clock, self.disk = path, clock, disk
        self.config, self.store_tag, self.is_new = _sizes(path, config, disk)
        config = self.config
        self.level_ms = np.array(config.delay_levels_ms(), np.int64)
        self.message_bytes_max = min(
            MESSAGE_BYTES_MAX, config.commitlog_segment_bytes - BLANK_BYTES
        )
        self.commitlog = self._segments("commitlog", config.commitlog_segment_bytes)
        self.had_queues = (path / "consumequeue").is_dir()
        self.had_timerlog = (path / "timerlog").is_dir()
        self.queues = ConsumeQueues(
            disk,
            path / "consumequeue",
            config.consumequeue_segment_bytes,
            open_count_max=config.open_segments_max,
        )
        self.timerlog = self._segments("timerlog", config.timerlog_segment_bytes)
        self.wheel = TimerWheel(disk, path / "timerwheel", config.wheel_slot_count)
        self.near = new_near_wheel(config.precision_ms, config.near_count_max)
        self.levels = new_level_table(self.level_ms, config.level_batch_count)
        self.adopt_levels()
        self._level_files: dict[int, MappedFile] = {}  # what `levels` points into
        self.step_lock, self.append_lock = KernelLock(), KernelLock()
        self.eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.words = self._new_words()
        self.cancelled = new_table(1)
        self.done = new_table(1)
        self.world: World = new_world(
            self.words,
            self.step_lock.words,
            self.append_lock.words,
            self.commitlog.table,
            self.queues.table,
            self.queues.files[0].table,
            self.timerlog.table,
            self.wheel.array,
            self.near,
            self.levels,
            poll_words(self.eventfd),
        )
        self.use_tables(self.cancelled, self.done, 0, 0)
        # What an earlier life copied: L stays at `recovered_copy` until R is past the slot.
        self.recovered_copy, self.recovered_until_slot = -1, -1
        self.recovered_until_level = np.full(LEVEL_COUNT_MAX, -1, np.int64)

    def _segments(self, name: str, segment_bytes: int) -> SegmentedFile:
        count = self.config.open_segments_max
        return SegmentedFile(self.disk, self.path / name, segment_bytes, open_count_max=count)

    def adopt_levels(self) -> None:
        """Give the delay levels that are known their queues; the first put makes the others."""
        queues, levels = self.queues, self.levels
        rows = {int(queues.table.queue_id[row]): row for row in queues.rows(LEVEL_TOPIC)}
        count = max(len(self.level_ms), *(level + 1 for level in rows), 0)
        if count > LEVEL_COUNT_MAX:
            raise NotAStoreError(
                f"{self.path} has {count} delay levels; {LEVEL_COUNT_MAX} are understood. "
                "Let a broker deliver what waits in the others."
            )
        for level, row in rows.items():
            levels.row[level] = row
        levels.words[LEVEL_COUNT] = count

    def level_row(self, level: int) -> int:
        """Return the row of a level's queue, made if needed; levels count from 1."""
        if self.levels.row[level - 1] < 0:
            self.levels.row[level - 1] = self.queues.row(LEVEL_TOPIC, level - 1)
        return int(self.levels.row[level - 1])

    def postpone_level(self, level: int, now_ms: int) -> None:
        """Let a level whose delivery failed wait: half a slot, and twice as long each time."""
        levels = self.levels
        wait_ms = self.precision_ms // 2 << min(int(levels.fail_count[level]), 20)
        levels.fail_count[level] += 1
        levels.retry_ms[level] = now_ms + min(wait_ms, RETRY_WAIT_MS_MAX)

    def _new_words(self) -> Words:
        words = np.zeros(state.WORDS, np.int64)
        words[state.PRECISION] = self.config.precision_ms
        words[state.SLOT_COUNT] = self.config.wheel_slot_count
        words[state.WINDOW] = self.config.roll_window_slots
        words[state.HOP] = max(1, 2 * self.config.roll_window_slots // 3)
        words[state.STORE_TAG] = self.store_tag
        words[state.CLAIM_OFFSET] = NO_UNIT
        words[state.TAKE_LIMIT] = 1 << 62
        return words

    # --- cursors

    @property
    def precision_ms(self) -> int:
        """Time of one slot."""
        return self.config.precision_ms

    @property
    def read_slot(self) -> int:
        """R."""
        return int(self.words[state.READ])

    def set_cursors(self, read_slot: int, queue_index: int, frontier_ms: int) -> None:
        """Begin at R and Q, with nothing claimed. Before any step has run."""
        words = self.words
        words[state.READ] = words[state.CLAIMED] = read_slot
        words[state.READ_CHECKPOINTED] = read_slot
        words[state.SCAN] = read_slot * self.precision_ms
        words[state.GOT] = words[state.LINKED] = queue_index
        words[state.FRONTIER] = max(frontier_ms, read_slot * self.precision_ms - 1)

    def use_tables(
        self, cancelled: Words, done: Words, cancelled_count: int, done_count: int
    ) -> None:
        """Make kernels use these sets; under the step lock once services run."""
        self.cancelled, self.done = cancelled, done
        words = self.words
        words[state.CANCELLED_ADDRESS] = cancelled.ctypes.data
        words[state.CANCELLED_LENGTH] = len(cancelled)
        words[state.CANCELLED_COUNT] = cancelled_count
        words[state.DONE_ADDRESS] = done.ctypes.data
        words[state.DONE_LENGTH] = len(done)
        words[state.DONE_COUNT] = done_count

    def reserve_cancelled(self, count: int) -> None:
        """Make room for `count` more cancelled timers. Under the step lock."""
        words = self.words
        before = self.cancelled
        table = grown(before, int(words[state.CANCELLED_COUNT]) + count + 1)
        if table is not before:
            self.cancelled = table
            words[state.CANCELLED_ADDRESS] = table.ctypes.data
            words[state.CANCELLED_LENGTH] = len(table)

    # --- what kernels need

    def meet(self) -> int:
        """Answer the NEED of a step, and clear it; return which it was.

        Only the thread that runs steps calls this. FLUSHED is left to the caller.
        """
        words = self.words
        need, offset = int(words[state.NEED]), int(words[state.NEED_OFFSET])
        words[state.NEED] = state.NOTHING
        self.levels.words[LEVEL_FAILED] = -1
        if need == state.COMMITLOG_SEGMENT:
            self.commitlog.trim()
            self.prepare_commitlog()
        elif need == state.QUEUE_SEGMENT:
            self.queues.prepare(offset)
        elif need == state.TIMERLOG_SEGMENT:
            self.timerlog.trim()
            number = offset // self.timerlog.segment_bytes
            if offset >= self.timerlog.end:
                self.timerlog.ensure(number)
            else:
                self.timerlog.existing(number)
        elif need == state.COMMITLOG_READ:
            self.commitlog.trim()
            self.commitlog.existing(offset // self.commitlog.segment_bytes)
        elif need == state.TIMER_QUEUE_READ:
            file = self.queues.files[0]
            file.existing(offset // file.segment_bytes)
        elif need == state.LEVEL_READ:
            self._map_level(offset)
        elif need == state.TOPIC:
            self.row_of_message(offset)
        elif need == state.CANCELLED_ROOM:
            with self.step_lock:
                self.reserve_cancelled(CANCELLED_GROWTH)
        elif need == state.NEAR_FULL:
            raise StoreFullError(
                f"More than {self.config.near_count_max} timers fall due at about the same time. "
                "Reopen the store with a larger near_count_max."
            )
        elif need == state.DAMAGED_TIMERLOG:
            raise CorruptStoreError("timerlog", offset, "this is not the unit that was written")
        return need

    def _map_level(self, level: int) -> None:
        """Map the segment that a level wants of its queue."""
        levels = self.levels
        number = int(levels.wanted[level])
        file = self.queues.files[int(levels.row[level])].existing(number)
        with self.step_lock:
            self._level_files[level] = file
            levels.address[level], levels.number[level] = file.address, number

    def prepare_commitlog(self) -> None:
        """Map the segment at the log's end, and the one behind it."""
        number = self.commitlog.end // self.commitlog.segment_bytes
        self.commitlog.ensure(number)
        self.commitlog.ensure(number + 1)

    def meet_append(self) -> None:
        """Make what `append` found missing, when called by a thread that puts."""
        words = self.queues.table.words
        with self.append_lock:  # another thread's append may have come between: then try again
            need, row, at = int(words[APPEND_NEED]), int(words[NEED_ROW]), int(words[NEED_AT])
        if need in (NEED_COMMITLOG, NEED_NOTHING):
            self.prepare_commitlog()
        if need == NEED_COMMITLOG:  # of messages that go together the last may lie further on
            self.commitlog.ensure(at // self.commitlog.segment_bytes)
        if need == NEED_QUEUE:
            self.queues.prepare(row, index=at)
        self.queues.prepare(0)

    def row_of_message(self, offset: int) -> int:
        """Return the queue row of a timer's real topic, made if needed; −1 where it is damaged."""
        view = self.commitlog.view(offset)
        found = np.zeros(FOUND_WORDS, np.int64)
        if _read_at(view.view(np.ndarray), 0, found) != GOOD or found[REAL_TOPIC_BYTES] < 0:
            return -1
        at, count = int(found[REAL_TOPIC_AT]), int(found[REAL_TOPIC_BYTES])
        return self.queues.row(view[at : at + count].tobytes(), max(0, int(found[REAL_QUEUE])))

    def prepare_ahead(self) -> None:
        """Make the segments that will be needed next, off the way of those in a hurry."""
        self.commitlog.prepare_next()
        self.timerlog.prepare_next()
        table = self.queues.table
        for row in np.flatnonzero(table.next_index[: len(self.queues.files)]).tolist():
            self.queues.prepare(row, ahead=True)

    # --- L, and space

    def scan_from(self, read_slot: int, level_offsets: Words, oldest_copy: int) -> int:
        """Return L: the oldest copy whose source is not settled, of this life or an earlier one."""
        unsettled = read_slot <= self.recovered_until_slot
        unsettled |= bool((level_offsets <= self.recovered_until_level).any())
        if self.recovered_copy >= 0 and unsettled:
            return min(oldest_copy, self.recovered_copy)
        return oldest_copy

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files of the store that grow."""
        logs = self.commitlog.disk_bytes + self.timerlog.disk_bytes + self.queues.disk_bytes
        return logs + len(self.wheel.array.slots)

    def pending_count(self, topic: bytes | None = None) -> int:
        """Return the exact number of pending timers."""
        timers, levels = self.queues.table.pending.reshape(2, -1)
        if topic is None:
            count = len(self.queues.files)
            return int(timers[:count].sum() + levels[:count].sum())
        return sum(int(timers[row] + levels[row]) for row in self.queues.rows(topic))

    def close_files(self) -> None:
        """Drop all maps and descriptors without flushing."""
        self.commitlog.close()
        self.queues.close()
        self.timerlog.close()
        self.wheel.close()
        if self.eventfd >= 0:
            os.close(self.eventfd)
            self.eventfd = -1


def _sizes(path: Path, config: Config, disk: Disk) -> tuple[Config, int, bool]:
    """Return the configuration with the sizes that the store was made with, and its tag."""
    record = path / "timerstore.json"
    described = read_json(record)
    if described is not None:
        if described.get("version") != FORMAT_VERSION:
            raise NotAStoreError(
                f"{record} has version {described.get('version')!r}; this program knows "
                f"{FORMAT_VERSION}. Open it with the version that made it."
            )
        try:
            sizes = {name: int(described[name]) for name in _SIZES}
            tag = int(described["store_tag"])
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptStoreError("timerstore.json", 0, f"{e} is missing or no number") from e
        return _with(config, sizes), tag, False
    sizes = {name: getattr(config, name) for name in _SIZES}
    is_new = not (path / "commitlog").is_dir()
    if not is_new:
        sizes |= _broker_sizes(path)
    tag = random.SystemRandom().getrandbits(32)
    write_json(disk, record, {"version": FORMAT_VERSION, "store_tag": tag, **sizes})
    return _with(config, sizes), tag, is_new


def _with(config: Config, sizes: dict[str, int]) -> Config:
    return replace(config, **sizes)  # type: ignore[arg-type]


def _broker_sizes(path: Path) -> dict[str, int]:
    """Read a broker's segment sizes off its files."""
    sizes = {}
    for name, folders in (
        ("commitlog_segment_bytes", [path / "commitlog"]),
        ("timerlog_segment_bytes", [path / "timerlog"]),
        ("consumequeue_segment_bytes", sorted((path / "consumequeue").glob("*/*"))),
    ):
        for folder in folders:
            files = sorted(folder.iterdir()) if folder.is_dir() else []
            if files:
                sizes[name] = files[0].stat().st_size
                break
    wheel = path / "timerwheel"
    if wheel.exists():
        sizes["wheel_slot_count"] = wheel.stat().st_size // SLOT_BYTES // 2
    if not sizes:
        raise InvalidArgumentError(f"{path} holds no segment. Pass a store's directory.")
    return sizes
