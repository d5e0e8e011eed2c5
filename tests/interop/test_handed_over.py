"""A store handed over by the command, whose program goes on with a client of the cluster."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
import timerstore.rocketmq
from tests.cli.shell import SMALL, finish, process
from tests.interop.brokers import Brokers
from tests.interop.test_common_calls import now_ms

pytestmark = [
    pytest.mark.slow,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
]

TOPIC, GROUP = "billing", "mailer"


@pytest.mark.timeout(240)
def test_a_program_takes_its_old_timers_each_once(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timers"
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
    with timerstore.open(path, config=SMALL) as store:
        for i in range(20):
            store.put(b"read %d" % i, topic=TOPIC)
        taken = 0
        while taken < 20:
            batch = store.pull(TOPIC, group=GROUP, timeout=20)
            taken += len(batch)
            batch.ack()
        unread = [store.put(b"unread %d" % i, topic=TOPIC) for i in range(5)]
        start_ms = now_ms() + 20_000
        timers = [
            store.put(b"timer %d" % i, topic=TOPIC, at_ms=start_ms + 50 * i, key=f"k{i}")
            for i in range(200)
        ]
        cancelled = store.put(b"cancelled before", topic=TOPIC, at_ms=start_ms)
        assert store.cancel(cancelled)
        wrong = [store.put(b"wrong", topic=TOPIC, at_ms=start_ms + 600_000 + i) for i in range(3)]
    status, _, err = finish(process("handover", path))
    assert status == 0, err
    got: Counter[str] = Counter()
    with rocketmq(tmp_path / "home") as brokers:
        brokers.ask("names")
        brokers.start(path)
        with timerstore.rocketmq.connect(brokers.proxy(), invisible=10) as cluster:
            for id in wrong:
                assert cluster.cancel(id, topic=TOPIC)
            for delivery in cluster.consume(TOPIC, group=GROUP, timeout=20):
                got[delivery.id] += 1
                assert delivery.id in unread or now_ms() >= start_ms - 1_000
                delivery.ack()
    assert got == dict.fromkeys([*unread, *timers], 1)
