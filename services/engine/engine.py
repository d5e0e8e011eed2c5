"""The engine: the files, arrays, locks of one open store.

It knows no public call and starts no thread. `provide` answers a kernel's need: by a new segment, a
mapping, a row for a topic, a larger set.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from timerstore.errors import InvalidArgumentError, NotAStoreError
from timerstore.jit.host import wake_event
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.mapping import lend
from timerstore.jit.record import ALONE, Words, acting_as, add_to_word
from timerstore.services.engine.counter_file import CounterFile
from timerstore.services.engine.first_pages import FirstPages
from timerstore.services.engine.holds import Holds
from timerstore.services.engine.key_files import KeyFiles
from timerstore.services.engine.rebuild import QUEUES, TIMERS, Damage, Wanted
from timerstore.services.engine.sizes import find_sizes
from timerstore.services.world import needs
from timerstore.services.world.background import Failure
from timerstore.services.world.claims import FIRST_COUNT, begin_at
from timerstore.services.world.clock import Clock
from timerstore.services.world.state import (
    ENQUEUE_GET,
    SERVICE_NAMES,
    OffsetMap,
    ServiceThread,
    new_level_table,
)
from timerstore.services.world.world import WAKE_COUNT, World, new_world
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NO_TAG, read_one
from timerstore.timelog.bytes.limits import content_bytes_max, message_bytes_max
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.folders import EventFile
from timerstore.timelog.files.memory import MapShare, maps_allowed
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.timerlog import TimerLog
from timerstore.timelog.writing.append import (
    NEED_COMMITLOG,
    NEED_NOTHING,
    NEED_QUEUE,
    NEED_SMALLER,
    Stage,
)
from timerstore.timelog.writing.consumequeue import TIMER_ROW, ConsumeQueues
from timerstore.values.config import Config
from timerstore.wheel.cancelled import CancelledTimers, new_table
from timerstore.wheel.near import new_near_wheel
from timerstore.wheel.timerwheel import Settings, TimerWheel

_MAPS_MIN: Final = 3 * 6
"""Of each log one that each service may be reading, cleaning too: with fewer, two of them would
each drop what the other needs next, for ever."""
CANCELLED_GROWTH: Final = 4_096
"""Room that is made at once when deletes of an earlier life fill the cancelled set."""
log = logging.getLogger("timerstore")
Log = TypeVar("Log", bound=SegmentedFile)


@kernel_ahead
def _step_count(thread: ServiceThread) -> int:
    """Return `step`, behind a full fence: a service that begins a step now sees what was taken out
    of a table before.
    """
    return add_to_word(thread, "step", 0)


def _use_map(known: OffsetMap, table: Words, count: int) -> None:
    with acting_as(ALONE):
        lend(known.lent, 0, table)
        known.length, known.count = len(table), count


class Engine:
    """One open store."""

    def __init__(
        self,
        path: Path,
        config: Config,
        clock: Clock,
        disk: Disk,
        rebuild: frozenset[str] = frozenset(),
    ) -> None:
        """Open or make the files; nothing is recovered yet.

        `rebuild`: the indexes that are to be made anew; what is there of them does not count.
        """
        self.path, self.clock, self.disk, self.rebuild = path, clock, disk, rebuild
        self.failure = Failure()
        self._disk_bytes = -1, 0  # `Disk.change_count` when they were counted, and how many
        self.wanted = Wanted(disk, path)
        self.damaged_units = list[int]()  # that claims have met, and nobody has named yet
        # Lost messages are counted once recovery has counted what is pending without them.
        self.count_lost, self.uncounted, self.unattributed_count = True, set[int](), 0
        made = find_sizes(path, config, disk)
        self.config, self.identity, self.is_new, self.restored = made
        self.store_tag, config = self.identity.store_tag, self.config
        self.level_ms = np.array(config.delay_levels_ms(), np.int64)
        self.content_bytes_max = content_bytes_max(config.commitlog_segment_bytes)
        self.message_bytes_max = message_bytes_max(config.commitlog_segment_bytes)
        sizes = (
            config.commitlog_segment_bytes,
            config.consumequeue_segment_bytes,
            config.timerlog_segment_bytes,
        )
        self.maps = MapShare(max(maps_allowed(max(sizes)), _MAPS_MIN))
        self.commitlog = self._log(SegmentedFile, "commitlog", config.commitlog_segment_bytes)
        self.commitlog.gaps_are_zeros = True
        self.damage = Damage(path, self.commitlog)
        timers_gone, queues_gone = TIMERS in rebuild, QUEUES in rebuild
        self.had_queues = disk.exists(path / "consumequeue") and not queues_gone
        self.had_timerlog = disk.exists(path / "timerlog") and not timers_gone
        self.queues = ConsumeQueues(
            disk,
            path / "consumequeue",
            config.consumequeue_segment_bytes,
            self.maps,
            is_gone=queues_gone,
        )
        self.counters = CounterFile(disk, path / "config" / "topiccounts", self.queues)
        self.timerlog = self._log(TimerLog, "timerlog", config.timerlog_segment_bytes, timers_gone)
        self.holds = Holds(self.commitlog, self.timerlog)
        self.first_pages = FirstPages(disk, path, self.timerlog, self.commitlog)
        wheel = path / "timerwheel"
        self.wheel = TimerWheel(disk, wheel, config.wheel_slot_count, is_gone=timers_gone)
        self.sequence = 0
        """The number of the last checkpoint."""
        self.near = new_near_wheel(
            config.precision_ms, config.near_count_max, config.wheel_slot_count // 2
        )
        self.levels = new_level_table(self.level_ms, config.level_batch_count)
        self.adopt_levels()
        self._level_files: dict[int, MappedFile] = {}  # what `levels` points into
        self._events = [EventFile() for _ in SERVICE_NAMES]
        self.eventfds = [each.fileno() for each in self._events]
        self.cancelled = CancelledTimers()  # under fire once services run
        self.world: World = new_world(
            Settings(
                precision_ms=config.precision_ms,
                slot_count=config.wheel_slot_count,
                window_slots=config.roll_window_slots,
                hop_slots=self.identity.roll_hop_slots,
                store_tag=self.store_tag,
            ),
            self.commitlog.shared_table,
            self.queues.table,
            self.queues.files[0].shared_table,
            self.timerlog.shared_table,
            self.wheel.array,
            self.near,
            self.levels,
            self.cancelled.set,
            self.cancelled.fire_lock,
            self.eventfds,
        )
        self.services: list[ServiceThread] = [
            getattr(self.world, name.replace("-", "_")).thread for name in SERVICE_NAMES
        ]
        self.use_done(new_table(1), 0)
        self.use_hopped(new_table(1), 0)
        self.hopped_from, self.hopped_until = 0, 0
        """An earlier life's hops cursor, which is kept until the read cursor is at that slot."""
        self.keys = KeyFiles(
            *(disk, path, self.queues, self.commitlog, clock), is_used=config.key_index
        )
        # What an earlier life copied: the copies cursor stays at `recovered_copy` until the read
        # cursor is past each source's slot, or the floor past the source.
        self.recovered_copy = -1
        self.keeps_mark = False
        """Some of these copies are a broker's and name no source: until they are settled, the next
        opening after a kill has to read the whole log again to know them."""
        self.recovered_sources = np.zeros((0, 2), np.int64)  # offset and slot, in that order
        self.recovered_until_level = np.full(fmt.LEVEL_COUNT_MAX, -1, np.int64)

    def _log(self, kind: type[Log], name: str, segment_bytes: int, is_gone: bool = False) -> Log:
        return kind(self.disk, self.path / name, segment_bytes, self.maps, is_gone=is_gone)

    def adopt_levels(self) -> None:
        """Give the delay levels that are known their queues; the first put makes the others."""
        queues, levels = self.queues, self.levels
        rows = {int(queues.table.queue_id[row]): row for row in queues.rows(fmt.LEVEL_TOPIC)}
        count = max(len(self.level_ms), *(level + 1 for level in rows), 0)
        if count > fmt.LEVEL_COUNT_MAX:
            raise NotAStoreError(
                f"{self.path} has {count} delay levels, and timerstore can deliver at most "
                f"{fmt.LEVEL_COUNT_MAX}. Let a broker deliver what waits in the others."
            )
        for level, row in rows.items():
            levels.row[level] = row
        levels.count = count

    def open_reader(self, *, shares: bool = True) -> StoreReader:
        """Return a reader of the store's files as they are; it lists all. See `StoreReader`."""
        return StoreReader(
            self.path,
            self.level_ms,
            precision_ms=self.precision_ms,
            folder=self.disk.folder,
            shares=shares,
        )

    def level_row(self, level: int) -> int:
        """Return the row of a level's queue, made if needed; levels count from 1."""
        if self.levels.row[level - 1] < 0:
            self.levels.row[level - 1] = self.queues.row(fmt.LEVEL_TOPIC, level - 1)
        return int(self.levels.row[level - 1])

    # --- cursors

    @property
    def precision_ms(self) -> int:
        """Time of one slot."""
        return self.config.precision_ms

    @property
    def hop_ms(self) -> int:
        """How far a roll of ours hops."""
        return self.world.settings.hop_slots * self.precision_ms

    @property
    def read_slot(self) -> int:
        """The read cursor: all slots before it have fired."""
        return self.world.dequeue_put.passed_slot

    @property
    def set_back_ms(self) -> int:
        """How far the clock is behind what it said before; 0 if that is less than a slot. O(1).

        Until it has caught up no message grows older, and the read cursor stays, so nothing goes.
        """
        latest_ms = max(self.queues.table.stored_ms, self.read_slot * self.precision_ms)
        set_back_ms = latest_ms - self.clock.now_ms
        return set_back_ms if set_back_ms >= self.precision_ms else 0

    def set_cursors(
        self, passed_slot: int, queue_index: int, frontier_ms: int, floor: int = 0
    ) -> None:
        """Set the cursors and the floor, with nothing claimed. Before any step has run."""
        world = self.world
        with acting_as(ALONE):
            world.dequeue_get.first_max = FIRST_COUNT
            begin_at(world, passed_slot)
            world.dequeue_put.frontier_ms = max(frontier_ms, passed_slot * self.precision_ms - 1)
            world.enqueue_get.fetched_index = world.enqueue_put.linked_index = queue_index
            world.cleaning.floor = floor
            world.cleaning.timerlog_start = self.timerlog.start

    def use_done(self, done: Words, count: int) -> None:
        """Make kernels pass by the sources in this map; before services run."""
        self.done = done
        _use_map(self.world.done, done, count)

    def use_hopped(self, hopped: Words, count: int) -> None:
        """Make kernels pass by units that have a later one in this map; before services run."""
        self.hopped = hopped
        _use_map(self.world.hopped, hopped, count)

    # --- what kernels need

    def need(self, service: int) -> int:
        """Return what a service waits for, see needs.py."""
        return self.services[service].need

    def wake(self, service: int) -> None:
        """Wake a service's thread if it sleeps."""
        thread = self.services[service]
        if thread.sleeping_until_ms and self.eventfds:
            thread.sleeping_until_ms = 0
            wake_event(self.eventfds[service])

    def wake_for(self, due_ms: int) -> None:
        """Wake who sleeps too long for what was appended, due at `due_ms`."""
        behind = self.queues.table.next_index[0] - self.world.enqueue_get.fetched_index
        until_ms = self.services[ENQUEUE_GET].sleeping_until_ms
        if until_ms and (due_ms < until_ms or behind >= WAKE_COUNT):
            self.wake(ENQUEUE_GET)

    def needing(self) -> int:
        """Return a service that waits for something, or −1."""
        return next((i for i in range(len(self.services)) if self.need(i)), -1)

    def forget_need(self, service: int) -> None:
        """Clear a service's need, which somebody else has answered."""
        with acting_as(service):
            self.services[service].need = needs.NOTHING

    # --- the end

    def stop(self, error: BaseException) -> None:
        """Have the next call raise what ended a background thread, or made flushing impossible."""
        self.failure.keep(error)
        self.end_short_way()
        fields = {"store": str(self.path), "stopped_by": repr(error)}
        log.error("%s has stopped: %r", self.path, error, exc_info=error, extra=fields)

    def end_short_way(self) -> None:
        """Let no call go its short way any more (`short_way.py`, `timers.py`).

        Who is on it has passed the gate, or keeps the GIL.
        """
        self.world.callers.short_way_ended = 1

    # --- unmapping

    def let_go(self) -> None:
        """Keep to the share of maps; unmap what was dropped, once no step may look into it.

        Not while holding a lock of the services. If a signal ends it, all of that stays mapped
        until the next call.
        """
        self.maps.keep()
        logs = self.commitlog, self.timerlog, self.queues.files[TIMER_ROW]
        ended = [log.seal() for log in logs]
        if any(ended):
            self.wait_for_steps()
            for log, epochs in zip(logs, ended, strict=True):
                log.release(epochs)

    def wait_for_steps(self) -> None:
        """Return once every step of a service has ended that was under way."""
        for service in self.services:
            before = _step_count(service)
            while before & 1 and _step_count(service) == before:
                time.sleep(0.00005)

    def map_level(self, level: int) -> None:
        """Map the segment that a level wants of its queue; by the thread that delivers it."""
        levels = self.levels
        number = int(levels.wanted[level])
        file = self.queues.existing(int(levels.row[level]), number)
        self._level_files[level] = file
        lend(levels.lent, level, file.view)
        levels.number[level] = number

    def prepare_commitlog(self) -> None:
        """Map the segment at the log's end.

        Not the one behind it: a full disk would refuse what there is room for.
        """
        self.commitlog.prepare_end(fmt.SEALED_BLANK_BYTES)

    def provide_append(self, stage: Stage) -> None:
        """Make what `append` found missing for a stage, when called by a thread that puts."""
        need, row = stage.need, stage.need_row
        at = stage.need_at
        if need == NEED_SMALLER:
            raise InvalidArgumentError(
                f"The message is larger than a segment, which has {self.commitlog.segment_bytes} "
                "bytes. Shorten it, or make a store with larger segments."
            )
        if need in (NEED_COMMITLOG, NEED_NOTHING):
            if need == NEED_COMMITLOG:
                self.commitlog.make_room(at + 1)
            self.prepare_commitlog()
        if need == NEED_QUEUE:
            self.queues.prepare(row, index=at)
        self.queues.prepare(0)

    def row_of_message(self, offset: int) -> int:
        """Return the queue row of a timer's real topic, made if needed; −1 if it is damaged."""
        view = self.commitlog.view(offset)
        found = MessageParts()
        if read_one(view, 0, offset, NO_TAG, found, False) != GOOD or found.real_topic_bytes < 0:
            return -1
        at, count = found.real_topic_at, found.real_topic_bytes
        return self.queues.row(view[at : at + count].tobytes(), max(0, found.real_queue))

    def prepare_ahead(self) -> None:
        """Make segments and room for cancels that will be needed next, before anybody waits."""
        self.commitlog.prepare_next()
        self.timerlog.prepare_next()
        self.queues.prepare_ahead()
        self.cancelled.prepare()

    # --- copies cursor, hops cursor, space

    def scan_from(self, read_slot: int, floor: int, level_offsets: Words, oldest_copy: int) -> int:
        """Return the copies cursor: the oldest copy, of any life, whose source is not settled."""
        if self.recovered_copy >= 0 and self.is_unsettled(read_slot, floor, level_offsets):
            return min(oldest_copy, self.recovered_copy)
        return oldest_copy

    def keep_hops(self, read_slot: int, hops_from: int, claimed_slot: int) -> tuple[int, int]:
        """Return the hops cursor with the claim cursor of its time, an earlier life's too.

        A unit does not say from which slot it hopped. So an earlier life's hops cursor holds until
        the read cursor has passed all slots that were claimed when it was captured.
        """
        if read_slot >= self.hopped_until:
            return hops_from, claimed_slot
        return min(hops_from, self.hopped_from), max(claimed_slot, self.hopped_until)

    def is_unsettled(self, read_slot: int, floor: int, level_offsets: Words) -> bool:
        """Tell whether a source that has its copy from an earlier life may be met again."""
        unsettled = self.last_recovered_source(read_slot) >= floor
        return unsettled or bool((level_offsets <= self.recovered_until_level).any())

    def last_recovered_source(self, read_slot: int) -> int:
        """Return the last message with a copy of an earlier life that may be met again; or −1."""
        offset, slot = self.recovered_sources.T
        return int(offset[slot >= read_slot].max(initial=-1))

    @property
    def disk_bytes(self) -> int:
        """Bytes that all files of the store that grow take of the disk.

        They are counted anew, O(segments), if any took or gave back blocks since the last call.
        """
        count = self.disk.change_count
        if count != self._disk_bytes[0]:
            logs = self.commitlog.disk_bytes + self.timerlog.disk_bytes + self.queues.disk_bytes
            self._disk_bytes = count, logs + self.wheel.disk_bytes + self.keys.disk_bytes
        return self._disk_bytes[1]

    def pending_count(self, topic: bytes | None = None) -> int:
        """Return the exact number of pending timers."""
        timers, levels = self.queues.table.pending.reshape(2, -1)
        if topic is None:
            count = len(self.queues.files)
            return int(timers[:count].sum() + levels[:count].sum()) - self.unattributed_count
        return sum(int(timers[row] + levels[row]) for row in self.queues.rows(topic))

    def close_files(self) -> None:
        """Drop all maps and descriptors without flushing."""
        self.first_pages.stop()
        self.commitlog.close()
        self.queues.close()
        self.keys.close()
        self.timerlog.close()
        self.wheel.close()
        self.eventfds.clear()
        for each in self._events:
            each.close()
