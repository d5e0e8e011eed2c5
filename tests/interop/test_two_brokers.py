"""A cluster of two brokers, with a topic whose queues are on both."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.rocketmq
from tests.cli.shell import SMALL, finish, process
from tests.interop.brokers import Brokers
from tests.interop.conftest import ROOMY
from tests.interop.lives import log_of
from tests.interop.test_common_calls import now_ms
from timerstore import ClusterError, Consumer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.prove,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
]

TOPIC, FAILS, MOVED = "both", "fails", "moved"


def take(cluster: Any, topic: str, wanted: set[str]) -> None:
    """Take so many; each comes once, and nothing else."""
    got: Counter[str] = Counter()
    while got.keys() < wanted:
        for delivery in cluster.pull(topic, group="readers"):
            got[delivery.id] += 1
            delivery.ack()
    assert got == dict.fromkeys(wanted, 1)
    assert not cluster.pull(topic, group="readers", timeout=0)


def fail(delivery: Any) -> None:
    raise ValueError("no")


def stored(path: Path, topic: str) -> int:
    return sum(each.topic == topic for each in log_of(path).messages)


@pytest.mark.timeout(400)
def test_all_calls_know_both(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
    paths = [tmp_path / name for name in ("broker-a", "broker-b")]
    with ExitStack() as stack:
        first, second = (stack.enter_context(rocketmq(tmp_path / f"home-{i}")) for i in range(2))
        (names,) = first.ask("names")
        second.ask("know", names)
        for brokers, path in zip((first, second), paths, strict=True):
            path.mkdir()
            brokers.start(path, **ROOMY | {"brokerName": path.name})
            brokers.ask("topics", path, TOPIC, FAILS, MOVED)
        address = first.proxy()
        cluster = stack.enter_context(timerstore.rocketmq.connect(address, invisible=20))

        ids = [cluster.put(b"one", topic=TOPIC, delay=30) for _ in range(20)]
        assert all(cluster.cancel(id, topic=TOPIC) for id in ids[:10])
        ids += cluster.put_many([b"many"] * 200, topic=TOPIC, delay=5)
        take(cluster, TOPIC, set(ids[10:]))
        assert all(stored(path, TOPIC) > 50 for path in paths), "both have some"

        consumer = Consumer(cluster, "failing", threads=4, max_attempts=0)
        consumer.on(FAILS)(fail)
        with consumer:
            dead = set(cluster.put_many([b"x"] * 20, topic=FAILS))
            letters: list[Any] = []
            while len(letters) < len(dead):
                letters += cluster.dead_letters("failing")
            assert len(letters) == len(dead) and {each.id for each in letters} == dead
        assert all(stored(path, "%DLQ%failing") for path in paths)

        with timerstore.open(tmp_path / "timers", config=SMALL) as store:
            at_ms = now_ms() + 30_000
            moved = set(store.put_many([b"x"] * 100, topic=MOVED, at_ms=at_ms))
        status, _, err = finish(process("move", tmp_path / "timers", address))
        assert (status, err) == (0, "")
        take(cluster, MOVED, moved)

        later = cluster.put(b"later", topic=TOPIC, delay=600)
        second.kill()
        with pytest.raises(ClusterError):  # it may have the timer, so nobody knows that it is gone
            cluster.cancel(later, topic=TOPIC)
        put: set[str] = set()
        while len(put) < 20:  # the client asks the other broker next
            put.add(cluster.put(b"other", topic=TOPIC))
        got: set[str] = set()
        while got != put:
            try:
                for delivery in cluster.pull(TOPIC, group="readers"):
                    got.add(delivery.id)
                    delivery.ack()
            except ClusterError:
                time.sleep(0.1)
