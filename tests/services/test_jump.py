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
SHORT = Config(tuning=Tuning(wheel_slot_count=86_400, roll_window_slots=80_000))


def work(store: TimerStore) -> tuple[int, int]:
    """How many steps the services made, and what these did: entries, slots, jumps."""
    services = store.core.engine.services
    assert len(services) >= len(SERVICE_NAMES)
    return sum(each.step_count for each in services), sum(each.done_count for each in services)


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
