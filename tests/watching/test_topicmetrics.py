"""Metrics of topics: what Prometheus scrapes is what `stats` says, of so many topics at most."""

from datetime import timedelta
from pathlib import Path

import pytest

from timerstore import Config, ManualClock, TimerStore, Tuning, metrics
from timerstore.metrics import table as metrictable
from timerstore.metrics.table import LATENESS_ENDS_MS, OTHERS, SET_DELAY_ENDS_MS
from timerstore.timelog.writing.tally import HISTOGRAM_BUCKETS, bucket_max

prometheus_client = pytest.importorskip("prometheus_client")

SMALL = Config(durability="process", tuning=Tuning(wheel_slot_count=1_024, roll_window_slots=60))


def test_scraped_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, registry = ManualClock(), prometheus_client.CollectorRegistry()
    monkeypatch.setattr(metrictable, "TOPICS_MAX", 2)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        metrics.register(store, registry, name="one")
        for count, topic in enumerate("abcd", 1):
            store.put_many(
                [b"xyz"] * count, topic=topic, delay_ms=[1_500 * i for i in range(count)]
            )
        clock.advance(timedelta(seconds=1))

        def value(name: str, topic: str, **labels: str) -> float | None:
            known = {"name": "one", "topic": topic, **labels}
            got = registry.get_sample_value("timerstore_topic_" + name, known)
            return None if got is None else float(got)

        for topic, count, topics in (("c", 3, 1), ("d", 4, 1), (OTHERS, 3, 2)):
            assert value("put_total", topic) == count
            assert value("fired_total", topic) == topics
            assert value("pending", topic) == count - topics
            assert value("pending_bytes", topic) == 3 * (count - topics)
            assert value("cancelled_total", topic) == value("unreadable_total", topic) == 0
            assert value("overdue", topic) == 0
            assert value("upcoming", topic, within="3600") == count - topics
            assert value("lateness_seconds_count", topic) == topics
            assert value("lateness_seconds_bucket", topic, le="0.001") == topics
            assert value("set_delay_seconds_bucket", topic, le="+Inf") == count
            assert value("set_delay_seconds_bucket", topic, le="1.024") == topics
        assert value("set_delay_seconds_sum", "d") == 9
        assert value("put_total", "a") is None
    assert prometheus_client.generate_latest(registry) == b""


def test_the_ends_of_its_buckets_are_ends_of_ours() -> None:
    ours = {bucket_max(bucket) for bucket in range(HISTOGRAM_BUCKETS)}
    for ends_ms in (LATENESS_ENDS_MS, SET_DELAY_ENDS_MS):
        assert set(ends_ms) <= ours and list(ends_ms) == sorted(ends_ms)
