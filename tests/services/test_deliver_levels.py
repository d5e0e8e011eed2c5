"""Delivering from delay levels: when, in which order, what happens where it cannot."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.models.ledger import LEVEL_TOPIC, read_messages
from tests.models.quiet_disk import QuietDisk
from timerstore import Config, ManualClock, TimerStore
from timerstore.errors import StoreFullError
from timerstore.services.deliver_levels import clamped_ms
from timerstore.services.levels import COUNT_CLAMPED, LEVEL_FAILED
from timerstore.timelog.disk import MappedFile
from timerstore.timelog.kernel import kernel
from timerstore.wheel import state

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
SMALL = Config(
    delay_levels="1s 5s 1m 2h",
    precision_ms=100,
    wheel_slot_count=1_024,
    roll_window_slots=60,
    commitlog_segment_bytes=4_096,
    consumequeue_segment_bytes=60,
    timerlog_segment_bytes=520,
    durability="process",
)


def open_store(path: Path, clock: ManualClock, **more: Any) -> TimerStore:
    more.setdefault("config", SMALL)
    more.setdefault("disk", QuietDisk())
    return TimerStore(path / "s", clock=clock, **more)


def bodies(store: TimerStore, topic: str = "default") -> list[bytes]:
    return [delivery.body for delivery in store.consume(topic, timeout=0)]


@kernel
def _clamped(due_ms: int, level_ms: int, now_ms: int) -> int:
    return clamped_ms(due_ms, level_ms, now_ms)


@given(st.integers(-5_000, 5_000), st.sampled_from([1_000, 3_000]))
def test_the_twin_of_a_due_time(ahead_ms: int, level_ms: int) -> None:
    due_ms = START_MS + ahead_ms
    is_due = _clamped(due_ms, level_ms, START_MS) <= START_MS
    assert is_due == naive.level_is_due(due_ms, level_ms, START_MS)


@pytest.mark.parametrize("batch_count", [1, 3, 1024])
def test_each_at_its_millisecond_in_order(tmp_path: Path, batch_count: int) -> None:
    clock = ManualClock(START_MS)
    config = Config(delay_levels="1s 5s", level_batch_count=batch_count, durability="process")
    store = open_store(tmp_path, clock, config=config)
    put: list[tuple[int, bytes]] = []
    for i in range(40):
        level = 1 + i % 2
        body = b"%d" % i
        store.put(body, delay_level=level)
        put.append((clock.now_ms + (1_000, 5_000)[level - 1], body))
        clock.advance(timedelta(milliseconds=i % 3))
    clock.advance(6 * SECOND)
    got = [(d.due_ms, d.body) for d in store.consume("default", timeout=0)]
    assert sorted(got) == sorted(put)
    assert all(d.lateness_ms == 0 for d in store.consume("default", group="b", timeout=0))
    in_level = [body for due_ms, body in got if int(body) % 2]
    assert in_level == sorted(in_level, key=int)
    store.close()


def test_what_a_copy_keeps(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    id = store.put(b"b", topic="t", delay_level=2, key="k", tag="red", properties={"user": "v"})
    clock.advance(5 * SECOND)
    (delivery,) = store.consume("t", timeout=0)
    assert (delivery.id, delivery.key, delivery.tag) == (id, "k", "red")
    assert delivery.properties == {"user": "v"}
    assert (delivery.due_ms, delivery.fired_ms) == (START_MS + 5_000, START_MS + 5_000)
    row = store.engine.queues.row(b"t")
    assert store.engine.queues.read(row, 0, 1)[0]["tags_code"] == naive.java_hash("red")
    row = store.engine.queues.row(LEVEL_TOPIC.encode(), 1)
    assert store.engine.queues.read(row, 0, 1)[0]["tags_code"] == START_MS + 5_000
    store.close()
    source, copy = read_messages(tmp_path / "s")
    assert (source.topic, source.queue_id) == (LEVEL_TOPIC, 1)
    assert source.properties["DELAY"] == "2" and source.properties["REAL_TOPIC"] == "t"
    assert copy == source_copy(source, START_MS + 5_000, copy)


def source_copy(source: naive.Message, due_ms: int, placed: naive.Message) -> naive.Message:
    """The twin's copy, in its place."""
    copy = naive.delivered_copy(source, due_ms, asked=False)
    copy.offset, copy.queue_offset = placed.offset, placed.queue_offset
    copy.stored_ms = due_ms
    return copy


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    store.put(b"long ago", delay_level=3)
    clock.advance(-timedelta(milliseconds=1_000))  # as much as a correction may be
    assert bodies(store) == []
    clock.advance(-timedelta(milliseconds=1))
    assert bodies(store) == [b"long ago"]
    assert store.engine.levels.words[COUNT_CLAMPED] == 1
    clock.advance(-timedelta(hours=1))
    store.put(b"new", delay_level=1)  # a level after the clock's now, whatever stands in the log
    clock.advance(timedelta(milliseconds=999))
    assert bodies(store) == []
    clock.advance(timedelta(milliseconds=1))
    assert bodies(store) == [b"new"]
    store.close()


class FullDisk(QuietDisk):
    """A disk on which no file can be made."""

    full = False

    def create_mapped(self, path: Path, length: int) -> MappedFile:
        """Make a file, or refuse."""
        if self.full:
            raise StoreFullError(f"{path}: no space left. Make some.")
        return super().create_mapped(path, length)


def test_what_cannot_be_delivered_stays(tmp_path: Path) -> None:
    clock, disk = ManualClock(START_MS), FullDisk()
    store = open_store(tmp_path, clock, disk=disk)
    wanted = [b"%d" % i + bytes(200) for i in range(40)]
    store.put_many(wanted, delay_level=1)
    disk.full = True
    for _ in range(3):
        with pytest.raises(StoreFullError):
            clock.advance(SECOND)
        offset = store.stats().levels[0].offset
        assert offset < 40
        assert store.count() == 40 - offset
    disk.full = False
    clock.advance(SECOND)
    assert bodies(store) == wanted and store.count() == 0
    store.close()


def test_waits_grow_where_there_is_no_space(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    engine, waits = store.engine, []
    for _ in range(16):
        engine.postpone_level(0, START_MS)
        waits.append(int(engine.levels.retry_ms[0]) - START_MS)
    assert waits[:4] == [50, 100, 200, 400] and max(waits) == waits[-1] == 60_000
    store.put(b"late", delay_level=1)
    clock.advance(59 * SECOND)
    assert bodies(store) == [] and store.stats().levels[0].overdue_ms == 58_000
    clock.advance(SECOND)
    assert bodies(store) == [b"late"]
    assert engine.levels.fail_count[0] == 0 and engine.levels.retry_ms[0] == 0
    engine.postpone_level(0, START_MS)
    store.put(b"back", delay_level=1)
    clock.advance(-timedelta(days=1))  # a wait that the clock left behind is no wait
    assert bodies(store) == [b"back"]
    store.close()


def test_only_the_level_waits(tmp_path: Path) -> None:
    """The runner postpones the level whose delivery failed, and nobody else."""
    clock, disk = ManualClock(START_MS), FullDisk()
    store = open_store(tmp_path, clock, disk=disk)
    words, levels = store.engine.words, store.engine.levels
    disk.full = True
    words[state.NEED], words[state.NEED_OFFSET] = state.COMMITLOG_SEGMENT, 0
    levels.words[LEVEL_FAILED] = 2
    store.engine.commitlog.end = 10 * 4_096
    store.runner._meet()
    assert words[state.NEED] == state.NOTHING and levels.words[LEVEL_FAILED] == -1
    assert levels.fail_count[:4].tolist() == [0, 0, 1, 0]
    assert isinstance(store.runner.waiting_for_space, StoreFullError)
    store.abandon()


def test_damage_is_passed_and_counted(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    for i in range(5):
        store.put(b"%d" % i, delay_level=1)
    store.abandon()
    second = read_messages(tmp_path / "s")[1]
    file = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    store = open_store(tmp_path, clock)  # while it is open: at opening it would be an error
    store.engine.commitlog.ensure(0).view[second.offset + 88] ^= 1
    clock.advance(SECOND)
    assert bodies(store) == [b"0", b"2", b"3", b"4"]
    assert store.stats().unreadable_count == 1
    assert store.stats().levels[0].offset == 5
    store.abandon()
    assert bytes(data) != file.read_bytes()


def test_levels_take_turns(tmp_path: Path) -> None:
    """A level with much to do keeps no other one waiting for long."""
    clock = ManualClock(START_MS)
    config = Config(delay_levels="1s 2s", level_batch_count=4, durability="process")
    store = open_store(tmp_path, clock, config=config)
    store.put_many([b"two"] * 8, delay_level=2)
    clock.advance(SECOND)
    store.put_many([b"one"] * 40, delay_level=1)
    clock.advance(SECOND)
    assert b"two" in bodies(store)[:9]
    store.close()


def test_a_real_clock(tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=Config(delay_levels="1s")) as store:
        ids = [store.put(b"b%d" % i, delay_level=1) for i in range(5)]
        found = [store.pull("default", max_count=1, timeout=30) for _ in ids]
        assert [batch.ids[0].as_py() for batch in found] == ids
        assert all(batch.fired_ms[0] >= batch.due_ms[0] for batch in found)


def test_retention_keeps_what_waits(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = Config(
        **{name: getattr(SMALL, name) for name in ("precision_ms", "wheel_slot_count")},
        **{name: getattr(SMALL, name) for name in ("roll_window_slots", "delay_levels")},
        commitlog_segment_bytes=4_096,
        consumequeue_segment_bytes=200,
        timerlog_segment_bytes=520,
        retention_ms=1_000,
        durability="process",
    )
    store = open_store(tmp_path, clock, config=config)
    store.put(b"in two hours", topic="slow", delay_level=4)
    cancelled = store.put(b"never", topic="slow", delay_level=4)
    assert store.cancel(cancelled)
    for _ in range(30):
        store.put_many([bytes(100)] * 10, delay_level=1)
        clock.advance(2 * SECOND)
        while len(batch := store.pull("default", timeout=0)):
            batch.ack()
        store.flush()
    assert store.engine.commitlog.start == 0
    store.abandon()
    store = open_store(tmp_path, clock, config=config)
    assert store.cancel(cancelled) and store.count() == 1
    clock.advance(timedelta(hours=2))
    (delivery,) = store.consume("slow", timeout=0)
    assert delivery.body == b"in two hours"
    delivery.ack()
    store.put(b"last", delay_level=1)
    clock.advance(10 * SECOND)
    for _ in range(3):
        store.flush()
    assert store.engine.commitlog.start > 0
    assert np.all(store.engine.levels.offset[:4] == [301, 0, 0, 2])
    store.close()
