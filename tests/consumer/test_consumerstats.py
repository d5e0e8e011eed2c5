"""What a consumer says of itself."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.small_store import SMALL
from timerstore import Consumer, ManualClock, Retry, TimerStore
from timerstore.testing.disk import QuietDisk


@pytest.mark.parametrize("broadcast", [False, True])
def test_rates_and_response_times_by_topic(
    tmp_path: Path, broadcast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock, running = ManualClock(), []
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        consumer = Consumer(store, "g", broadcast=broadcast)

        def handle(delivery: Any) -> Retry | None:
            clock.advance(timedelta(milliseconds=15))
            running.append(tuple(each.running_count for each in consumer.stats()))
            return Retry() if delivery.body == b"bad" else None

        consumer.subscribe("one", handle)
        consumer.subscribe("two", handle)
        store.put_many([b"good"] * 60 + [b"bad"] * 6, topic="one")
        consumer.step()
        store.put_many([b"later"] * 5, topic="two")
        one, two = consumer.stats()
        assert (one.topic, one.handled_per_s, one.failed_per_s) == ("one", 1, 0.1)
        assert (two.topic, two.handled_per_s, two.failed_per_s) == ("two", 0, 0)
        assert (one.group.handled_count, one.group.failed_count) == (60, 6)
        assert one.group.retried_count == (0 if broadcast else 6)
        assert two.group.lag_count == 5 and one.group.lag_count == 0
        assert one.group.response.max_ms == 15
        assert one.group.group == ("%BROADCAST%g" if broadcast else "g")
        assert set(running) == {(1, 0)} and one.running_count == 0
        clock.advance(timedelta(minutes=2))
        assert [each.handled_per_s for each in consumer.stats()] == [0, 0]
