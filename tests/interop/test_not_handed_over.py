"""A store that was killed, and that nobody handed over, in RocketMQ's own code."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
import timerstore.rocketmq
from tests.cli.shell import SMALL
from tests.interop.brokers import Brokers
from tests.interop.lives import settings
from tests.interop.test_common_calls import now_ms
from tests.interop.test_handed_over import GROUP, TOPIC, filled_and_killed

pytestmark = [
    pytest.mark.slow,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
    pytest.mark.prove,
]


@pytest.mark.timeout(300)
def test_a_broker_loses_none_but_fires_what_was_cancelled(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know how far we came: what had fired, or was acknowledged, comes again."""
    path, got = tmp_path / "timers", Counter[bytes]()
    filled = filled_and_killed(path)
    wanted = {b"unread %d" % i for i in range(5)} | {b"timer %d" % i for i in range(200)}
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
    with rocketmq(tmp_path / "home") as brokers:
        brokers.ask("names")
        brokers.start(path, **settings(SMALL))
        brokers.ask("topics", path, TOPIC)
        with timerstore.rocketmq.connect(brokers.proxy(), invisible=10) as cluster:
            while not wanted <= got.keys():
                for delivery in cluster.pull(TOPIC, group=GROUP, timeout=0):
                    got[delivery.body] += 1
                    is_timer = delivery.body.startswith(b"timer")
                    assert not is_timer or now_ms() >= filled.start_ms - 1_000
                    delivery.ack()
    others = got.keys() - wanted - {b"cancelled before"}
    assert others <= {b"read %d" % i for i in range(20)}
    with timerstore.open(path, config=SMALL) as store:
        assert set(filled.wrong) <= {timer.id for timer in store.pending()}  # and the broker's own
    assert timerstore.verify(path).ok
