"""Pausing: what is stopped, for how long."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.small_store import SMALL
from timerstore import (
    InvalidArgumentError,
    ManualClock,
    PausedError,
    ReadOnlyError,
    TimerStore,
    TimerStoreError,
)
from timerstore.core.switches import FOREVER_MS
from timerstore.store.store import switch_closed

SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> TimerStore:
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        yield store


def fired(store: TimerStore) -> list[bytes]:
    bodies = []
    while batch := store.pull("default", timeout=0):
        bodies += batch.bodies.to_pylist()
        batch.ack()
    return bodies


def test_nothing_fires_while_firing_is_paused(store: TimerStore, clock: ManualClock) -> None:
    store.pause("firing")
    for i in range(30):  # over more slots than can be claimed
        store.put(b"%d" % i, delay=i * SECOND)
    store.put(b"level", delay_level=1)
    clock.advance(60 * SECOND)
    assert fired(store) == [] and store.count() == 31
    store.put(b"overdue", at_ms=clock.now_ms - 5_000)
    store.resume("firing")
    assert sorted(fired(store)) == sorted([*(b"%d" % i for i in range(30)), b"level", b"overdue"])
    store.put(b"next", delay=SECOND)
    clock.advance(SECOND)
    assert fired(store) == [b"next"]


def test_a_pause_of_firing_ends_by_itself_on_the_millisecond(
    store: TimerStore, clock: ManualClock
) -> None:
    start_ms = clock.now_ms
    store.put(b"early", at_ms=start_ms + 500)
    store.put(b"at the end", at_ms=start_ms + 9_000)
    store.put(b"late", at_ms=start_ms + 9_500)
    store.pause("firing", duration=9 * SECOND)
    clock.advance(20 * SECOND)
    batch = store.pull("default", timeout=0)
    assert batch.bodies.to_pylist() == [b"early", b"at the end", b"late"]
    assert (batch.fired_ms - start_ms).tolist() == [9_000, 9_000, 9_500]


def test_a_long_pause_costs_no_time_on_a_manual_clock(
    store: TimerStore, clock: ManualClock
) -> None:
    store.put(b"a", delay=SECOND)
    store.pause("firing", duration=timedelta(hours=10))
    clock.advance(timedelta(hours=9))
    assert fired(store) == []
    assert sum(each.step_count for each in store.stats().services) < 100_000  # not each ms
    clock.advance(timedelta(hours=1))
    assert fired(store) == [b"a"]


def test_a_timer_can_be_cancelled_while_firing_is_paused(
    store: TimerStore, clock: ManualClock
) -> None:
    id, other = store.put(b"a", delay=SECOND), store.put(b"b", delay=SECOND)
    store.pause("firing")
    clock.advance(10 * SECOND)
    assert store.cancel(id)
    moved = store.reschedule(other, delay=5 * SECOND)
    store.resume("firing")
    assert fired(store) == []
    clock.advance(5 * SECOND)
    assert fired(store) == [b"b"] and store.get(moved) is None


def test_putting_is_refused_and_nothing_else(store: TimerStore, clock: ManualClock) -> None:
    id = store.put(b"a", delay=SECOND)
    store.pause("putting", duration=5 * SECOND)
    for call in (
        lambda: store.put(b"b"),
        lambda: store.put(b"b", at_ms=clock.now_ms),
        lambda: store.put_many([b"b"]),
        lambda: store.reschedule(id, delay=SECOND),
    ):
        with pytest.raises(PausedError, match="resume"):
            call()
    clock.advance(SECOND)
    (d,) = store.pull("default", timeout=0)
    d.nack(delay=SECOND)
    assert store.cancel(id) is False
    clock.advance(10 * SECOND)
    assert fired(store) == [b"a"]
    store.put(b"b")
    assert fired(store) == [b"b"]


def test_consuming_is_paused_for_one_group_or_all(store: TimerStore) -> None:
    store.put_many([b"a", b"b"])
    (d, e) = store.pull("default", group="one", timeout=0)
    store.pause("consuming", group="one")
    d.ack()
    assert len(store.pull("default", group="one", timeout=0)) == 0
    assert len(store.pull("default", group="two", timeout=0)) == 2
    e.nack()
    store.pause("consuming")
    with pytest.raises(InvalidArgumentError, match="all groups"):
        store.resume("consuming", group="one")
    store.resume("consuming")
    assert store.pull("default", group="one", timeout=0).bodies.to_pylist() == [b"b"]


@pytest.mark.parametrize("what", ["consuming", "of a group", "firing"])
@pytest.mark.parametrize("step_s", [15, 7, 1])
def test_what_was_paused_is_handled_when_the_pause_ends(
    store: TimerStore, clock: ManualClock, what: str, step_s: int
) -> None:
    """However far the clock is moved at once."""
    start_ms, came = clock.now_ms, list[int]()
    consumer = timerstore.Consumer(store, "g")
    consumer.subscribe("t", lambda _: came.append(clock.now_ms - start_ms))
    with consumer:
        store.pull("t", group="g", timeout=0)
        store.put(b"x", topic="t", delay=SECOND)
        group = "g" if what == "of a group" else None
        paused: Any = "firing" if what == "firing" else "consuming"
        store.pause(paused, group=group, duration=10 * SECOND)
        for _ in range(0, 15, step_s):
            clock.advance(step_s * SECOND)
    assert came == [10_000]


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("keep", [True, False])
def test_a_pause_is_kept_over_a_reopening_if_asked(tmp_path: Path, keep: bool) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        store.put(b"a", delay=SECOND)
        store.pause("firing", keep=keep)
        store.pause("putting", keep=keep, duration=3_600 * SECOND)
    with timerstore.open(tmp_path / "s", read_only=True) as look, pytest.raises(ReadOnlyError):
        look.resume("firing")
    clock.advance(2 * SECOND)
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        assert fired(store) == ([] if keep else [b"a"])
        if keep:
            with pytest.raises(PausedError):
                store.put(b"b")
            with pytest.raises(TimerStoreError, match="paused"):
                store.handover()
            store.resume("firing")
            store.resume("putting")
            assert fired(store) == [b"a"]
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        store.put(b"c")


def test_damaged_switches_are_named_and_left_aside(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        store.pause("putting", keep=True)
    file = tmp_path / "s" / "config" / "switches.json"
    file.write_text(file.read_text().replace('"putting"', '"firing"'))
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        store.put(b"a")
        assert fired(store) == [b"a"]
        assert [each["file"] for each in store.stats().damage] == ["config/switches.json"]


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("Firing", {}),
        ("firing", {"group": "g"}),
        ("firing", {"duration": timedelta()}),
        ("firing", {"duration": "5"}),
        ("firing", {"keep": 1}),
        ("consuming", {"group": "no such/name"}),
    ],
)
def test_wrong_arguments_are_refused(store: TimerStore, what: str, more: dict) -> None:
    with pytest.raises(InvalidArgumentError):
        store.pause(what, **more)
    assert store.core.switches.pauses == ()


def test_on_the_wall_clock_nothing_fires_after_pause_returns(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        now_ms = store.core.clock.now_ms
        store.put_many([b"x"] * 2_000, delay_ms=list(range(0, 600, 3)) * 10)
        time.sleep(0.2)
        store.pause("firing")
        at_ms = store.core.clock.now_ms
        count = store.stats().fired_count
        time.sleep(0.6)
        assert store.stats().fired_count == count
        short = store.put(b"short", at_ms=now_ms)  # past due, by the short way
        assert store.count() == 2_001 - count
        store.resume("firing")
        got = 0
        while batch := store.pull("default", timeout=1):
            got += len(batch)
            after = batch.fired_ms > at_ms
            assert ((batch.fired_ms >= at_ms + 600) | ~after).all()
            batch.ack()
            if got == 2_001:
                break
        assert got == 2_001 and store.get(short) is None


def test_a_group_that_never_read_is_not_paused(tmp_path: Path) -> None:
    """A misspelt one would be paused in vain, and nobody would know."""
    path = tmp_path / "s"
    with timerstore.open(path, config=SMALL) as store:
        with pytest.raises(InvalidArgumentError, match="no group yet"):
            store.pause("consuming", group="mailer")
        store.put(b"x")
        store.pull("default", group="mailer", timeout=5).ack()
        for call in (store.pause, store.resume):
            with pytest.raises(InvalidArgumentError, match="Did you mean 'mailer'"):
                call("consuming", group="mialer")
        assert store.health().conditions == ()
    with pytest.raises(InvalidArgumentError, match="Did you mean 'mailer'"):
        switch_closed(path, "consuming", "mialer", None, paused=True)
    switch_closed(path, "consuming", "mailer", None, paused=True)
    with timerstore.open(path, config=SMALL) as store:
        (found,) = store.health().conditions
        assert "'mailer'" in found.what
        store.resume("consuming", group="mailer")


def test_an_idle_paused_store_sleeps(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        store.pause("firing")
        store.put(b"due", delay=timedelta(milliseconds=10))
        time.sleep(0.3)
        before = sum(each.step_count for each in store.stats().services)
        time.sleep(0.5)
        assert sum(each.step_count for each in store.stats().services) - before < 150


def test_pauses_at_once_are_all_kept(tmp_path: Path) -> None:
    """Neither lost, nor refused for another's file; what the services obey is what is listed."""
    path, groups = tmp_path / "s", [f"g{i}" for i in range(6)]
    with timerstore.open(path, config=SMALL) as store, ThreadPoolExecutor(len(groups)) as pool:
        for group in groups:
            store.pull("default", group=group, timeout=0)
        for _ in range(10):
            store.resume("consuming")
            began = threading.Barrier(len(groups))

            def pause(group: str, began: threading.Barrier = began) -> None:
                began.wait()
                store.pause("consuming", group=group, keep=True)

            list(pool.map(pause, groups))
            assert sorted(each.group for each in store.core.switches.pauses) == groups
        store.pause("putting", duration=timedelta(milliseconds=1))
        time.sleep(0.01)  # it is over, and each put looks again
        for _ in range(100):
            puts = pool.submit(lambda: [store.put(b"x", delay=SECOND) for _ in range(20)])
            store.pause("firing")
            puts.result()
            assert store.core.engine.world.callers.fire_from_ms == FOREVER_MS
            store.resume("firing")
            assert store.core.engine.world.callers.fire_from_ms == 0
    with timerstore.open(path, config=SMALL) as store:
        assert sorted(each.group for each in store.core.switches.pauses) == groups
