"""A whole broker, with a name server, RocketMQ's own clients, goes on where a program stood."""

import base64
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.interop.brokers import Brokers
from tests.interop.lives import log_of, now_ms
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.validation import validate

pytestmark = [pytest.mark.slow, pytest.mark.prove]

CONFIG = Config(durability="process", tuning=Tuning(commitlog_segment_bytes=1 << 20))
TOPIC, GROUP = "orders", "readers"
HOUR = timedelta(hours=1)


def handle_of(id: str, due_ms: int) -> str:
    """The recall handle of a timer that was put before the handover."""
    text = f"v1 {TOPIC} broker-a {due_ms + 1} {id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "kill", [False, pytest.param(True, marks=pytest.mark.prove)], ids=["stopped", "killed"]
)
def test_groups_levels_retries_recalls(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], kill: bool
) -> None:
    path, clock = tmp_path / "timers", ManualClock(now_ms() - 5_000, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock)
    for i in range(6):
        store.put(b"read %d" % i, topic=TOPIC)
    clock.advance(timedelta(seconds=1))
    store.pull(TOPIC, group=GROUP, timeout=0).ack()
    store.put(b"sent back", topic=TOPIC, tag="late")
    clock.advance(timedelta(seconds=1))
    (delivery,) = store.pull(TOPIC, group=GROUP, timeout=0)
    delivery.nack(timedelta(seconds=8))
    for i in range(4):
        store.put(b"unread %d" % i, topic=TOPIC)
    store.put(b"level", topic=TOPIC, delay_level=3)  # in ten seconds
    far_ms = now_ms() + 3_600_000
    far = [store.put(b"far %d" % i, topic=TOPIC, at_ms=far_ms + i) for i in range(10)]
    clock.advance(timedelta(milliseconds=max(1, now_ms() - clock.now_ms)))
    store.handover()

    with rocketmq(tmp_path / "home") as brokers:
        brokers.ask("names")
        brokers.start(path)
        for id in far[:3]:
            due_ms = int(id[:12], 16)
            brokers.ask("recall", TOPIC, handle_of(id, due_ms))
        recalled = brokers.ask("send", TOPIC, far_ms, "recalled")[0]
        brokers.ask("recall", TOPIC, recalled)
        brokers.ask("send", TOPIC, far_ms, "kept")
        brokers.ask("send", TOPIC, now_ms() + 2_000, "fails")
        wanted = {f"unread {i}:0" for i in range(4)} | {"level:0", "sent back:1", "fails:0"}
        told = brokers.ask("consume", GROUP, TOPIC, "failing", 40_000, *wanted, "fails:1")
        came = Counter(told)
        assert wanted <= set(came), came
        assert came["fails:1"] and not any(each.startswith("read") for each in came)
        assert not any(each.startswith(("far", "recalled", "kept")) for each in came)
        if not kill:
            assert {came[each] for each in wanted} == {1}, came
            brokers.stop(path)

    for report in verify(path), validate(path):
        assert report.ok, str(report)
    clock = ManualClock(now_ms(), force=True)
    with TimerStore(path, config=CONFIG, clock=clock) as again:
        left = {timer.body for timer in again.pending(topic=TOPIC)}
        assert left == {b"kept"} | {b"far %d" % i for i in range(3, 10)}
        clock.advance(2 * HOUR)
        got: Counter[bytes] = Counter()
        while len(batch := again.pull(TOPIC, group=GROUP, timeout=0)):
            got.update(delivery.body for delivery in batch)
        assert left <= set(got) and b"recalled" not in got
        assert {got[each] for each in left} == {1}
        if not kill:  # else what was committed last may not have been written
            assert set(got) == left | {b"fails"}
        assert log_of(path).damage is None
    assert verify(path).ok, str(verify(path))
