"""Times are written in one way at each call: delay, delay_ms, at, at_ms; results carry both."""

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from timerstore import InvalidArgumentError, Retry, recurring
from timerstore.core.switches import Pause
from timerstore.watching.services import CopyStats
from timerstore.watching.topics import Fired

START_MS = 1_800_000_000_000
AT = datetime.fromtimestamp(START_MS / 1_000 + 2, UTC)
WAYS: list[dict[str, Any]] = [
    {"delay": timedelta(seconds=2)},
    {"delay": 2},
    {"delay": 2.0},
    {"delay_ms": 2_000},
    {"at": AT},
    {"at_ms": START_MS + 2_000},
]
WRONG: list[dict[str, Any]] = [
    {"delay": 1, "delay_ms": 2},
    {"delay": 1, "at": AT},
    {"delay_ms": 1, "at_ms": START_MS},
    {"at": AT, "at_ms": START_MS},
    {"delay": float("nan")},
    {"delay": float("inf")},
    {"delay": True},
    {"delay": "1"},
    {"delay_ms": 1.5},
    {"delay_ms": 1 << 70},
    {"at": datetime(2027, 1, 1)},  # noqa: DTZ001
]


@pytest.fixture
def clock() -> timerstore.ManualClock:
    return timerstore.ManualClock(START_MS)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_way_means_the_same(way: Any, tmp_path: Path, clock: timerstore.ManualClock) -> None:
    with timerstore.open(tmp_path, clock=clock) as store:
        timer = store.get(store.put(b"x", **way))
        assert timer is not None and timer.due == AT and timer.due_ms == START_MS + 2_000
        assert timer.put == datetime.fromtimestamp(START_MS / 1_000, UTC)
        moved = store.get(store.reschedule(store.put(b"x", delay=9), **way))
        assert moved is not None and moved.due == AT
        assert store.put_many([b"a", b"b"], **way).due_ms.tolist() == [START_MS + 2_000] * 2
        store.put(b"now", topic="t")
        (d,) = store.pull("t", timeout=timedelta(0))
        next_one = store.get(d.ack_and_put(b"next", **way))
        assert next_one is not None and next_one.due == AT


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_refused(wrong: Any, tmp_path: Path, clock: timerstore.ManualClock) -> None:
    with timerstore.open(tmp_path, clock=clock) as store:
        id = store.put(b"x", delay=5)
        store.put(b"now", topic="t")
        (d,) = store.pull("t", timeout=0)
        for call in (
            lambda: store.put(b"x", **wrong),
            lambda: store.put_many([b"x"], **wrong),
            lambda: store.reschedule(id, **wrong),
            lambda: d.ack_and_put(b"x", **wrong),
        ):
            with pytest.raises(InvalidArgumentError):
                call()
        assert store.count() == 1
        d.ack()


def test_durations_may_be_seconds(tmp_path: Path, clock: timerstore.ManualClock) -> None:
    assert Retry(delay=3).delay == Retry(delay_ms=3_000).delay == timedelta(seconds=3)
    assert Retry(delay=3) == Retry(delay_ms=3_000) == Retry(delay=timedelta(seconds=3))
    with pytest.raises(InvalidArgumentError):
        Retry(delay=1, delay_ms=1)
    assert recurring.every(0.5) == recurring.every(timedelta(seconds=0.5))
    with timerstore.open(tmp_path, clock=clock) as store:
        consumer = timerstore.Consumer(store, "g", timeout=60, backoff=[1, timedelta(seconds=2)])
        attempts = []

        @consumer.on("t")
        def fail(d: timerstore.Delivery) -> None:
            attempts.append(clock.now_ms - START_MS)
            raise OSError

        with consumer:
            store.put(b"x", topic="t")
            clock.advance(4)
        assert attempts == [0, 1_000, 3_000]
        store.pause("firing", duration=2)
        store.put(b"y", topic="u")
        assert store.pull("u", timeout=0).ids.to_pylist() == []
        clock.advance(2.5)
        (d,) = store.consume("u", timeout=timedelta(0))
        d.nack(1.5)
        clock.advance(1.5)
        (d,) = store.consume("u", timeout=0)
        d.nack(delay_ms=20)
        clock.advance(0.02)
        assert len(store.pull("u", timeout=0)) == 1


def test_ranges_may_be_datetimes(tmp_path: Path, clock: timerstore.ManualClock) -> None:
    with timerstore.open(tmp_path, clock=clock) as store:
        store.put_many([b"a", b"b", b"c"], delay_ms=[1_000, 2_000, 3_000])
        assert [t.body for t in store.pending(start=AT)] == [b"b", b"c"]
        assert [t.body for t in store.pending(end=AT)] == [b"a"]
        assert store.pending_columns(start=AT, end_ms=START_MS + 3_000).num_rows == 1
        assert store.horizon(1_000, end=AT).count.tolist() == [1]
        with pytest.raises(InvalidArgumentError, match="start and start_ms exclude each other"):
            next(iter(store.pending(start=AT, start_ms=1)))


def test_results_carry_both(tmp_path: Path, clock: timerstore.ManualClock) -> None:
    now = datetime.fromtimestamp(START_MS / 1_000, UTC)
    with timerstore.open(tmp_path, clock=clock) as store:
        id = store.put(b"x", topic="t")
        batch = store.pull("t", timeout=0)
        assert batch.fired.astype("int64").tolist() == batch.fired_ms.tolist()
        (d,) = batch
        assert d.fired == now and d.fired_ms == START_MS
        found = store.find(id)
        assert found.fired == found.put == now and found.cancelled is None
        (group,) = store.stats().groups
        assert group.oldest_fired == now
        d.ack()
        consumer = timerstore.Consumer(store, "g", max_attempts=0)

        @consumer.on("bad")
        def fail(d: timerstore.Delivery) -> None:
            raise OSError

        with consumer:
            store.put(b"x", topic="bad")
            clock.advance(0)
        (letter,) = store.dead_letters("g")
        assert letter.died == now and letter.first_failed == now
        assert {each.since for each in store.health().warnings} == {now}


CURSORS = {"Stats"}
"""What has cursors, which are numbers of milliseconds as in the files."""
LENGTHS = {"lag_ms", "every_ms", "bucket_ms", "delay_ms", "precision_ms", "elapsed_ms"}


def test_each_instant_of_a_result_is_a_datetime_too() -> None:
    """Of each public result: `due_ms` has `due` beside it."""
    results = [getattr(timerstore, name) for name in timerstore.__all__]
    results += [Pause, CopyStats, Fired]
    lacking = [
        f"{each.__name__}.{field.name}"
        for each in results
        if dataclasses.is_dataclass(each) and each.__name__ not in {*CURSORS, "Config", "Tuning"}
        for field in dataclasses.fields(each)
        if field.name.endswith("_ms") and field.name not in LENGTHS
        if not field.name.startswith("lateness")
        if not isinstance(getattr(each, field.name.removesuffix("_ms"), None), property)
    ]
    assert lacking == []


def test_results_of_a_store_s_state_carry_both(
    tmp_path: Path, clock: timerstore.ManualClock
) -> None:
    now = datetime.fromtimestamp(START_MS / 1_000, UTC)
    with timerstore.open(tmp_path / "s", clock=clock) as store:
        store.put(b"x", delay=60)
        health = store.health()
        assert health.now == health.opened == now
        horizon = store.horizon(60_000)
        assert horizon.start.astype("int64").tolist() == horizon.start_ms.tolist()
        point = store.backup(tmp_path / "b").point
        assert point.time == now and point.time_ms == START_MS
    report = timerstore.restore(tmp_path / "b", tmp_path / "new")
    assert report.as_of == now
    for number, way in enumerate(({"at": now + timedelta(microseconds=999)}, {"at_ms": START_MS})):
        assert timerstore.restore(tmp_path / "b", tmp_path / f"new{number}", **way).as_of == now
    for wrong in ({"at": now, "at_ms": START_MS}, {"at": True}, {"at_ms": 1.5}, {"at_ms": now}):
        with pytest.raises(InvalidArgumentError):
            timerstore.restore(tmp_path / "b", tmp_path / "newer", **wrong)
    assert Pause("firing", None, START_MS, None, False).since == now
    assert Pause("firing", None, START_MS, START_MS, False).until == now
    assert Pause("firing", None, START_MS, None, False).until is None
