"""What is said of groups, beside what they did."""

import logging
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import timerstore
from tests.small_store import SMALL
from timerstore import Consumer, ManualClock, Retry, TimerStore
from timerstore.testing.disk import QuietDisk
from timerstore.watching.groups import GroupStats

SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[TimerStore]:
    with TimerStore(tmp_path / "store", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        yield store


def row(store: TimerStore, topic: str, group: str) -> GroupStats:
    (found,) = (each for each in store.stats().groups if (each.topic, each.group) == (topic, group))
    return found


def names(store: TimerStore) -> list[tuple[str, str]]:
    return [(each.topic, each.group) for each in store.stats().groups]


def test_unread_messages_and_dead_letters_are_named(
    store: TimerStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    consumer = Consumer(store, "mailer")
    consumer.subscribe("orders", lambda d: Retry(delay_level=-1) if d.body == b"bad" else None)
    with consumer:
        store.put_many([b"bad"] * 30 + [b"good"] * 5, topic="orders")
        clock.advance(SECOND)
    store.put_many([b"new"] * 500, topic="orders")
    clock.advance(60 * SECOND)
    assert names(store) == [("orders", "mailer")]
    found = row(store, "orders", "mailer")
    assert (found.lag_count, found.dead_letter_count, found.in_flight_count) == (500, 30, 0)
    assert (found.handled_count, found.failed_count) == (5, 30)
    assert (found.retried_count, found.dead_count) == (0, 30)
    assert found.oldest_age_ms == 60_000
    assert found.response.count == 35 and found.response.max_ms == 0


def test_what_nobody_reads_has_no_group(store: TimerStore, clock: ManualClock) -> None:
    store.put_many([b"x"] * 3, topic="orphan")
    store.put(b"later", topic="later", delay=SECOND)
    store.put(b"level", topic="leveled", delay_level=3)
    clock.advance(timedelta(milliseconds=500))
    assert names(store) == [("orphan", "")]
    assert row(store, "orphan", "").lag_count == 3
    store.pull("orphan", group="g", timeout=0)
    assert names(store) == [("orphan", "g")]
    assert (row(store, "orphan", "g").lag_count, row(store, "orphan", "g").in_flight_count) == (
        3,
        3,
    )


def test_what_is_due_again_is_a_row_of_its_own(store: TimerStore, clock: ManualClock) -> None:
    store.put_many([b"x"] * 3, topic="t")
    for delivery in store.pull("t", group="g", timeout=0):
        delivery.nack(SECOND)
    assert [(each.topic, each.lag_count) for each in store.stats().groups] == [("t", 0)]
    clock.advance(2 * SECOND)
    assert [(each.topic, each.lag_count) for each in store.stats().groups] == [
        ("%RETRY%g", 3),
        ("t", 0),
    ]
    assert row(store, "%RETRY%g", "g").oldest_age_ms == 1_000
    batch = store.pull("t", group="g", max_count=1, timeout=0)
    assert row(store, "%RETRY%g", "g").in_flight_count == 1  # three were routed
    assert row(store, "t", "g").retried_count == row(store, "t", "g").failed_count == 3
    batch.ack()
    assert row(store, "%RETRY%g", "g").lag_count == 2
    assert row(store, "t", "g").handled_count == 1


def test_response_times(store: TimerStore, clock: ManualClock) -> None:
    consumer = Consumer(store, "g", batch_count=2)

    def handle(deliveries: list[Any]) -> None:
        clock.advance(timedelta(milliseconds=40))

    consumer.subscribe("t", handle)
    store.put_many([b"x"] * 4, topic="t")
    assert consumer.step() == 4
    found = row(store, "t", "g").response
    assert (found.count, found.max_ms, found.sum_ms) == (4, 40, 160)
    assert 20 < found.p50_ms < found.p99_ms <= 40
    store.put(b"x", topic="pulled")
    batch = store.pull("pulled", timeout=0)
    clock.advance(3 * SECOND)
    batch.ack()
    assert row(store, "pulled", "default").response.max_ms == 3_000


def test_a_closed_store_says_the_same(tmp_path: Path, clock: ManualClock) -> None:
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        store.put_many([b"x"] * 9, topic="t")
        store.put_many([b"x"] * 2, topic="orphan")
        clock.advance(SECOND)
        store.pull("t", group="g", max_count=4, timeout=0).ack()
        before = store.stats().groups
    with timerstore.open(tmp_path / "s", read_only=True, clock=clock) as looking:
        after = looking.stats().groups
    assert [(each.topic, each.group, each.lag_count, each.handled_count) for each in after] == [
        ("orphan", "", 2, 0),
        ("t", "g", 5, 4),
    ]
    assert [each.oldest_fired_ms for each in after] == [each.oldest_fired_ms for each in before]


class Backlogs(RuleBasedStateMachine):
    """Two topics, two groups: what is not acknowledged, counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.put_count = {"a": 0, "b": 0}
        self.done: dict[tuple[str, str], int] = {}
        self.known: set[tuple[str, str]] = set()
        self.taken: list[tuple[tuple[str, str], Any]] = []
        self.open()

    def open(self) -> None:
        path = Path(self.folder.name) / "s"
        self.store = TimerStore(path, config=SMALL, clock=self.clock, disk=QuietDisk())

    @rule(topic=st.sampled_from("ab"), count=st.integers(1, 5))
    def put(self, topic: str, count: int) -> None:
        self.store.put_many([b"x"] * count, topic=topic)
        self.put_count[topic] += count

    @rule(topic=st.sampled_from("ab"), group=st.sampled_from("gh"), count=st.integers(1, 4))
    def pull(self, topic: str, group: str, count: int) -> None:
        batch = self.store.pull(topic, group=group, max_count=count, timeout=0)
        self.done.setdefault((topic, group), 0)
        if self.put_count[topic]:
            self.known.add((topic, group))
        if len(batch):
            self.taken.append(((topic, group), batch))

    @rule(i=st.integers(0, 9))
    def ack(self, i: int) -> None:
        if self.taken:
            pair, batch = self.taken.pop(i % len(self.taken))
            batch.ack()
            self.done[pair] += len(batch)

    @rule()
    def reopen(self) -> None:
        while self.taken:
            self.ack(0)
        self.store.close()
        self.clock = ManualClock(self.clock.now_ms)
        # Who asked for a topic while it did not exist, and never again, is not remembered.
        self.done = {pair: done for pair, done in self.done.items() if pair in self.known}
        self.open()

    @invariant()
    def rows_are_right(self) -> None:
        if not hasattr(self, "store"):
            return
        in_flight = dict.fromkeys(self.done, 0)
        for pair, batch in self.taken:
            in_flight[pair] += len(batch)
        expected = {
            pair: (self.put_count[pair[0]] - done, in_flight[pair], done)
            for pair, done in self.done.items()
        }
        for topic, count in self.put_count.items():
            if count and not any(pair[0] == topic for pair in self.done):
                expected[topic, ""] = count, 0, 0
        got = {
            (each.topic, each.group): (each.lag_count, each.in_flight_count, each.handled_count)
            for each in self.store.stats().groups
        }
        assert got == expected

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


TestBacklogs = pytest.mark.long(Backlogs.TestCase)
TestBacklogs.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
