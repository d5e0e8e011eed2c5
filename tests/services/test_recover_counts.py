"""Counters after a crash: what was written, with what the log says since."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.sparse_copy import copy_tree
from timerstore import Config, ManualClock, TimerStore, TopicStats, Tuning
from timerstore.services.engine.counter_file import PLACE_BYTES
from timerstore.testing.damage import flip_bit

SMALL = Config(
    durability="process",
    tuning=Tuning(wheel_slot_count=1_024, roll_window_slots=60, commitlog_segment_bytes=1 << 16),
)


def work(store: TimerStore, clock: ManualClock) -> None:
    """Each way by which a timer comes and goes."""
    ids = [*store.put_many([b"x"] * 20, topic="a", delay_ms=list(range(0, 40_000, 2_000)))]
    store.put(b"level", topic="b", delay_level=1)
    level = store.put(b"level", topic="b", delay_level=4)
    far = store.put(b"far", topic="b", delay=timedelta(days=3))
    clock.advance(timedelta(milliseconds=7_300))
    assert store.cancel(ids[9]) and store.cancel_many(ids[10:13]).all() and store.cancel(level)
    store.reschedule(far, delay=timedelta(days=9))
    for delivery in store.consume("a", group="g", timeout=0):
        delivery.nack(timedelta(seconds=30))
    for delivery in store.consume("b", group="g", timeout=0):
        delivery.ack_and_put(b"next", topic="a", delay=timedelta(seconds=40))


def counted(store: TimerStore) -> dict[str, TopicStats]:
    found = {each.topic: each for each in store.stats().topics}
    for each in found.values():
        gone = each.fired_count + each.cancelled_count + each.unreadable_count
        assert each.put_count - gone == each.pending_count == store.count(each.topic)
    return found


@pytest.mark.parametrize("flushes", range(4))
def test_a_kill_loses_no_count(tmp_path: Path, flushes: int) -> None:
    clock = ManualClock()
    store = TimerStore(tmp_path / "s", config=SMALL, clock=clock)
    for i in range(3):
        work(store, clock)
        if i < flushes:
            store.flush()
    before = counted(store)
    store.abandon()
    for _ in range(2):
        store = TimerStore(tmp_path / "s", config=SMALL, clock=clock)
        assert counted(store) == before
        store.abandon()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        work(store, clock)
        before = counted(store)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        assert counted(store) == before


def damage(path: Path, number: int) -> None:
    flip_bit(path / "config" / "topiccounts", number * PLACE_BYTES + 300)


@pytest.mark.parametrize("what", ["gone", "first", "one", "all"])
def test_counters_that_are_lost_begin_with_what_is_pending(
    tmp_path: Path, what: str, caplog: Any
) -> None:
    clock, path = ManualClock(), tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        work(store, clock)
        before = counted(store)
    if what == "gone":
        (path / "config" / "topiccounts").unlink()
    elif what == "all":
        (path / "config" / "topiccounts").write_bytes(b"\xff" * 4 * PLACE_BYTES)
    else:
        damage(path, 0 if what == "first" else 2)  # place 1 is that of the timer topic
    with TimerStore(path, config=SMALL, clock=clock) as store:
        after = counted(store)
        restarted = store.stats().recovery["restarted_counters"]
        assert restarted == {"gone": 0, "all": 4}.get(what, 1)
        assert ("start at 0 again" in caplog.text) == bool(restarted)
        changed = {name for name in before if before[name] != after[name]}
        assert len(changed) == {"first": 0, "one": 1}.get(what, 3)
        for name in changed:
            assert after[name].put_count == after[name].pending_count
            assert after[name].upcoming == before[name].upcoming
            assert after[name].fired_count == after[name].lateness.count == 0


def test_what_is_lost_in_several_lives_is_counted_in_each(tmp_path: Path) -> None:
    """Nothing tells of which topic a message was that a scan cannot read; the counts do."""
    clock, path = ManualClock(), tmp_path / "s"
    store = TimerStore(path, config=SMALL, clock=clock)
    ids = [*store.put_many([b"x"] * 9, topic="a", delay_ms=60_000)]
    store.flush()
    for lost in range(1, 4):
        store.abandon()
        shutil.rmtree(path / "timerlog")
        flip_bit(path / "commitlog" / f"{0:020d}", int(ids[2 * lost][12:24], 16) + 130)
        store = TimerStore(path, config=SMALL, clock=clock)
        found = counted(store)["a"]
        assert (found.put_count, found.unreadable_count) == (9, lost)
        store.flush()
    store.close()


def test_what_is_damaged_before_the_scan_is_not_counted(tmp_path: Path) -> None:
    """Recovery does not read it again with the log, so it checks it with its unit."""
    clock, path = ManualClock(), tmp_path / "s"
    store = TimerStore(path, config=SMALL, clock=clock)
    ids = [*store.put_many([b"x"] * 9, topic="a", delay_ms=60_000)]
    store.flush()
    store.put(b"y", topic="a", delay_ms=60_000)
    store.abandon()
    flip_bit(path / "commitlog" / f"{0:020d}", int(ids[4][12:24], 16) + 130)
    with TimerStore(path, config=SMALL, clock=clock) as store:
        assert store.core.findings.scanned_count == 1
        assert counted(store)["a"].pending_count == 9


def test_a_store_whose_making_was_killed_begins_at_nought(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        work(store, clock)
    kept = (path / "config" / "topiccounts").read_bytes()
    for each in sorted(path.rglob("*"), reverse=True):
        if each.name != "timerstore.json":
            each.rmdir() if each.is_dir() else each.unlink()
    (path / "config").mkdir()
    (path / "config" / "topiccounts").write_bytes(kept)
    with TimerStore(path, config=SMALL, clock=clock) as store:
        assert store.stats().topics == ()


def test_counters_that_are_ahead_of_the_log(tmp_path: Path) -> None:
    """Of a store that was restored to a point before: they go on from there."""
    clock, path, later = ManualClock(), tmp_path / "s", tmp_path / "later"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        work(store, clock)
    copy_tree(path, later)
    with TimerStore(later, config=SMALL, clock=clock) as store:
        for _ in range(3):
            work(store, clock)
        most = counted(store)
    file = Path("config") / "topiccounts"
    (path / file).write_bytes((later / file).read_bytes())
    store = TimerStore(path, config=SMALL, clock=clock)
    assert all(each.put_count >= most[name].put_count for name, each in counted(store).items())
    work(store, clock)
    before = counted(store)
    store.abandon()
    with TimerStore(path, config=SMALL, clock=clock) as store:
        assert counted(store) == before
