"""Forgetting a group: its messages may go, who reads is not harmed, health names who is silent."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import Consumer, InvalidArgumentError, ManualClock, Retry, TimerStore

pytestmark = pytest.mark.timeout(120)
HOUR = timedelta(hours=1)
KILOBYTE = b"z" * 1_000
CONFIG = replace(SMALL, retention_ms=0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        yield store


def offsets(store: TimerStore) -> dict[str, dict[str, int]]:
    """What a broker reads."""
    content = json.loads((store.path / "config" / "consumerOffset.json").read_text())
    table: dict[str, dict[str, int]] = content["offsetTable"]
    return table


def read_all(store: TimerStore, group: str, topic: str = "t") -> int:
    count = 0
    while len(batch := store.pull(topic, group=group, timeout=0)):
        batch.ack()
        count += len(batch)
    return count


def test_what_only_a_forgotten_group_needs_goes(store: TimerStore, clock: ManualClock) -> None:
    """Also over a crash; a broker reads a file in which it never was."""
    store.put(b"x", topic="t")
    assert read_all(store, "web-1234") == 1
    for _ in range(5):
        store.put_many([KILOBYTE] * 1_000, topic="t")
        assert read_all(store, "app")
        clock.advance(timedelta(seconds=2))
    store.flush()
    before = store.core.engine.commitlog.start
    assert store.forget_group("web-1234") == 1
    assert {each.rpartition("@")[2] for each in offsets(store)} == {"app"}
    assert {each.group for each in store.stats().groups} == {"app"}
    store.flush()
    store.clean()
    assert store.core.engine.commitlog.start > before
    store.abandon()
    with timerstore.open(store.path, config=CONFIG, clock=clock) as again:
        assert {each.group for each in again.stats().groups} == {"app"}
        assert read_all(again, "app") == 0
        again.put(b"new", topic="t")
        assert read_all(again, "web-1234") >= 1  # a new group, from the earliest message on


def test_one_topic_of_several(store: TimerStore) -> None:
    for topic in ("a", "b"):
        store.put(b"x", topic=topic)
        assert read_all(store, "g", topic) == 1
    assert store.forget_group("g", topic="a") == 1
    assert set(offsets(store)) == {"b@g"}
    assert store.forget_group("g", topic="a") == 0
    assert store.forget_group("g") == 1
    assert store.forget_group("g") == store.forget_group("never") == 0
    with pytest.raises(InvalidArgumentError, match="group is"):
        store.forget_group("a/b")


def test_who_reads_is_not_forgotten(store: TimerStore) -> None:
    store.put_many([b"x", b"y"], topic="t")
    consumer = Consumer(store, "g")
    consumer.subscribe("t", lambda d: None)
    with consumer, pytest.raises(InvalidArgumentError, match="reads the topic"):
        store.forget_group("g")
    batch = store.pull("t", group="h", timeout=0)
    with pytest.raises(InvalidArgumentError, match="acknowledge or give back"):
        store.forget_group("h")
    batch.ack()
    found = store.consume("u", group="f", timeout=0)
    store.put(b"z", topic="u")
    next(found).ack()
    assert store.forget_group("f") == store.forget_group("g") == store.forget_group("h") == 1
    with pytest.raises(InvalidArgumentError, match="was forgotten"):
        next(found)


@pytest.mark.parametrize("group", ["here", "there"])
def test_who_waits_is_not_forgotten(tmp_path: Path, group: str) -> None:
    """In this process, or in one that is a client."""
    with (
        timerstore.open(tmp_path / "s", config=CONFIG) as store,
        timerstore.serve(store),
        timerstore.connect(store.path) as client,
    ):
        reader: timerstore.AnyStore = store if group == "here" else client
        store.put(b"x", topic="t")
        reader.pull("t", group=group, timeout=10).ack()
        pulled: list[timerstore.Batch] = []
        waiting = threading.Thread(
            target=lambda: pulled.append(reader.pull("t", group=group, timeout=60))
        )
        waiting.start()
        wait_until(lambda: store.consuming.is_read("t", group))
        with pytest.raises(InvalidArgumentError, match="reads the topic"):
            client.forget_group(group)
        store.put(b"y", topic="t")
        waiting.join(60)
        with pytest.raises(InvalidArgumentError, match="reads the topic"):
            store.forget_group(group)
        pulled[0].ack()
        assert client.forget_group(group) == 1


def test_letters_and_what_was_sent_back(store: TimerStore, clock: ManualClock) -> None:
    """Dead letters are for people, who decide; what waits to come again is given up."""
    consumer = Consumer(store, "g")
    consumer.subscribe("t", lambda d: Retry(delay_level=-1 if d.body == b"bad" else 1))
    store.put_many([b"bad", b"later"], topic="t")
    consumer.step()
    consumer.close()
    clock.advance(HOUR)
    assert len(store.dead_letters("g")) == 1
    with pytest.raises(InvalidArgumentError, match="1 dead letters"):
        store.forget_group("g")
    store.drop_dead_letters("g")
    store.pause("consuming", group="g", keep=True)
    assert store.forget_group("g") == 1
    store.flush()
    assert not store.health().conditions
    assert [each for each in store.stats().groups if each.lag_count and each.group] == []


def test_health_names_a_group_that_is_silent(tmp_path: Path, clock: ManualClock) -> None:
    config = replace(CONFIG, tuning=replace(CONFIG.tuning, group_silence_ms=3 * 3_600_000))
    with timerstore.open(tmp_path / "s", config=config, clock=clock) as store:
        store.put(b"x", topic="t")
        assert read_all(store, "g") == 1
        read_ms = clock.now_ms
        clock.advance(4 * HOUR)
        assert not store.health().warnings  # nothing waits for it
        store.put(b"y", topic="t")
        clock.advance(timedelta(seconds=1))
        (warning,) = store.health().warnings
        assert (warning.kind, warning.topic, warning.group) == ("group is silent", "t", "g")
        assert "forget-group" in warning.cure and store.health().ok
        (row,) = store.stats().groups
        assert warning.since_ms == row.read_ms == read_ms and row.read is not None
    with timerstore.open(tmp_path / "s", config=config, clock=clock) as store:
        (row,) = store.stats().groups
        assert row.read_ms is not None and 0 <= read_ms - row.read_ms < 3_600_000
        assert [each.kind for each in store.health().warnings] == ["group is silent"]
        assert read_all(store, "g") == 1 and not store.health().warnings
    never = replace(config, tuning=replace(config.tuning, group_silence_ms=None))
    with timerstore.open(tmp_path / "s", config=never, clock=clock) as store:
        store.put(b"z", topic="t")
        clock.advance(400 * HOUR)
        assert not store.health().warnings
