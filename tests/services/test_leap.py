"""The leap over time in which nothing waits; its rule is in `tests/models/rules_model.py`."""

from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.services.running.runner import leap

TINY = Config(tuning=Tuning(wheel_slot_count=64, roll_window_slots=4))


def checkpoints(store: TimerStore) -> int:
    return store.core.flusher.checkpoint_count


def test_days_without_a_timer_cost_no_checkpoints(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path, config=TINY, clock=clock) as store:
        id = store.put(b"first", delay=timedelta(seconds=90))
        clock.advance(timedelta(minutes=2))
        before = checkpoints(store)
        clock.advance(timedelta(days=10))
        assert checkpoints(store) - before < 10  # 13,500 turns of the wheel's half
        assert store.core.engine.read_slot == clock.now_ms // 1000
        assert store.get(id) is None
        due = store.put(b"second", delay=timedelta(seconds=90))
        overdue = store.put(b"third", at_ms=clock.now_ms - 5)
        assert store.get(due) is not None
        assert not store.cancel(overdue)
        clock.advance(timedelta(seconds=91))
        assert [d.body for d in store.pull("default", group="g", timeout=0)] == [
            b"first",
            b"third",
            b"second",
        ]
    assert timerstore.verify(tmp_path).ok


def test_a_store_that_nobody_opened_for_days_is_there_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    timerstore.open(tmp_path, config=TINY, clock=clock).close()
    later = ManualClock(clock.now_ms + 10 * 86_400_000)
    with timerstore.open(tmp_path, config=TINY, clock=later) as store:
        assert checkpoints(store) < 10
        assert store.core.engine.read_slot == later.now_ms // 1000


@pytest.mark.whole
@pytest.mark.parametrize("after_leap", ["kill", "flush, kill"])
def test_what_is_put_after_a_leap_outlives_a_kill(tmp_path: Path, after_leap: str) -> None:
    clock = ManualClock()
    store = timerstore.open(tmp_path, config=TINY, clock=clock)
    clock.advance(timedelta(days=1))
    ids = [store.put(b"x", delay=timedelta(seconds=s)) for s in (0, 5, 100, 1000)]
    clock.advance(timedelta(milliseconds=1))
    if after_leap != "kill":
        store.flush()
    store.abandon()
    with timerstore.open(tmp_path, config=TINY, clock=ManualClock(clock.now_ms)) as store:
        assert [store.get(id) is not None for id in ids] == [False, True, True, True]
        clock = store.core.clock  # type: ignore[assignment]
        clock.advance(timedelta(seconds=1001))
        assert len(list(store.pull("default", group="g", timeout=0))) == 4
        assert store.count() == 0


def test_nothing_is_leaped_over(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path, config=TINY, clock=clock) as store:
        far_ms = clock.now_ms + 86_400_000
        id = store.put(b"x", delay=timedelta(seconds=30))
        assert not leap(store.core.engine, far_ms)  # it waits in the timer topic's queue
        clock.advance(timedelta(seconds=1))
        assert not leap(store.core.engine, far_ms)  # it has its unit
        assert store.cancel(id)
        assert not leap(store.core.engine, far_ms)  # so has what cancelled it
        level = store.put(b"x", delay_level=5)
        clock.advance(timedelta(seconds=40))
        assert not leap(store.core.engine, far_ms)
        clock.advance(timedelta(minutes=2))
        assert store.get(level) is None
        assert not leap(store.core.engine, clock.now_ms + 63_000)  # no need
        assert leap(store.core.engine, clock.now_ms + 65_000)
