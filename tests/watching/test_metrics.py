"""Metrics: what Prometheus scrapes is what `stats` says."""

from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from timerstore import Config, ManualClock, Tuning, metrics
from timerstore.metrics.table import STATES, STORE_METRICS

prometheus_client = pytest.importorskip("prometheus_client")

SMALL = Config(durability="process", tuning=Tuning(wheel_slot_count=1_024, roll_window_slots=60))

PARTS = ("services", "stages", "levels", "copies")


def test_scraped_values(tmp_path: Path) -> None:
    clock, registry = ManualClock(), prometheus_client.CollectorRegistry()
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        metrics.register(store, registry, name="one")
        store.put_many([b"x"] * 10, delay_ms=list(range(0, 5_000, 500)))
        clock.advance(timedelta(seconds=2))
        stats = store.stats()

        def value(name: str, **labels: str) -> float | None:
            got = registry.get_sample_value("timerstore_" + name, {"name": "one", **labels})
            return None if got is None else float(got)

        assert value("waiting_for_space") == value("stopped") == value("retention_stopped") == 0
        assert value("fired_total") == stats.fired_count == 5
        assert value("pending") == stats.pending_count == 5
        assert value("commitlog_end") == stats.commitlog_end
        assert value("read_timestamp_seconds") == stats.read_ms / 1000
        assert value("lateness_seconds", quantile="0.99") == stats.lateness_p99_ms / 1000
        text = prometheus_client.generate_latest(registry).decode()
        assert 'timerstore_pending{name="one"} 5.0' in text
    assert prometheus_client.generate_latest(registry) == b""


def test_two_stores_in_one_registry(tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    stores = [timerstore.open(tmp_path / name, config=SMALL, clock=ManualClock()) for name in "ab"]
    collectors = [
        metrics.register(store, registry, name=name)
        for store, name in zip(stores, "ab", strict=True)
    ]
    stores[0].put(b"x", delay=timedelta(seconds=9))
    for name, count in (("a", 1), ("b", 0)):
        assert registry.get_sample_value("timerstore_pending", {"name": name}) == count
    registry.unregister(collectors[0])
    assert registry.get_sample_value("timerstore_pending", {"name": "a"}) is None
    for store in stores:
        store.close()


def test_every_number_of_stats_is_known() -> None:
    told: dict[str, Any] = defaultdict(int, dict.fromkeys(PARTS, ()))
    told["cleaning"] = defaultdict(int)
    for metric in STORE_METRICS:
        list(metric.rows(told))
    known = told.keys() - {*PARTS, *STATES, "cleaning"}
    numbers = {
        name
        for name, kind in timerstore.Stats.__annotations__.items()
        if kind in ("int", "float", int, float)
    }
    assert numbers - known <= {"open_s", "uptime_s", "collision_count"}
    assert known <= numbers
