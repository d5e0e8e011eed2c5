"""What Prometheus is told of a store's parts is what `stats` says."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore, metrics
from timerstore.jit.record import acting_as
from timerstore.services.world.state import CLEANING
from timerstore.testing.disk import QuietDisk
from timerstore.watching.services import SERVICE_STATES

prometheus_client = pytest.importorskip("prometheus_client")


def test_scraped_values(tmp_path: Path) -> None:
    clock, registry = ManualClock(), prometheus_client.CollectorRegistry()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        metrics.register(store, registry, name="one")

        def value(metric: str, **labels: str) -> float | None:
            got = registry.get_sample_value("timerstore_" + metric, {"name": "one", **labels})
            return None if got is None else float(got)

        store.put_many([b"x"] * 5, topic="t", delay_level=2)
        store.put(bytes(300), topic="t", delay=timedelta(hours=3))
        store.pause("firing")
        clock.advance(timedelta(seconds=7))
        assert (
            value("level_waiting", level="2") == 5 and value("level_passed_total", level="2") == 0
        )
        assert value("level_overdue_seconds", level="2") == 2
        assert value("level_waiting", level="1") is None
        assert value("service_state", service="dequeue-get", state="waiting") == 1
        for service in ("dequeue-get", "enqueue-get"):
            told = [value("service_state", service=service, state=each) for each in SERVICE_STATES]
            assert sorted(each or 0 for each in told) == [0, 0, 0, 1]
        store.resume("firing")
        clock.advance(timedelta(hours=1))
        with acting_as(CLEANING):
            words = store.core.engine.world.cleaning
            words.copied_count, words.copied_bytes = 3, 700
        store.core.upkeep.cleaner.segment_count, store.core.upkeep.retention.removed_count = 2, 1
        stats = store.stats()
        assert value("level_passed_total", level="2") == 5
        assert value("rolled_bytes_total") == stats.rolled_bytes > 300
        assert value("cleaning_copied_bytes_total") == stats.cleaning.copied_bytes == 700
        assert value("cleaning_copied_total") == stats.cleaning.copied_count == 3
        assert value("cleaning_segments_total") == stats.cleaning.segment_count == 2
        assert value("cleaning_removed_total") == stats.cleaning.removed_count == 1
        assert value("cleaning_pending_bytes") == stats.cleaning.pending_bytes
        assert value("cleaning_could_go_bytes") == stats.cleaning.could_go_bytes
        assert value("unlinked_age_seconds") == 0
        for each in stats.stages:
            assert value("stage_seconds_total", stage=each.name) == each.busy_ms / 1000
            assert value("stage_entries_total", stage=each.name) == each.entry_count
            assert value("stage_steps_total", stage=each.name) == each.step_count
            assert value("stage_longest_seconds", stage=each.name) == each.longest_ms / 1000
