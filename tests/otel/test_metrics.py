"""Observable instruments: what is collected is what Prometheus is told."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore import metrics as prometheus
from timerstore.testing.disk import QuietDisk

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from timerstore import otel

NOT_OBSERVED = ("_response_seconds", "topic_lateness", "topic_set_delay")


def collected(reader: InMemoryMetricReader) -> dict[tuple[str, tuple[tuple[str, Any], ...]], float]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        (metric.name, tuple(sorted(dict(point.attributes or {}).items()))): point.value
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_it_is_what_prometheus_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "FRESH_S", 0)
    prometheus_client = pytest.importorskip("prometheus_client")
    clock, reader = ManualClock(), InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    registry = prometheus_client.CollectorRegistry()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        otel.register(store, provider, name="one")
        prometheus.register(store, registry, name="one")
        store.put_many([b"x"] * 9, topic="t", delay_ms=100)
        store.put_many([b"x"] * 3, topic="orphan")
        store.put(b"x", topic="leveled", delay_level=2)
        clock.advance(timedelta(seconds=2))
        store.pull("t", group="g", max_count=4, timeout=0).ack()
        clock.advance(timedelta(seconds=2))
        got = collected(reader)
        told = {
            (
                sample.name.removesuffix("_total").replace("timerstore_", "timerstore.", 1),
                tuple(sorted(sample.labels.items())),
            ): sample.value
            for family in registry.collect()
            for sample in family.samples
            if not any(part in sample.name for part in NOT_OBSERVED)
        }
        changing = "timerstore.service_busy_share"
        same = {key for key in told if key[0] != changing}
        assert got.keys() == told.keys()
        assert {key: got[key] for key in same} == {key: told[key] for key in same}
        mine = (("group", "g"), ("name", "one"), ("topic", "t"))
        assert got["timerstore.group_lag", mine] == 5
        assert got["timerstore.group_handled", mine] == 4
    assert collected(reader) == {}  # it was closed
    provider.shutdown()


def test_one_look_serves_a_collection(tmp_path: Path) -> None:
    clock, reader = ManualClock(), InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        otel.register(store, provider)
        looks, stats = [], store.stats

        def look() -> Any:
            looks.append(1)
            return stats()

        store.stats = look  # type: ignore[method-assign]
        assert collected(reader)["timerstore.pending", ()] == 0
        assert len(looks) == 1
        del store.stats
    provider.shutdown()
