"""What keeps the log is named: a timer with its offset, or whatever else it is."""

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.services.test_cleaning import SMALL, START_MS, clean_all, drain, live_on, open_small
from timerstore import ManualClock, TimerStore
from timerstore.services.cleaning.retention import CLOCK
from timerstore.watching import stats
from timerstore.watching.health import HealthWarning

SECOND = timedelta(seconds=1)


def kept_by(store: TimerStore) -> str:
    return store.stats().cleaning.kept_by


def test_a_pending_timer_is_named(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = dataclasses.replace(SMALL, cleaning=False)
    with open_small(tmp_path / "s", clock, config) as store:
        assert kept_by(store) == "nothing"
        near = store.put(b"near", topic="a", delay=300 * SECOND)
        far = store.put(b"far", topic="b", delay=600 * SECOND)
        store.core.play_now()
        offset = int(store.core.engine.queues.read(0, 1, 1)[0]["offset"])
        live_on(store, clock, 5)
        assert kept_by(store) == (
            f"timer {far} of topic 'b', due 2027-01-15T08:10:00Z, at offset {offset:,}"
        )
        store.cancel(far)  # its slot comes all the same: until then the segment stays
        assert kept_by(store) == "pending timers, from offset 0 on"
        assert near not in kept_by(store)
        clock.advance(700 * SECOND)
        drain(store)
        live_on(store, clock, 2)
        assert "timer" not in kept_by(store)
        assert store.stats().commitlog_start > 0


def test_what_else_keeps_it_comes_second(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = dataclasses.replace(SMALL, cleaning_slack_bytes=1 << 20)
    with open_small(tmp_path / "s", clock, config) as store:
        store.put(b"far", topic="b", delay=600 * SECOND)
        store.put_many([b"x"] * 60, topic="orphan")
        live_on(store, clock, 3)
        timer, then = kept_by(store).split("; then by ")
        assert timer.startswith("timer ") and timer.endswith("at offset 0")
        assert then.startswith("topic 'orphan', which no group has read: 60 messages from offset ")
    with timerstore.open(tmp_path / "s", read_only=True, clock=clock) as looking:
        assert kept_by(looking) == f"{timer}; then by {then}"


def test_timers_without_units_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        live_on(store, clock, 3)
        monkeypatch.setattr(store.core.runner, "play", lambda start_ms, stop_ms: None)
        first = store.core.engine.commitlog.end
        store.put_many([b"far"] * 60, delay=600 * SECOND)
        clock.advance(SECOND)
        reach = store.core.upkeep.cleaner.reach
        assert first // 4_096 * 4_096 == reach.find(first // 4_096 * 4_096)
        assert reach.kept_by == f"timers that have no unit yet, from offset {first:,} on"
        monkeypatch.undo()


def test_a_copy_is_named_where_it_is(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        far = store.put(b"far", topic="b", delay=600 * SECOND)
        store.core.play_now()
        live_on(store, clock, 10)
        clean_all(store)
        cleaner = store.core.upkeep.cleaner
        cleaner.stopped = True
        live_on(store, clock, 5)
        cleaner.reach.find(store.core.engine.world.cleaning.floor)
        found = store.stats().cleaning
        assert found.copied_count and found.floor
        assert found.kept_by.startswith(f"timer {far} of topic 'b', due ")
        assert int(found.kept_by.split("offset ")[1].replace(",", "")) >= found.floor


def test_a_store_that_is_behind_is_not_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its overdue timers are not searched for the one that keeps the log."""
    clock = ManualClock(START_MS)
    config = dataclasses.replace(SMALL, cleaning=False)
    with open_small(tmp_path / "s", clock, config) as store:
        store.put_many([b"overdue"] * 60, topic="b", delay=3 * SECOND)
        store.core.play_now()
        store.pause("firing")
        live_on(store, clock, 5)

        def search(*_: object) -> None:
            raise AssertionError("all that is overdue is searched")

        monkeypatch.setattr(stats, "get", search)
        assert kept_by(store).startswith("pending timers, from offset ")
        store.resume("firing")
        monkeypatch.undo()
        clock.advance(SECOND)
        assert store.count() == 0


@pytest.mark.parametrize("back", [timedelta(hours=1), timedelta(days=3650)])
@pytest.mark.parametrize("puts", [0, 1])
def test_a_clock_that_was_set_back_is_named(tmp_path: Path, back: timedelta, puts: int) -> None:
    """Until it has caught up nothing goes: health, and what keeps the log, say so."""
    clock = ManualClock(START_MS, force=True)
    clock.advance(back)
    with open_small(tmp_path / "s", clock) as store:
        store.put_many([b"one"] * puts)
        clock.advance(2 * SECOND)
        assert len(drain(store)) == puts and not told(store)
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        assert len(live_on(store, clock, 12)) == 240
        (warning,) = told(store)
        assert warning.count == pytest.approx(back / timedelta(milliseconds=1), abs=60_000)
        assert "set back" in warning.what and kept_by(store) == CLOCK
        assert store.stats().commitlog_start == 0
        clock.advance(back)
        live_on(store, clock, 3)
        assert not told(store) and CLOCK not in kept_by(store)
        assert store.stats().commitlog_start > 0


def told(store: TimerStore) -> list[HealthWarning]:
    return [each for each in store.health().warnings if each.kind == "clock set back"]
