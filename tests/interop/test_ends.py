"""Brokers that end badly, begin late, or keep their queues elsewhere."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests import naive
from tests.interop.brokers import Brokers
from tests.interop.lives import TOPICS, Life, log_of, now_ms, settings
from timerstore import Config, ManualClock, NotAStoreError, TimerStore, Tuning, verify
from timerstore.validation import validate

pytestmark = [pytest.mark.slow, pytest.mark.prove]

CONFIG = Config(
    durability="process",
    tuning=Tuning(
        precision_ms=100,
        commitlog_segment_bytes=1 << 18,
        consumequeue_segment_bytes=2_000,
        timerlog_segment_bytes=5_248,
    ),
)
TOPIC = "orders"


def fired(path: Path) -> Counter[str]:
    """How often each timer was fired."""
    messages = log_of(path).messages
    return Counter(m.properties["UNIQ_KEY"] for m in messages if m.topic == TOPIC)


def is_sound(path: Path) -> None:
    for report in verify(path), validate(path):
        assert report.ok, str(report)


def test_killed_twice_while_it_fires(tmp_path: Path, rocketmq: Callable[[Path], Brokers]) -> None:
    """It fires again what it had not noted; we fire nothing again, and all the others once."""
    path, clock = tmp_path / "s", ManualClock(now_ms() - 1_000, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock)
    start_ms = now_ms() + 30_000  # a broker begins once all that was put is due, or soon
    ids = [store.put(b"x", topic=TOPIC, at_ms=start_ms + 2 * i) for i in range(20_000)]
    store.handover()
    for life in range(2):
        time.sleep(max(0, start_ms - 5_000 - now_ms()) / 1_000)
        with rocketmq(tmp_path / f"home-{life}") as brokers:
            brokers.start(path)
            stop = time.monotonic() + 60
            while len(fired(path)) < 4_000 * (life + 1):
                assert time.monotonic() < stop
                time.sleep(0.2)
    is_sound(path)
    before = fired(path)
    assert 0 < len(before) < len(ids)
    clock = ManualClock(now_ms(), force=True)
    with TimerStore(path, config=CONFIG, clock=clock) as again:
        clock.advance(timedelta(hours=1))
        assert again.count() == 0
    after = fired(path)
    assert set(after) == set(ids)
    assert {id: after[id] for id in before} == before, "what a broker fired was fired again"
    assert {after[id] for id in ids if id not in before} == {1}


def test_a_queue_that_ends_with_a_file(tmp_path: Path, rocketmq: Callable[[Path], Brokers]) -> None:
    path, clock = tmp_path / "s", ManualClock(now_ms() - 60_000, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock)
    count = CONFIG.tuning.consumequeue_segment_bytes // 20
    for i in range(count):
        store.put(b"%d" % i, topic=TOPIC)
    clock.advance(timedelta(seconds=1))
    store.pull(TOPIC, group="readers", timeout=0, max_count=count).ack()
    kept = store.put(b"kept", topic=TOPIC, at_ms=now_ms() + 3_600_000)
    clock.advance(timedelta(milliseconds=max(1, now_ms() - clock.now_ms)))
    store.handover()
    with rocketmq(tmp_path / "home") as brokers:
        brokers.ask("names")
        brokers.start(path)
        brokers.ask("send", TOPIC, now_ms() + 1_500, "next")
        came = brokers.ask("consume", "readers", TOPIC, "", 40_000, "next:0")
        assert came == ["next:0"]
        brokers.stop(path)
    is_sound(path)
    with TimerStore(path, config=CONFIG, clock=ManualClock(now_ms(), force=True)) as again:
        assert [timer.id for timer in again.pending()] == [kept]
        assert not again.pull(TOPIC, group="readers", timeout=0)


def test_opened_late(tmp_path: Path, rocketmq: Callable[[Path], Brokers]) -> None:
    """A broker skips what lies too far back; we do not, and hand over again."""
    path, clock = tmp_path / "s", ManualClock(now_ms() - 70_000_000, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock)
    early = store.put(b"early", topic=TOPIC, delay=timedelta(seconds=60))
    late = store.put(b"late", topic=TOPIC, at_ms=now_ms() + 3_600_000)
    until_ms = store.handover()
    assert until_ms is not None and until_ms < now_ms()
    with TimerStore(path, config=CONFIG, clock=ManualClock(now_ms(), force=True)) as again:
        assert sorted(timer.id for timer in again.pending()) in ([late], sorted([early, late]))
        until_ms = again.handover()
    assert until_ms is not None and until_ms > now_ms()
    assert fired(path) == {early: 1}
    with rocketmq(tmp_path / "home") as brokers:
        brokers.start(path)
        time.sleep(3)
        brokers.stop(path)
    is_sound(path)
    assert fired(path) == {early: 1}


def test_killed_then_started_late(tmp_path: Path, rocketmq: Callable[[Path], Brokers]) -> None:
    """It links once more what it had not noted, after the time of all of that; then it fires it."""
    path, clock = tmp_path / "s", ManualClock(now_ms() - 1_000, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock)
    far = store.put(b"far", topic=TOPIC, at_ms=now_ms() + 3_600_000)
    store.handover()
    keys = [f"{i:032d}" for i in range(40)]
    with rocketmq(tmp_path / "home-0") as brokers:
        brokers.start(path, timerFlushIntervalMs=60_000)
        due_ms = now_ms() + 5_000
        for key in keys:
            brokers.ask("timer", path, TOPIC, key, due_ms, "x")
    time.sleep(max(0, due_ms + 1_000 - now_ms()) / 1_000)
    with rocketmq(tmp_path / "home-1") as brokers:
        brokers.start(path)
        stop = time.monotonic() + 60
        while len(fired(path)) < len(keys):
            assert time.monotonic() < stop
            time.sleep(0.2)
    segments = {int(file.name): file.read_bytes() for file in (path / "timerlog").iterdir()}
    units = naive.scan_timer_log(segments).units.values()
    assert sum(unit.delta_ms < 0 for unit in units) >= len(keys)
    is_sound(path)
    before = fired(path)
    clock = ManualClock(now_ms(), force=True)
    with TimerStore(path, config=CONFIG, clock=clock) as again:
        assert not again.core.findings.rebuilt
        assert [timer.id for timer in again.pending()] == [far]
        clock.advance(timedelta(hours=2))
    assert fired(path) == before | {far: 1}


def test_queues_in_rocksdb(tmp_path: Path, rocketmq: Callable[[Path], Brokers]) -> None:
    life = Life(tmp_path / "s", 0)
    with rocketmq(tmp_path / "home") as brokers:
        brokers.start(life.path, **settings(life.config), storeType="defaultRocksDB")
        key, due_ms = "0" * 31 + "1", now_ms() + 3_600_000
        brokers.ask("timer", life.path, TOPICS[0], key, due_ms, "x")
    for look in (lambda: TimerStore(life.path), lambda: validate(life.path)):
        with pytest.raises(NotAStoreError, match="RocksDB"):
            look()
