"""Jumps over slots without units: time costs what is due in it, not the slots that pass.

Work is counted in steps of services and what these did, never in time. `tests/models/jump_model.py`
has the rule; `test_dequeue_get.py` compares each step with a twin.
"""

import time
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.services.world.state import SERVICE_NAMES

YEAR_S = 365 * 86_400
DAY_MS = 86_400_000
TINY = Config(tuning=Tuning(wheel_slot_count=64, roll_window_slots=4))
SHORT = Config(tuning=Tuning(wheel_slot_count=86_400, roll_window_slots=80_000))


def work(store: TimerStore) -> tuple[int, int]:
    """How many steps the services made, and what these did: entries, slots, jumps."""
    services = store.core.engine.services
    assert len(services) >= len(SERVICE_NAMES)
    return sum(each.step_count for each in services), sum(each.done_count for each in services)


def checkpoints(store: TimerStore) -> int:
    return store.core.flusher.checkpoint_count


def test_a_year_costs_its_hops_and_what_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path, clock=clock) as store:
        far = store.put(b"far", delay=timedelta(days=3650))
        ids = [store.put(b"due", topic="t", delay=timedelta(days=day)) for day in (40, 41, 300)]
        began_ms, (steps, done) = clock.now_ms, work(store)
        clock.advance(timedelta(seconds=YEAR_S))
        hops = store.core.engine.world.dequeue_get.hop_count
        assert abs(2 * hops - (365 + 40 + 41 + 300)) < 10  # of each timer, one in two days
        more_steps, more_done = work(store)
        assert more_steps - steps < 60 * hops
        assert more_done - done < 60 * hops
        assert store.core.engine.read_slot == clock.now_ms // 1000
        fired = list(store.pull("t", group="g", timeout=0))
        assert [each.id for each in fired] == ids
        assert [each.fired_ms - began_ms for each in fired] == [
            DAY_MS * day for day in (40, 41, 300)
        ]
        timer = store.get(far)
        assert timer is not None and timer.due_ms == began_ms + 3650 * DAY_MS


def test_what_is_put_where_slots_were_jumped_fires_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path, config=SHORT, clock=clock) as store:
        store.put(b"far", delay=timedelta(days=400))
        for days in (1, 20, 300):
            clock.advance(timedelta(days=days))
            for ago_ms in (0, 1, 5_000, DAY_MS, 2 * DAY_MS):
                id = store.put(b"x", topic="t", at_ms=clock.now_ms - ago_ms)
                clock.advance(0)
                assert [each.id for each in store.pull("t", group="g", timeout=0)] == [id]
            soon = store.put(b"x", topic="t", delay=timedelta(milliseconds=1))
            cancelled = store.put(b"x", topic="t", delay=timedelta(seconds=3))
            assert store.cancel(cancelled)
            clock.advance(timedelta(milliseconds=1))
            assert [each.id for each in store.pull("t", group="g", timeout=0)] == [soon]
    assert timerstore.verify(tmp_path).ok


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_clock_that_was_set_ahead_by_years_costs_hops(tmp_path: Path) -> None:
    """The threads run: the store was last open two years ago, as the system's clock says."""
    before = ManualClock(time.time_ns() // 1_000_000 - 730 * DAY_MS)
    config = Config(tuning=Tuning(wheel_slot_count=1 << 22, roll_window_slots=4_000_000))
    with timerstore.open(tmp_path, config=config, clock=before) as store:
        store.put(b"far", topic="far", delay=timedelta(days=1000))
        before.advance(1)
    with timerstore.open(tmp_path, config=config) as store:
        id = store.put(b"x", topic="t", delay=timedelta(seconds=1))
        assert [each.id for each in store.pull("t", group="g", timeout=300)] == [id]
        # Not the steps, and not few: threads look up while time passes. There are 63 million slots.
        assert work(store)[1] < 100_000


def test_days_without_a_timer_cost_no_checkpoints(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path, config=TINY, clock=clock) as store:
        id = store.put(b"first", delay=timedelta(seconds=90))
        clock.advance(timedelta(minutes=2))
        before, (steps, done) = checkpoints(store), work(store)
        clock.advance(timedelta(days=10))  # 6,750 turns of the wheel
        assert checkpoints(store) == before
        assert work(store)[0] - steps < 100 and work(store)[1] - done < 100
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
        assert checkpoints(store) == 1
        assert store.core.engine.read_slot == later.now_ms // 1000


@pytest.mark.whole
@pytest.mark.parametrize("after_jump", ["kill", "flush, kill"])
def test_what_is_put_after_a_jump_outlives_a_kill(tmp_path: Path, after_jump: str) -> None:
    clock = ManualClock()
    store = timerstore.open(tmp_path, config=TINY, clock=clock)
    clock.advance(timedelta(days=1))
    ids = [store.put(b"x", delay=timedelta(seconds=s)) for s in (0, 5, 100, 1000)]
    clock.advance(timedelta(milliseconds=1))
    if after_jump != "kill":
        store.flush()
    store.abandon()
    with timerstore.open(tmp_path, config=TINY, clock=ManualClock(clock.now_ms)) as store:
        assert [store.get(id) is not None for id in ids] == [False, True, True, True]
        clock = store.core.clock  # type: ignore[assignment]
        clock.advance(timedelta(seconds=1001))
        assert len(list(store.pull("default", group="g", timeout=0))) == 4
        assert store.count() == 0


@pytest.mark.parametrize("read_ms", [0, 1_000, 1 << 40, 1 << 47, (1 << 63) - 1])
def test_a_brokers_read_cursor_may_say_anything(read_ms: int, tmp_path: Path) -> None:
    """It has no checksum. No slot since then is walked, and nothing waits for it."""
    clock = ManualClock()
    with timerstore.open(tmp_path, config=TINY, clock=clock) as store:
        ids = store.put_many([b"x"] * 2, topic="t", delay=[timedelta(seconds=9), timedelta(days=1)])
    file = tmp_path / "config" / "timercheck"
    file.write_bytes(read_ms.to_bytes(8, "big") + file.read_bytes()[8:])
    with timerstore.open(tmp_path, config=TINY, clock=clock) as store:
        assert store.core.findings.by_broker
        assert work(store)[0] < 500
        clock.advance(timedelta(seconds=10))
        assert [each.id for each in store.pull("t", group="g", timeout=0)] == [ids[0]]
        assert [timer.id for timer in store.pending()] == [ids[1]]
