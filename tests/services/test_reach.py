"""The reach: what keeps the log besides pending timers."""

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

from tests.services.test_cleaning import SMALL, START_MS, drain, open_small
from timerstore import Consumer, ManualClock, Retry

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("retention_ms", [0, 10_000])
def test_what_everybody_has_consumed_is_in_reach(tmp_path: Path, retention_ms: int) -> None:
    clock = ManualClock(START_MS)
    config = dataclasses.replace(SMALL, retention_ms=retention_ms)
    with open_small(tmp_path / "s", clock, config) as store:
        reach = store.core.upkeep.cleaner.reach
        store.put_many([b"x"] * 40)
        clock.advance(SECOND)
        end = store.core.engine.commitlog.end // 4_096 * 4_096
        found = reach.find(0)
        assert found < end
        offset = int(store.core.engine.queues.read(1, 0, 1)[0]["offset"])
        assert reach.kept_by == (
            "retention_ms"
            if retention_ms
            else f"topic 'default', which no group has read: 40 messages from offset {offset:,} on"
        )
        drain(store)
        store.consuming.write_offsets()
        if retention_ms:
            assert reach.find(0) == 0
            clock.advance(11 * SECOND)
        assert reach.find(found) == reach.found == end
        assert reach.find(end) == end  # no further


def test_what_a_slow_group_needs_stays(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        assert len(store.pull("default", group="slow", timeout=0)) == 0
        store.put_many([b"x"] * 40)
        clock.advance(SECOND)
        drain(store)
        store.consuming.write_offsets()
        assert (
            0 < store.core.upkeep.cleaner.reach.find(0) < store.core.engine.commitlog.end // 2
        )  # what was put
        offset = int(store.core.engine.queues.read(1, 0, 1)[0]["offset"])
        assert store.core.upkeep.cleaner.reach.kept_by == (
            "group 'slow', which is behind in topic 'default': "
            f"40 messages from offset {offset:,} on"
        )


def test_dead_letters_are_called_that(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        consumer = Consumer(store, "g", max_attempts=0)
        consumer.subscribe("default", lambda d: Retry(delay_level=-1))
        store.put(b"bad")
        assert consumer.step() == 1
        store.put_many([b"x"] * 40, topic="other")
        store.pull("other", timeout=0).ack()
        store.consuming.write_offsets()
        assert store.core.upkeep.cleaner.reach.find(0) == 0
        assert store.core.upkeep.cleaner.reach.kept_by.startswith(
            "dead letters of group 'g': 1 message from offset "
        )


def test_what_a_level_has_not_delivered_stays(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        store.put(b"level", delay_level=3)
        store.put_many([b"x"] * 40)
        clock.advance(SECOND)
        drain(store)
        store.consuming.write_offsets()
        assert store.core.upkeep.cleaner.reach.find(0) == 0
        assert (
            store.core.upkeep.cleaner.reach.kept_by == "delay level 3: 1 message from offset 0 on"
        )
        clock.advance(20 * SECOND)
        drain(store)
        store.consuming.write_offsets()
        assert store.core.upkeep.cleaner.reach.find(0) > 0


def test_what_is_not_linked_stays(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        store.core.runner.play = lambda start_ms, stop_ms: None  # type: ignore[method-assign]
        store.put_many([b"x"] * 40, delay_ms=1_000)
        clock._now_ms += 1_000
        assert store.core.upkeep.cleaner.reach.find(0) == 0
        assert store.core.upkeep.cleaner.reach.kept_by.startswith(
            "timers that have no unit yet, from offset "
        )
