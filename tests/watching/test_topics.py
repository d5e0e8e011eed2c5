"""What each topic holds, beside what was put there."""

from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from timerstore import (
    Config,
    InvalidArgumentError,
    ManualClock,
    StoreClosedError,
    TimerStore,
    Tuning,
)
from timerstore.watching.topics import WITHIN_MS, Histogram

SMALL = Config(durability="process", tuning=Tuning(wheel_slot_count=1_024, roll_window_slots=60))
DAY_MS = 86_400_000


def test_a_topic_from_put_to_fired(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        assert store.stats().topics == () and store.upcoming().later_count == 0
        ids = store.put_many([b"four"] * 4, topic="a", delay_ms=[500, 2_000, 3 * DAY_MS, 0])
        store.put(b"x", topic="b", delay_level=2)
        store.cancel(ids[1])
        clock.advance(timedelta(milliseconds=100))
        a, b = store.stats().topics
        assert (a.topic, a.put_count, a.fired_count, a.cancelled_count) == ("a", 4, 1, 1)
        assert (a.pending_count, a.pending_bytes, a.lateness_max_ms) == (2, 8, 0)
        assert a.set_delay.count == 4 and a.set_delay.sum_ms == 2_500 + 3 * DAY_MS
        assert a.set_delay.buckets[:2] == ((0, 1), (512, 1))
        assert a.oldest_due_ms is None and a.next_due_ms is not None
        assert 0 <= a.next_due_ms - clock.now_ms <= 400
        assert dict(a.upcoming.within) == {ms: 2 if ms > 3 * DAY_MS else 1 for ms in WITHIN_MS} | {
            1_000: dict(a.upcoming.within)[1_000]
        }
        assert (b.pending_count, dict(b.upcoming.within)[10_000]) == (1, 1)
        assert store.upcoming("b") == b.upcoming
        both = store.upcoming()
        assert dict(both.within)[7 * DAY_MS] == 3 and both.overdue_count == both.later_count == 0
        assert store.upcoming("unknown").within[-1] == (7 * DAY_MS, 0)
        with pytest.raises(InvalidArgumentError):
            store.upcoming(5)  # type: ignore[arg-type]
    with pytest.raises(StoreClosedError):
        store.upcoming()


def test_what_is_overdue_where_nothing_fires(tmp_path: Path) -> None:
    """Read-only: what fell due since is overdue, as far back as it was due."""
    clock, path = ManualClock(), tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        delays_ms = [600_000, 700_000, 2 * DAY_MS, 90 * DAY_MS]
        store.put_many([b"x"] * 4, topic="a", delay_ms=delays_ms)
        store.put_many([b"x"] * 5, topic="a", delay_ms=[9_000] * 5)
        start_ms = clock.now_ms
    later = ManualClock(start_ms + 20 * DAY_MS)
    with timerstore.open(path, read_only=True, clock=later) as looked:
        (a,) = looked.stats().topics
        assert a.upcoming.overdue_count == 8 and a.upcoming.later_count == 1
        assert a.oldest_due_ms is not None and start_ms <= a.oldest_due_ms <= start_ms + 9_000
        assert a.next_due_ms is not None
        assert abs(a.next_due_ms - (start_ms + 90 * DAY_MS)) < 90 * DAY_MS / 56


def test_late_timers(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        store.put_many([b"x"] * 99, topic="a", delay_ms=[1_000] * 99)
        clock.advance(timedelta(seconds=2))
        store.put(b"x", topic="a", delay=timedelta(seconds=1))
    clock = ManualClock(clock.now_ms + 61_000)
    with TimerStore(path, config=SMALL, clock=clock) as store:
        (a,) = store.stats().topics
        assert (a.fired_count, a.lateness_p50_ms, a.lateness_p99_ms) == (100, 0, 0)
        assert a.lateness_max_ms == a.lateness.sum_ms == 60_000
        assert a.lateness.buckets == ((0, 99), (65_536, 1))


def test_quantiles_of_a_histogram() -> None:
    empty = Histogram(0, 0, ())
    assert empty.quantile_ms(0.5) == 0
    some = Histogram(10, 99, ((1, 5), (8, 4), (64, 1)))
    assert [some.quantile_ms(share) for share in (0, 0.5, 0.51, 0.9, 0.99, 1)] == [
        *(1, 1, 8, 8, 64, 64)
    ]
