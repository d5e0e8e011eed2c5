"""What Prometheus is told of groups is what `stats` says."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.small_store import SMALL
from timerstore import Consumer, ManualClock, Retry, TimerStore, metrics
from timerstore.metrics import table as metrictable
from timerstore.testing.disk import QuietDisk

prometheus_client = pytest.importorskip("prometheus_client")


def test_scraped_values(tmp_path: Path) -> None:
    clock, registry = ManualClock(), prometheus_client.CollectorRegistry()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        metrics.register(store, registry, name="one")
        consumer = Consumer(store, "g")

        def handle(delivery: object) -> Retry | None:
            clock.advance(timedelta(milliseconds=15))
            return None if b"good" in repr(delivery.body).encode() else Retry(delay_level=-1)  # type: ignore[attr-defined]

        consumer.subscribe("t", handle)
        store.put_many([b"good"] * 3 + [b"bad"] * 2, topic="t")
        consumer.step()
        store.put_many([b"more"] * 4, topic="t")
        store.put_many([b"x"] * 6, topic="orphan")
        clock.advance(timedelta(seconds=2))

        def value(name: str, **labels: str) -> float | None:
            got = registry.get_sample_value("timerstore_" + name, {"name": "one", **labels})
            return None if got is None else float(got)

        mine = {"topic": "t", "group": "g"}
        assert value("group_lag", **mine) == 4 and value("group_in_flight", **mine) == 0
        assert value("group_oldest_age_seconds", **mine) == 2
        assert value("group_handled_total", **mine) == 3
        assert value("group_failed_total", **mine) == value("group_dead_total", **mine) == 2
        assert value("group_retried_total", **mine) == 0
        assert value("group_dead_letters", group="g") == 2
        assert value("unread_messages", topic="orphan") == 6
        assert value("groups_left_out") == 0
        assert value("group_response_seconds_bucket", le="0.01", **mine) == 0
        assert value("group_response_seconds_bucket", le="0.02", **mine) == 5
        assert value("group_response_seconds_count", **mine) == 5
        assert value("group_response_seconds_sum", **mine) == pytest.approx(0.075)
        assert value("group_lag", topic="orphan", group="") is None
        assert b"# TYPE timerstore_group_response_seconds histogram" in (
            prometheus_client.generate_latest(registry)
        )


def test_the_longest_backlogs_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrictable, "ROWS_MAX", 2)
    rows = [
        {"topic": topic, "group": "g", "lag_count": lag}
        for topic, lag in zip("abcd", (1, 9, 0, 7), strict=True)
    ]
    shown, left_out = metrictable.shown_rows(rows)
    assert [row["topic"] for row in shown] == ["b", "d"] and left_out == 2


def test_a_topic_that_is_no_text_is_escaped() -> None:
    (row,), _ = metrictable.shown_rows([{"topic": "a\udcff", "group": "g", "lag_count": 1}])
    assert (row["topic"], row["group"]) == ("a\\udcff", "g")
