"""One service by itself: an engine without threads, whose rings, logs or slots a test fills.

It alone knows how services keep their state; the tests name cursors, rings or counters.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tests import naive
from tests.kernels import kernel
from tests.small_store import small
from tests.wheel_checks import check_cancelled, check_near
from timerstore import ManualClock
from timerstore.jit.mapping import lend
from timerstore.jit.record import ALONE, acting_as
from timerstore.services.engine.engine import Engine
from timerstore.services.running.runner import provide
from timerstore.services.running.steps import ONE_STEP, run
from timerstore.services.world import needs, state
from timerstore.services.world.world import World
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.wheel import cancelled as sets
from timerstore.wheel import near
from timerstore.wheel.cancelled import CancelledSet, CancelledTimers, cancelled_remove
from timerstore.wheel.timerwheel import Slot

PRECISION_MS = 100
START_SLOT = 17_000_000_000
START_MS = START_SLOT * PRECISION_MS
CONFIG = small(
    4_096,
    200,
    520,
    precision_ms=PRECISION_MS,
    roll_window_slots=12,
    near_count_max=1 << 14,
    delay_levels="1s 5s 1m",
)
RING_COUNT = state.RING_COUNT
ENQUEUE_GET, ENQUEUE_PUT = state.ENQUEUE_GET, state.ENQUEUE_PUT
DEQUEUE_GET, DEQUEUE_PUT = state.DEQUEUE_GET, state.DEQUEUE_PUT
DELIVER_LEVELS = state.DELIVER_LEVELS

RINGS = {
    "enqueue": state.EnqueueRing,
    "late": state.LateRing,
    "dequeue": state.DequeueRing,
}
CURSORS = {
    "recovering": "settings.recovering",
    "got": "enqueue_get.fetched_index",
    "pass_index": "enqueue_get.lost_index",
    "linked": "enqueue_put.linked_index",
    "linked_count": "enqueue_put.linked_count",
    "collisions": "enqueue_put.collision_count",
    "claimed": "dequeue_get.claimed_slot",
    "walked": "dequeue_get.walked_slot",
    "owed_slot": "dequeue_get.owed_slot",
    "walks": "dequeue_get.is_walking",
    "first_count": "dequeue_get.first_count",
    "first_max": "dequeue_get.first_max",
    "touch_ns": "dequeue_get.touch_ns",
    "read": "dequeue_put.passed_slot",
    "frontier": "dequeue_put.frontier_ms",
    "hops": "dequeue_get.hop_count",
    "floor": "cleaning.floor",
    "is_cold": "prefetch.is_active",
    # of the service that is played
    "fired": "counts.fired_count",
    "dropped": "counts.dropped_count",
    "lateness_sum": "counts.lateness_sum_ms",
    "lateness_max": "counts.lateness_max_ms",
}
NEEDS = {
    needs.NOTHING: "",
    needs.COMMITLOG_SEGMENT: "commitlog segment",
    needs.QUEUE_SEGMENT: "queue segment",
    needs.TIMERLOG_SEGMENT: "timerlog segment",
    needs.COMMITLOG_READ: "commitlog read",
    needs.TIMER_QUEUE_READ: "timer queue read",
    needs.TOPIC: "topic",
    needs.CANCELLED_ROOM: "cancelled room",
    needs.DAMAGED_TIMERLOG: "damaged timerlog",
    needs.LOST: "lost",
    needs.BAD_ENTRY: "bad entry",
    needs.LEVEL_READ: "level read",
    needs.BAD_LEVEL_ENTRY: "bad level entry",
}
WITHOUT_PLACE = {"cancelled room", "lost"}
WITHOUT_PLACE |= {"commitlog segment", "queue segment"}


def near_entries(wheel: near.NearWheel) -> tuple[Any, Any]:
    """The due times and messages of all that waits in a near wheel's buckets, in no order."""
    due_ms, messages = np.empty((2, wheel.count), np.int64)
    near.list_entries(wheel, due_ms, messages)
    return due_ms, messages


@kernel
def _remove(cancelled: CancelledSet, high: int, low: int) -> bool:
    return cancelled_remove(cancelled, high, low)


def forget_cancelled(timers: CancelledTimers, high: int, low: int) -> bool:
    """Have an identity leave the cancelled set, held or not; was it there?"""
    with acting_as(ALONE):
        return bool(_remove(timers.set, high, low))


def step(world: World, service: int, now_ms: int) -> int:
    """Run one step of one service; return the work done. See its need afterwards."""
    return int(run(world, service, service, now_ms, ONE_STEP))


class Alone:
    """A store's engine, of which one service is run."""

    def __init__(self, service: int, disk: Disk | None = None, **settings: Any) -> None:
        self.service = service
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "s"
        self.clock = ManualClock(START_MS)
        config = replace(CONFIG, **settings)
        self.engine = Engine(self.path, config, self.clock, disk or QuietDisk())
        self.engine.set_cursors(START_SLOT, 0, START_MS - 1)
        self.tag = self.engine.store_tag
        self.index_of: dict[int, int] = {}  # of each message that was put, by its offset

    def __enter__(self) -> "Alone":
        self._acting = acting_as(ALONE)  # the test; the service says itself who it is
        self._acting.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._acting.__exit__(None, None, None)
        self.engine.close_files()
        self._folder.cleanup()

    def step(self, now_ms: int) -> int:
        """Run one step of the service; return the work done."""
        self.clock._now_ms = now_ms
        return step(self.engine.world, self.service, now_ms)

    # --- needs

    def thread(self, service: int) -> Any:
        """What a service has as every one."""
        return self.engine.services[service]

    @property
    def _mine(self) -> Any:
        return self.thread(self.service)

    @property
    def need(self) -> tuple[str, int]:
        """What the service waits for, and where."""
        name = NEEDS[self._mine.need]
        return name, 0 if not name or name in WITHOUT_PLACE else self._mine.need_offset

    def meet(self) -> None:
        """Answer the need, as its thread does."""
        provide(self.engine, self.service)

    def clear_need(self) -> None:
        """Take the need back without an answer."""
        self._mine.need = needs.NOTHING

    def lost(self) -> list[int]:
        """The messages that the service passed by, and that nobody has named."""
        rows = self._mine.lost.reshape(-1, state.LOST_COLUMNS)
        return [int(each) for each in rows[: self._mine.lost_count, state.LOST_MESSAGE]]

    def lose(self, message: int, info: int) -> None:
        """Have the service pass a message by, and ask for it to be named."""
        self._mine.lost[state.LOST_MESSAGE], self._mine.lost[state.LOST_INFO] = message, info
        self._mine.lost_count = 1
        self._mine.unreadable_count += 1
        self._mine.need = needs.LOST

    def name_lost(self) -> None:
        """Say that they were named."""
        self._mine.lost_count = 0
        self.clear_need()

    @property
    def unreadable_count(self) -> int:
        """How many messages the service passed by."""
        return int(self._mine.unreadable_count)

    # --- cursors

    def _place(self, name: str) -> tuple[Any, str]:
        record, field = CURSORS[name].split(".")
        if record == "counts":
            own = "dequeue_put" if self.service == DEQUEUE_PUT else "deliver_levels"
            return getattr(self.engine.world, own).counts, field
        return getattr(self.engine.world, record), field

    def cursor(self, name: str) -> int:
        """A cursor or a counter by its name."""
        record, field = self._place(name)
        return int(getattr(record, field))

    def set_cursors(self, **cursors: int) -> None:
        """Set cursors or counters by name."""
        for name, value in cursors.items():
            record, field = self._place(name)
            setattr(record, field, value)

    def get_level(self, name: str) -> int:
        """A word of the delay levels by its name."""
        return int(getattr(self.engine.levels, name))

    def set_level(self, **words: int) -> None:
        """Set words of the delay levels by name."""
        for name, value in words.items():
            setattr(self.engine.levels, name, value)

    def level_offsets(self, count: int) -> list[int]:
        """How far each delay level was delivered."""
        return [int(each) for each in self.engine.levels.offset[:count]]

    def slot_column(self, name: str) -> list[int]:
        """A column of the near wheel's slots, by the slot's place."""
        return [int(each) for each in getattr(self.engine.near, name)]

    def begin_slots(self, start: int, stop: int) -> None:
        """Let slots be claimed that hold nothing."""
        near = self.engine.near
        places = np.arange(start, stop) % len(near.waiting)
        near.first_copy[places] = near.first_hop[places] = 1 << 62
        near.owed[places] = NO_UNIT

    def emptied(self) -> list[int]:
        """For each ring the millisecond before which its buckets are empty."""
        return [int(ms) for ms in self.engine.world.dequeue_get.emptied_ms]

    def set_slot_column(self, name: str, slot: int, value: int) -> None:
        """Set what a column says of one claimed slot."""
        self.set_place(name, slot % len(self.engine.near.waiting), value)

    def set_place(self, name: str, place: int, value: int) -> None:
        """Set what a column says of one place."""
        getattr(self.engine.near, name)[place] = value

    def near_messages(self) -> list[tuple[int, int]]:
        """(due time, message) of all that waits in the near wheel's buckets, in no order."""
        check_near(self.engine.near)
        due_ms, messages = near_entries(self.engine.near)
        return sorted(zip(due_ms.tolist(), messages.tolist(), strict=True))

    # --- rings

    def begin_ring(self, ring: str, at: int) -> None:
        """Let an empty ring's next entry be the one with this number."""
        self._ends(ring).head = self._ends(ring).tail = at

    def _ends(self, ring: str) -> state.Ends:
        ends: state.Ends = getattr(self.engine.world, f"{ring}_ring").ends
        return ends

    def _columns(self, ring: str) -> list[Any]:
        held = getattr(self.engine.world, f"{ring}_ring")
        return [getattr(held, name) for name in RINGS[ring].__annotations__ if name != "ends"]

    def waiting(self, ring: str) -> int:
        """How many entries are in a ring."""
        return self._ends(ring).tail - self._ends(ring).head

    def push(self, ring: str, rows: Iterable[Iterable[int]]) -> None:
        """Put entries into a ring."""
        for row in rows:
            for column, value in zip(self._columns(ring), row, strict=True):
                column[self.tail(ring) % RING_COUNT] = value
            self._ends(ring).tail += 1
        assert self.waiting(ring) <= RING_COUNT

    def tail(self, ring: str) -> int:
        """The number of a ring's next entry."""
        return self._ends(ring).tail

    def leave_room(self, ring: str, room: int) -> None:
        """Let a ring's consumer be so far behind that there is room for so many entries alone."""
        self._ends(ring).head = self.tail(ring) + room - RING_COUNT

    def since(self, ring: str, number: int) -> list[list[int]]:
        """The entries of a ring from this number on."""
        assert 0 <= self.waiting(ring) <= RING_COUNT
        columns = self._columns(ring)
        return [
            [int(column[at % RING_COUNT]) for column in columns]
            for at in range(number, self.tail(ring))
        ]

    def pop(self, ring: str, count: int) -> None:
        """Take entries out of a ring."""
        self._ends(ring).head += min(count, self.waiting(ring))

    # --- the cancelled set, and what an earlier life did

    def cancelled(self) -> set[tuple[int, int]]:
        """The entries of the cancelled set, whose counts agree."""
        check_cancelled(self.engine.cancelled)
        table = self.engine.cancelled.table.reshape(-1, sets.SET_ENTRY_WORDS)
        return {(int(high), int(low)) for high, low in table.tolist() if high or low}

    @property
    def held_from(self) -> int:
        """The oldest delete of a delay level's message that is held."""
        return int(self.engine.cancelled.set.held_from)

    def use_sets(
        self,
        cancelled: Iterable[tuple[int, int]] = (),
        done: dict[int, int] | None = None,
        held_from: int = 0,
    ) -> None:
        """Have this cancelled set, and these copies of sources; −2: it is held."""
        timers = self.engine.cancelled
        for high, low in self.cancelled():
            forget_cancelled(timers, -1 if high == -2 else high, low)
        entries = np.array(sorted(cancelled), np.int64).reshape(-1, 2)
        held = entries[:, 0] == -2
        timers.add(entries[~held, 0].copy(), entries[~held, 1].copy())
        timers.add_held(entries[held, 1].copy(), np.full(int(held.sum()), held_from))
        copies, done = sets.new_table(64), done or {}
        keys, values = np.array([*done], np.int64), np.array([*done.values()], np.int64)
        sets.map_put_all(copies, keys, values)
        self.engine.use_done(copies, len(done))

    def narrow_cancelled(self, count: int) -> None:
        """Have an empty cancelled set with room for so many entries, a power of two."""
        timers = self.engine.cancelled
        table = np.zeros(sets.ROOM_WORDS * count, np.int64)
        timers._tables = [table]
        lend(timers.set.lent, 0, table)
        with acting_as(ALONE):
            timers.set.length = len(table)

    # --- logs, as a test writes them

    def row(self, topic: str, queue_id: int = 0) -> int:
        """A queue's row, made if needed."""
        return self.engine.queues.row(topic.encode("utf-8", "surrogateescape"), queue_id)

    def put(self, message: naive.Message, *, indexed: bool = True) -> naive.Message:
        """Append a message to the log, and its entry to its queue; return it in its place.

        Its key, where it is one of ours that names no offset, is made to name its own.
        """
        row, log = self.row(message.topic, message.queue_id), self.engine.commitlog
        index = self.engine.queues.next_index(row)
        size = message.size_bytes
        offset = naive.place_behind(log.segment_bytes, log.end, size)
        properties = dict(message.properties)
        key = naive.decode_unique_key(properties.get("UNIQ_KEY", ""), self.tag)
        if key is not None and key.message_offset == 0 and "TIMER_ORIGIN" not in properties:
            mark = fmt.LEVEL_MARK if message.topic == naive.LEVEL_TOPIC else 0
            own = key._replace(message_offset=offset | mark)
            properties["UNIQ_KEY"] = naive.encode_unique_key(own)
        placed = replace(message, offset=offset, queue_offset=index, properties=properties)
        if offset != log.end and log.end % log.segment_bytes:
            self._write(log, log.end, naive.blank_message(offset - log.end)[:8])
        self._write(log, offset, naive.encode_message(placed))
        log.end = offset + size
        if indexed:
            code = naive.tags_code(placed, [int(ms) for ms in self.engine.level_ms])
            self.write_entry(row, index, naive.Entry(offset, size, code))
        return placed

    def write_entry(self, row: int, index: int, entry: naive.Entry) -> None:
        """Write an entry of a queue, whose end is moved behind it."""
        queues = self.engine.queues
        self._write(queues.files[row], index * naive.ENTRY_BYTES, naive.encode_entry(entry))
        if index >= queues.next_index(row):
            queues.set_end(row, index + 1)

    def write_unit(self, unit: naive.Unit) -> int:
        """Append a unit to the timer log; return its offset. Ours is sealed."""
        log = self.engine.timerlog
        offset = naive.next_unit_offset(log.segment_bytes, log.end)
        if offset != log.end:
            self._write(log, log.end, naive.blank_unit(offset - log.end)[:16])
        sealed = naive.seal_unit(unit, offset) if unit.crc else unit
        self._write(log, offset, naive.encode_unit(sealed))
        log.end = offset + naive.UNIT_BYTES
        return offset

    def link(self, slot: int, unit: naive.Unit) -> int:
        """Append a unit of a slot, and make it the slot's last one."""
        held = self.engine.wheel.get(slot)
        offset = self.write_unit(unit._replace(prev_pos=NO_UNIT if held is None else held.last))
        count = -1 if unit.is_delete else 1
        if held is None:
            held = Slot(slot, offset, offset, 0)
        held = held._replace(last=offset, timer_count=held.timer_count + count)
        self.engine.wheel.put(held)
        return offset

    def _write(self, file: SegmentedFile, offset: int, data: bytes) -> None:
        number, position = divmod(offset, file.segment_bytes)
        file.reserve(offset, offset + len(data))
        file.ensure(number).view[position : position + len(data)] = np.frombuffer(data, np.uint8)

    def spoil(self, offset: int, count: int = 4) -> None:
        """Turn bytes of the commit log over."""
        log = self.engine.commitlog
        number, position = divmod(offset, log.segment_bytes)
        log.ensure(number).view[position : position + count] ^= 0xFF

    def writable(self) -> set[int]:
        """The segments of the commit log that can be appended to, all of it."""
        log = self.engine.commitlog
        maps = log._mapped.items()
        return {number for number, file in maps if file.allocated_bytes == log.segment_bytes}

    def unmap(self, file: SegmentedFile, *numbers: int) -> set[int]:
        """Take segments out of the kernels' sight; return those that were in it."""
        found = {number for number in numbers if number in file._mapped}
        for number in found:
            file._unmap(number)
        return found

    # --- what is on disk

    def messages(self, start: int = 0) -> list[naive.Message]:
        """All messages of the log from an offset on."""
        log = self.engine.commitlog
        files = {n * log.segment_bytes: log.path(n).read_bytes() for n in log.numbers}
        found = naive.scan_commit_log(files, start)
        assert found.damage is None and found.end == log.end, found
        return found.messages

    def message(self, offset: int, size: int) -> naive.Message:
        """The message at an offset of the log."""
        return naive.decode_message(self.engine.commitlog.read(offset, size), offset)

    def entries(self, row: int, start: int = 0) -> list[naive.Entry]:
        """The entries of a queue from an index on."""
        queues = self.engine.queues
        count = queues.next_index(row) - start
        found = queues.read(row, start, count) if count > 0 else ()
        return [naive.Entry(int(e["offset"]), int(e["size"]), int(e["tags_code"])) for e in found]

    def units(self) -> naive.TimerLogScan:
        """The timer log."""
        log = self.engine.timerlog
        return naive.scan_timer_log(
            {n * log.segment_bytes: log.path(n).read_bytes() for n in log.numbers}
        )

    def slots(self) -> dict[int, naive.Slot]:
        """The used slots, by their time."""
        found = naive.used_slots(self.engine.wheel.array.slots.tobytes()).values()
        return {slot.number: slot for slot in found}

    def pending(self, row: int, *, in_levels: bool = False) -> int:
        """How many timers are counted as pending for a queue."""
        return int(self.engine.queues.table.pending.reshape(2, -1)[int(in_levels), row])


def timer(tag: int, topic: str, due_ms: int, **more: str) -> naive.Message:
    """A timer of ours, before it is put."""
    return naive.new_timer(topic, b"body", due_ms, START_MS, tag, more)


def brokers_timer(topic: str, out_ms: int, key: str, **more: str) -> naive.Message:
    """A timer as a broker writes it."""
    properties = {"TIMER_OUT_MS": str(out_ms), "UNIQ_KEY": key, "REAL_TOPIC": topic, **more}
    return naive.Message(naive.TIMER_TOPIC, b"theirs", {"REAL_QID": "0", **properties})


def delete(tag: int, topic: str, due_ms: int, target: str) -> naive.Message:
    """A delete of ours of the timer with the unique key `target`."""
    return timer(tag, topic, due_ms, TIMER_DEL_UNIQKEY=f"{topic}+{target}")
