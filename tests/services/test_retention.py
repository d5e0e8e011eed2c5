"""Retention on small stores: which segments go, which stay, what a reopened store finds."""

import contextlib
import dataclasses
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.rigs.waiting import wait_until
from tests.tiers import some
from timerstore import Config, ManualClock, Tuning
from timerstore.services.cleaning import retention
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import segment_name

pytestmark = pytest.mark.on_disk

SECOND = timedelta(seconds=1)
SMALL = Config(
    durability="process",
    retention_ms=10_000,
    tuning=Tuning(
        wheel_slot_count=1_024,
        roll_window_slots=60,
        commitlog_segment_bytes=4_096,
        consumequeue_segment_bytes=200,
        timerlog_segment_bytes=520,
    ),
)


class StoppedDiskError(Exception):
    """The process ended here."""


class StoppingDisk(Disk):
    """A disk at which the process ends before a chosen removal, or before it is durable."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at, self.count = stop_at, 0
        self.armed = False

    def event(self, kind: str, path: Path) -> None:
        if self.armed and kind in ("remove", "sync_folder") and "config" not in str(path):
            if self.count == self.stop_at:
                raise StoppedDiskError
            self.count += 1


def open_small(
    path: Path, clock: ManualClock, disk: Disk | None = None, config: Config = SMALL
) -> timerstore.TimerStore:
    return timerstore.TimerStore(path, config=config, clock=clock, disk=disk)


def files(store: timerstore.TimerStore, folder: str) -> list[str]:
    return sorted(each.name for each in (store.path / folder).iterdir())


def drain(store: timerstore.TimerStore, topic: str = "default") -> list[bytes]:
    bodies: list[bytes] = []
    while len(batch := store.pull(topic, timeout=0)):
        bodies += batch.bodies.to_pylist()
        batch.ack()
    return bodies


def live_through(store: timerstore.TimerStore, clock: ManualClock, count: int = 100) -> None:
    """Put, fire, consume `count` timers, and let them grow old."""
    store.put_many([b"%d" % i for i in range(count)], delay_ms=1_000)
    clock.advance(2 * SECOND)
    assert len(drain(store)) == count
    clock.advance(30 * SECOND)


def test_consumed_segments_go(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path / "s", clock) as store:
        live_through(store, clock)
        before = store.stats().disk_bytes
        assert len(files(store, "commitlog")) > 10
        store.flush()
        assert store.stats().disk_bytes < before
        assert store.core.engine.commitlog.start > 0
        assert len(files(store, "commitlog")) <= 3
        assert store.core.engine.timerlog.start == 0, "no checkpoint says that it may go"
        store.flush()
        assert store.core.engine.timerlog.start > 0
        assert len(files(store, "timerlog")) <= 3
        assert len(files(store, "consumequeue/default/0")) <= 2
        assert len(files(store, "consumequeue/rmq_sys_wheel_timer/0")) <= 2
        store.put(b"again")
        assert drain(store) == [b"again"]


def test_the_folder_is_listed_once_for_all_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each listing costs as much as there are segments."""
    clock, listed = ManualClock(), list[int]()
    make = retention.unit_reader
    monkeypatch.setattr(retention, "unit_reader", lambda engine: listed.append(1) or make(engine))
    with open_small(tmp_path / "s", clock) as store:
        live_through(store, clock, 300)
        kept, runs = len(files(store, "timerlog")), 0
        while len(files(store, "timerlog")) > 3:
            store.flush()
            store.core.upkeep.retention.run()
            runs += 1
            assert len(listed) <= runs < 9
        assert kept > 20


def test_young_segments_stay(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path / "s", clock) as store:
        store.put_many([b"x"] * 100, delay_ms=1_000)
        clock.advance(2 * SECOND)
        drain(store)
        clock.advance(5 * SECOND)
        store.flush()
        assert store.core.engine.commitlog.start == 0


def test_unread_topic_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path / "s", clock) as store:
        store.put(b"unread", topic="other")
        live_through(store, clock)
        store.flush()
        assert store.core.engine.commitlog.start == 0
        assert drain(store, "other") == [b"unread"]
        store.flush()
        assert store.core.engine.commitlog.start > 0


def test_what_is_not_acknowledged_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path / "s", clock) as store:
        store.put_many([b"x"] * 100, delay_ms=1_000)
        clock.advance(2 * SECOND)
        first = store.pull("default", max_count=10, timeout=0)
        drain(store)
        clock.advance(30 * SECOND)
        store.flush()
        kept = store.core.engine.commitlog.start
        first.ack()
        store.flush()
        assert store.core.engine.commitlog.start > kept


def test_slowest_group_counts(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path / "s", clock) as store:
        slow = store.pull("default", group="slow", timeout=0)
        assert len(slow) == 0
        live_through(store, clock)
        store.flush()
        assert len(drain_group(store, "slow")) == 100
        store.flush()
        assert len(files(store, "commitlog")) <= 3


def drain_group(store: timerstore.TimerStore, group: str) -> list[bytes]:
    bodies: list[bytes] = []
    while len(batch := store.pull("default", group=group, timeout=0)):
        bodies += batch.bodies.to_pylist()
        batch.ack()
    return bodies


def test_late_group_begins_at_what_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path / "s", clock) as store:
        live_through(store, clock)
        store.flush()
        store.put(b"new")
        bodies = drain_group(store, "late")
        assert bodies[-1] == b"new"
        assert len(bodies) < 100


@pytest.mark.parametrize("reopen", [False, True])
def test_pending_timer_keeps_its_segment(tmp_path: Path, reopen: bool) -> None:
    clock = ManualClock()
    store = open_small(tmp_path / "s", clock)
    id = store.put(b"pending", delay=50 * SECOND)
    live_through(store, clock)
    if reopen:  # what latest slots the segments have must be learnt again
        store.close()
        store = open_small(tmp_path / "s", clock)
    store.flush()
    assert store.core.engine.commitlog.start == 0
    timer = store.get(id)
    assert timer is not None and timer.body == b"pending"
    clock.advance(30 * SECOND)
    assert drain(store) == [b"pending"]
    clock.advance(20 * SECOND)
    store.flush()
    assert store.core.engine.commitlog.start > 0
    store.close()


def test_cancelled_timers_segment_goes_with_its_slot(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_small(tmp_path / "s", clock) as store:
        id = store.put(b"cancelled", delay=50 * SECOND)
        assert store.cancel(id)
        live_through(store, clock)
        store.flush()
        assert store.core.engine.commitlog.start == 0
        clock.advance(30 * SECOND)
        store.flush()
        assert store.core.engine.commitlog.start > 0
        assert drain(store) == []


@pytest.mark.whole
def test_cleaning_carries_timers_out(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_small(tmp_path / "s", clock)
    store.put_many([b"far %d" % i for i in range(20)], delay_ms=600_000)
    for _ in range(7):
        live_through(store, clock)
        store.clean()
    assert store.core.engine.commitlog.start > 0
    assert store.count() == 20
    assert sorted(t.body for t in store.pending()) == sorted(b"far %d" % i for i in range(20))
    store.abandon()
    store = open_small(tmp_path / "s", clock)
    assert store.count() == 20
    clock.advance(timedelta(minutes=11))
    assert sorted(drain(store)) == sorted(b"far %d" % i for i in range(20))
    store.close()


@pytest.mark.whole
@pytest.mark.parametrize("reopen", [False, True])
def test_id_leads_to_a_timer_whose_first_message_is_gone(tmp_path: Path, reopen: bool) -> None:
    clock = ManualClock()
    store = open_small(tmp_path / "s", clock)
    ids = [store.put(b"far %d" % i, topic="far", delay=600 * SECOND) for i in range(20)]
    for _ in range(7):
        live_through(store, clock)
        store.clean()
    assert store.core.engine.commitlog.start > int(ids[-1][12:24], 16)
    if reopen:
        store.close()
        store = open_small(tmp_path / "s", clock)
    timer = store.get(ids[3])
    assert timer is not None
    assert (timer.id, timer.body, timer.topic) == (ids[3], b"far 3", "far")
    assert timer.roll_count > 0
    assert store.cancel(ids[3]) and store.cancel(ids[3])
    assert store.get(ids[3]) is None
    moved = store.reschedule(ids[4], delay=500 * SECOND)
    assert store.cancel_many(ids[5:8]).tolist() == [True] * 3
    assert store.count("far") == 16
    with pytest.raises(timerstore.TooLateError):
        store.reschedule(ids[5], delay=SECOND)
    clock.advance(timedelta(minutes=15))
    fired = store.pull("far", timeout=0)
    assert sorted(fired.bodies.to_pylist()) == sorted(
        b"far %d" % i for i in (0, 1, 2, 4, *range(8, 20))
    )
    assert moved in fired.ids.to_pylist()
    assert not store.cancel(ids[0])
    assert store.get(ids[0]) is None
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_reopening_after_removal(tmp_path: Path, clean: bool) -> None:
    clock = ManualClock()
    store = open_small(tmp_path / "s", clock)
    live_through(store, clock)
    store.put_many([b"later %d" % i for i in range(30)], delay_ms=40_000)
    store.flush()
    start = store.core.engine.commitlog.start
    assert start > 0
    if clean:
        store.close()
    else:
        store.abandon()
    store = open_small(tmp_path / "s", clock)
    assert store.core.engine.commitlog.start == start
    assert store.count() == 30
    clock.advance(50 * SECOND)
    assert sorted(drain(store)) == sorted(b"later %d" % i for i in range(30))
    store.close()


@pytest.mark.parametrize("count", [103, 170, 199])
def test_queues_are_rebuilt_behind_a_removed_start(tmp_path: Path, count: int) -> None:
    clock = ManualClock()
    config = dataclasses.replace(SMALL, consumequeue_segment_bytes=2_000)
    store = open_small(tmp_path / "s", clock, config=config)
    live_through(store, clock, count)  # so that the first kept entry is inside a segment
    store.put_many([b"later %d" % i for i in range(12)], delay_ms=1_000)
    clock.advance(2 * SECOND)
    store.flush()
    start = store.core.engine.commitlog.start
    assert start > 0
    next_index = store.core.engine.queues.next_index(1)
    store.close()
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    for _ in range(3):  # the second time it reads what the first has rebuilt
        store = open_small(tmp_path / "s", clock, config=config)
        row = store.core.engine.queues.row(b"default")
        assert store.core.engine.queues.next_index(row) == next_index
        bodies = store.pull("default", timeout=0).bodies.to_pylist()
        assert bodies == [b"later %d" % i for i in range(12)]
        store.close()


@pytest.mark.whole
@pytest.mark.parametrize("stop_at", some(range(0, 60, 4), 2))
def test_crash_while_removing(tmp_path: Path, stop_at: int) -> None:
    clock = ManualClock()
    disk = StoppingDisk(stop_at)
    store = open_small(tmp_path / "s", clock, disk)
    live_through(store, clock)
    store.put_many([b"later %d" % i for i in range(30)], delay_ms=40_000)
    remove, store.core.upkeep.retention.run = store.core.upkeep.retention.run, lambda: 0  # type: ignore[method-assign]
    store.flush()
    disk.armed = True
    with contextlib.suppress(StoppedDiskError):
        remove()
    disk.armed = False
    store.abandon()
    store = open_small(tmp_path / "s", clock)
    assert store.count() == 30
    clock.advance(50 * SECOND)
    assert sorted(drain(store)) == sorted(b"later %d" % i for i in range(30))
    store.close()


@pytest.mark.whole
def test_max_bytes_refuses_until_consumed(tmp_path: Path) -> None:
    clock = ManualClock()
    limit = 64 * 4_096 + 2 * 1_024 * 32
    config = dataclasses.replace(SMALL, max_bytes=limit)
    with open_small(tmp_path / "s", clock, config=config) as store:
        put = 0
        for _ in range(2):  # what fires takes no more than was kept for it, nor does it make room
            with contextlib.suppress(timerstore.StoreFullError):
                for _ in range(10_000):
                    store.put(b"x" * 100, delay=SECOND)
                    put += 1
            assert put < 10_000 and store.stats().disk_bytes < limit - 2 * 4_096
            clock.advance(2 * SECOND)
            store.flush()
            assert store.stats().disk_bytes < limit
        assert len(drain(store)) == put
        clock.advance(30 * SECOND)
        store.flush()
        store.put(b"room again")
        assert drain(store) == [b"room again"]


@pytest.mark.slow
def test_services_run_while_segments_go(tmp_path: Path) -> None:
    config = Config(
        durability="process",
        flush_interval_ms=20,
        retention_ms=50,
        tuning=Tuning(
            commitlog_segment_bytes=1 << 16,
            consumequeue_segment_bytes=2_000,
            timerlog_segment_bytes=5_200,
            precision_ms=100,
        ),
    )
    with timerstore.open(tmp_path / "s", config=config) as store:
        got, put, stop = 0, 0, time.monotonic() + 1.5
        while time.monotonic() < stop:
            store.put_many([b"x" * 100] * 500, delay_ms=[i % 300 for i in range(500)])
            put += 500
            batch = store.pull("default", max_count=5_000, timeout=0.01)
            got += len(batch)
            batch.ack()
            list(store.pending(limit=3))
        while got < put:
            batch = store.pull("default", max_count=5_000, timeout=5)
            assert len(batch)
            got += len(batch)
            batch.ack()
        # On a slow disk, for every segment is made durable on its own.
        wait_until(lambda: store.core.upkeep.retention.removed_count > 10)
        assert store.stats().unreadable_count == 0
        assert store.stats().commitlog_start > 0
    with timerstore.open(tmp_path / "s", config=config) as store:
        assert store.count() == 0


@pytest.mark.slow
def test_an_idle_store_gives_back_what_it_kept_for_use_again(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000_000)
    config = dataclasses.replace(SMALL, commitlog_segment_bytes=1 << 16, retention_ms=0)
    with open_small(tmp_path / "store", clock, config=config) as store:
        log = store.core.engine.commitlog

        def live(count: int) -> None:
            live_through(store, clock, count)
            store.flush()

        def ahead() -> int:
            assert log.numbers == list(range(log.numbers[0], log.numbers[-1] + 1))
            names = [segment_name(each * log.segment_bytes) for each in log.numbers]
            assert files(store, "commitlog") == names
            return log.numbers[-1] - log.end // log.segment_bytes

        for count in (500, 500, 2_000, 100, 100):
            live(count)
        kept = ahead()
        assert kept > 6 and log.reused_count > 6
        store.flush()
        assert ahead() >= kept - 1  # one at a time
        for _ in range(kept + 4):
            store.flush()
        assert 1 <= ahead() <= 4
        for count in (2_000, 100, 100):
            live(count)
        assert ahead() > 4
