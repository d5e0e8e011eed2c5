"""A handed-over store whose broker is killed twice while it fires, as programs read it.

Each timer comes, and none is lost. What comes twice is explained by a broker's own manners: every
few seconds it notes how far it has fired, and how far each group has read. After a kill it repeats
what it had not noted.
"""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import timerstore
import timerstore.rocketmq
from tests.interop.brokers import Brokers
from tests.interop.lives import log_of, now_ms
from tests.interop.parts import Parts
from timerstore import ClusterError, Config, TimerStoreError, Tuning, verify
from timerstore.validation import validate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.prove,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
]

TOPIC, GROUP = "orders", "readers"
COUNT, OVER_MS = 7_200, 120_000
"""So long that some are due after both kills, also if a broker takes half a minute to start."""
KILLED_AFTER = 1_000
CONFIG = Config(
    durability="process",
    tuning=Tuning(
        commitlog_segment_bytes=1 << 20,
        consumequeue_segment_bytes=20_000,
        timerlog_segment_bytes=52_000,
    ),
)


def fired(path: Path) -> Counter[str]:
    """How often each timer was fired, by its body."""
    messages = log_of(path).messages
    return Counter(m.body.decode() for m in messages if m.topic == TOPIC and m.body != b"read")


def handed_over(path: Path) -> None:
    """A store with timers that are due soon, and a group that has read one message."""
    store = timerstore.open(path, config=CONFIG)
    store.put(b"read", topic=TOPIC)
    store.pull(TOPIC, group=GROUP, timeout=20).ack()
    start_ms = now_ms() + 25_000
    times = [start_ms + i * OVER_MS // COUNT for i in range(COUNT)]
    store.put_many([b"%d" % i for i in range(COUNT)], topic=TOPIC, at_ms=times)
    store.handover()


class Killer:
    """Kills the broker twice while it fires."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.began_ms = [0]
        """When each broker began."""

    def kill_twice(self) -> None:
        path = self.parts.path
        for _ in range(2):
            before, stop = len(fired(path)), time.monotonic() + 120
            while len(fired(path)) < before + KILLED_AFTER:
                assert time.monotonic() < stop, "it fires nothing"
                time.sleep(0.1)
            self.parts.kill()
            assert len(fired(path)) < COUNT, "it was killed too late"
            time.sleep(1)  # by now the proxy has handed out all that it had received
            self.began_ms.append(now_ms())
            self.parts.bring_back()

    def broker_at(self, time_ms: int) -> int:
        return sum(each <= time_ms for each in self.began_ms)


def by_python(parts: Parts, killer: Killer) -> tuple[Counter[str], Counter[str]]:
    """What came, and how often at most from one broker, but for what it may not have heard of."""
    came: Counter[str] = Counter()
    from_one: Counter[tuple[int, str]] = Counter()
    doubted: Counter[str] = Counter()
    with (
        timerstore.rocketmq.connect(parts.address, invisible=30) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        killing = pool.submit(killer.kill_twice)
        empty = 0
        while len(came) < COUNT or not killing.done() or empty < 2:
            if killing.done():
                killing.result()
            try:
                batch = cluster.pull(TOPIC, group=GROUP, timeout=0)
            except ClusterError:
                time.sleep(0.2)
                continue
            empty = 0 if len(batch) else empty + 1
            for each in batch:
                body = each.body.decode()
                came[body] += 1
                from_one[killer.broker_at(each.fired_ms), body] += 1
            try:
                batch.ack()
            except TimerStoreError:
                doubted.update(each.body.decode() for each in batch)
        killing.result()
    most: Counter[str] = Counter()
    for (_, body), times in from_one.items():
        most[body] = max(most[body], times - doubted[body])
    return came, most


def by_java(parts: Parts, killer: Killer) -> tuple[Counter[str], Counter[str]]:
    """What came, and how often from one broker on average, rounded up: it tells no times."""
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(killer.kill_twice)
        came: Counter[str] = Counter()
        while len(came) < COUNT or not killing.done():
            if killing.done():
                killing.result()
            told = parts.other.ask("consume", GROUP, TOPIC, "", 20_000)
            came.update(each.partition(":")[0] for each in told if each)
        killing.result()
    brokers = len(killer.began_ms)
    return came, Counter({body: -(-times // brokers) for body, times in came.items()})


@pytest.mark.timeout(500)
@pytest.mark.parametrize("read", [by_python, by_java])
def test_each_timer_comes(
    tmp_path: Path,
    rocketmq: Callable[[Path], Brokers],
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Parts, Killer], tuple[Counter[str], Counter[str]]],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
    path = tmp_path / "timers"
    handed_over(path)
    with ExitStack() as stack:
        parts = Parts(tmp_path, stack, "broker", path)
        came, most = read(parts, Killer(parts))
    wanted, times = {str(i) for i in range(COUNT)}, fired(path)
    assert came.keys() == wanted == times.keys()
    twice = {body for body in came if came[body] > 1}
    again = {body for body in times if times[body] > 1}
    print(f"{len(again)} fired again, {len(twice)} came again, {len(twice - again)} of one firing")
    unexplained = {body: (most[body], times[body]) for body in wanted if most[body] > times[body]}
    assert not unexplained
    for report in verify(path), validate(path):
        assert report.ok, str(report)
    with timerstore.open(path, config=CONFIG) as again_here:
        assert again_here.count(TOPIC) == 0  # the others are a broker's own
