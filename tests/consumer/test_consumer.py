"""The consumer on a manual clock: each promise by itself."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.small_store import SMALL
from timerstore import (
    Consumer,
    Delivery,
    InvalidArgumentError,
    ManualClock,
    Outcome,
    Retry,
    StoreClosedError,
    StoreFullError,
    TimerStore,
)
from timerstore.calls.consuming import run as run_module
from timerstore.consumer.subscription import parse_tags
from timerstore.testing.disk import QuietDisk

SECOND = timedelta(seconds=1)


class Shop:
    """A store whose consumers note what they get."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, ManualClock()
        self.got: list[bytes] = []
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.clock.now_ms)
        self.store = TimerStore(self.path, config=SMALL, clock=self.clock, disk=QuietDisk())

    def kill(self) -> None:
        self.store.abandon()
        self.open()

    def consumer(self, group: str = "g", topic: str = "t", **options: Any) -> Consumer:
        consumer = Consumer(self.store, group, **options)
        consumer.subscribe(topic, self.note)
        return consumer

    def note(self, got: Any) -> None:
        self.got += [d.body for d in (got if isinstance(got, list) else [got])]

    def put(self, *bodies: bytes, **options: Any) -> list[str]:
        return [self.store.put(body, topic="t", **options) for body in bodies]

    def new(self) -> list[bytes]:
        """What came since the last call."""
        got, self.got = self.got, []
        return got


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "store")
    yield shop
    shop.store.close()


# --- handing over


def test_lists_are_as_long_as_asked_for(shop: Shop) -> None:
    lengths: list[int] = []
    consumer = Consumer(shop.store, "g", batch_count=4, pull_count=10)
    consumer.subscribe("t", lambda ds: lengths.append(len(ds)))
    shop.put(*[b"x"] * 13)
    assert consumer.step() == 13
    assert lengths == [4, 4, 2, 3]


def test_topics_take_turns(shop: Shop) -> None:
    consumer = shop.consumer(pull_count=2)
    consumer.subscribe("u", shop.note)
    shop.put(b"1", b"2", b"3")
    shop.store.put(b"4", topic="u")
    consumer.step()
    assert shop.new() == [b"1", b"2", b"4", b"3"]


def test_the_clock_stops_wherever_something_is_due(shop: Shop) -> None:
    times: list[int] = []
    start_ms = shop.clock.now_ms
    consumer = Consumer(shop.store, "g")

    @consumer.on("t")
    def put_next(d: Delivery) -> None:
        times.append(shop.clock.now_ms - start_ms)
        if len(times) < 4:
            shop.put(b"next", delay=timedelta(milliseconds=700))

    shop.put(b"first")
    with consumer:
        shop.clock.advance(timedelta(seconds=10))
    assert times == [0, 700, 1400, 2100]
    assert shop.clock.now_ms == start_ms + 10_000


def test_an_interrupt_passes_through(shop: Shop) -> None:
    consumer = Consumer(shop.store, "g")
    acts = [KeyboardInterrupt(), None]

    @consumer.on("t")
    def interrupted(d: Delivery) -> None:
        act = acts.pop(0)
        if act is not None:
            raise act
        shop.note(d)

    shop.put(b"1", b"2")
    with pytest.raises(KeyboardInterrupt):
        consumer.step()
    acts += [None]
    assert consumer.step() == 2
    assert sorted(shop.new()) == [b"1", b"2"]


# --- sending back


def test_only_the_group_that_failed_gets_it_again(shop: Shop) -> None:
    other = shop.consumer("other")
    failing = Consumer(shop.store, "g")
    failing.subscribe("t", lambda d: Retry(delay_level=1) if d.attempt == 0 else None)
    shop.put(b"x")
    with other, failing:
        shop.clock.advance(timedelta(hours=1))
    assert shop.new() == [b"x"]


def test_iterators_share_retries_with_consumers(shop: Shop) -> None:
    (id,) = shop.put(b"x", tag="red")
    (d,) = shop.store.consume("t", group="g", timeout=0)
    d.nack(SECOND)
    consumer = Consumer(shop.store, "g")
    seen: list[tuple[str, int]] = []
    consumer.subscribe("t", lambda d: seen.append((d.id, d.attempt)), tags="blue")
    with consumer:
        shop.clock.advance(SECOND)
    assert seen == [(id, 1)], "retries are not filtered"


def test_where_sending_back_fails_it_comes_after_five_seconds(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[tuple[int, int]] = []
    start_ms = shop.clock.now_ms

    def full(*_: Any, **__: Any) -> None:
        raise StoreFullError("no space. Free some.")

    consumer = Consumer(shop.store, "g")

    @consumer.on("t")
    def fail(d: Delivery) -> Retry | None:
        times.append((shop.clock.now_ms - start_ms, d.attempt))
        if len(times) == 3:
            monkeypatch.undo()
        return Retry(delay_level=1) if len(times) < 4 else None

    monkeypatch.setattr(run_module, "send_back", full)
    shop.put(b"x")
    with consumer:
        shop.clock.advance(timedelta(seconds=20))
    assert times == [(0, 0), (5_000, 0), (10_000, 0), (11_000, 1)]


def test_a_slow_handler_counts_no_more(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    times: list[tuple[int, int]] = []
    start_ms = shop.clock.now_ms
    consumer = Consumer(shop.store, "g", timeout=timedelta(seconds=5))

    @consumer.on("t")
    def slow(d: Delivery) -> None:
        times.append((shop.clock.now_ms - start_ms, d.attempt))
        if d.attempt == 0:
            shop.clock.advance(timedelta(seconds=60))

    (id,) = shop.put(b"x")
    with consumer:
        shop.clock.advance(timedelta(seconds=61))
    # Sent back at 5 s, due at 15 s, but this is one thread, and it was busy until 60 s.
    assert times == [(0, 0), (60_000, 1)]
    assert sum(id in record.getMessage() for record in caplog.records) == 2


# --- offsets


def test_what_was_pulled_and_not_begun_goes_to_the_next(shop: Shop) -> None:
    consumer = Consumer(shop.store, "g")

    @consumer.on("t")
    def stop(d: Delivery) -> None:
        shop.note(d)
        raise KeyboardInterrupt

    shop.put(b"1", b"2", b"3")
    with pytest.raises(KeyboardInterrupt):
        consumer.step()
    consumer.close()
    again = [d.body for d in shop.store.consume("t", group="g", timeout=0)]
    assert sorted(again) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [b"1", b"2", b"3", b"4"]),
        ("latest", [b"4"]),
        (1_800_000_005_000, [b"2", b"3", b"4"]),
        (1_800_000_005_001, [b"3", b"4"]),
        (1_900_000_000_000, [b"4"]),
    ],
)
def test_a_new_group_starts_where_it_is_told(
    shop: Shop, start: Any, expected: list[bytes], killed: bool
) -> None:
    for i in range(3):
        shop.put(b"%d" % (i + 1), at_ms=1_800_000_000_000 + 5_000 * i)
    shop.clock.advance(timedelta(seconds=20))
    shop.consumer(start=start).start()
    if killed:
        shop.kill()
    shop.put(b"4")
    shop.consumer(start="latest").step()
    assert shop.new() == expected


def test_a_group_that_waits_for_a_new_topic_misses_nothing(shop: Shop) -> None:
    shop.consumer(start="latest").start()
    shop.kill()
    shop.put(b"1")
    shop.consumer(start="latest").step()
    assert shop.new() == [b"1"]


def test_a_new_group_begins_behind_what_retention_was_about_to_remove(tmp_path: Path) -> None:
    config = replace(
        SMALL, retention_ms=0, commitlog_segment_bytes=1 << 13, inflight_bytes_max=100_000
    )
    clock, got = ManualClock(), list[bytes]()
    with TimerStore(tmp_path / "s", config=config, clock=clock) as store:
        store.put_many([b"%d" % i for i in range(300)], topic="t")
        clock.advance(SECOND)
        store.pull("t", group="first", timeout=0).ack()
        store.consuming.write_offsets()
        assert store.core.upkeep.cleaner.reach.find(0) > 0  # decided, and not done yet
        consumer = Consumer(store, "late")
        consumer.subscribe("t", lambda d: got.append(d.body))
        consumer.start()
        assert not store.consuming.group("t", "late").has_hidden()  # it stands at the beginning
        for _ in range(3):
            store.flush()
        clock.advance(SECOND)
        assert got and got[-1] == b"299" and consumer.error is None
        (row,) = (each for each in store.stats().groups if each.group == "late")
        assert (row.lag_count, row.handled_count) == (0, len(got))
        consumer.close()


def test_broadcast_instances_get_everything(shop: Shop) -> None:
    shop.put(b"1")
    one = shop.consumer(broadcast=True)
    two = shop.consumer(broadcast=True, instance="two")
    assert one.step() == two.step() == 1
    with pytest.raises(InvalidArgumentError, match="instance"):
        shop.consumer(broadcast=True).start()
    one.close()
    shop.consumer(broadcast=True).step()  # its name is free again
    two.close()
    shop.store.close()
    table = json.loads((shop.path / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert table["t@%BROADCAST%g"] == table["t@%BROADCAST%g%two"] == {"0": 1}
    shop.open()
    shop.put(b"2")
    assert shop.new() == [b"1", b"1"]
    assert shop.consumer(broadcast=True).step() == 1
    shop.put(b"3")
    assert shop.consumer(broadcast=True, instance="two").step() == 2
    assert shop.new() == [b"2", b"2", b"3"]


# --- tags


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("*", [b"Aa", b"BB", b"none", b"c"]),
        ("Aa", [b"Aa"]),
        ("BB || c", [b"BB", b"c"]),
        ("d", []),
    ],
)
def test_tags(shop: Shop, tags: str, expected: list[bytes]) -> None:
    consumer = Consumer(shop.store, "g")
    consumer.subscribe("t", shop.note, tags=tags)
    for tag in ("Aa", "BB", None, "c"):  # Aa and BB have the same hash
        shop.put((tag or "none").encode(), tag=tag)
    consumer.step()
    assert shop.new() == expected
    assert consumer._workings.subscriptions[0].group.committed()["t", 0] == 4


@pytest.mark.parametrize("tags", ["", "a||", "||", 3])
def test_bad_tags(tags: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="tags"):
        parse_tags(tags)


# --- hooks


def test_hooks_see_each_call(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    class Hook:
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, deliveries: list[Delivery]) -> None:
            told.append((self.name, [d.body for d in deliveries]))

        def after(self, deliveries: list[Delivery], outcome: Outcome) -> None:
            told.append((self.name, outcome.ack_count, outcome.delay_level, outcome.error))
            if self.name == "bad":
                raise RuntimeError("a hook of its own")

    consumer = Consumer(shop.store, "g", hooks=[Hook("good"), Hook("bad")])
    error = OSError("no luck")

    @consumer.on("t")
    def handle(d: Delivery) -> Retry | None:
        if d.body == b"2":
            return Retry(delay_level=4)
        if d.body == b"3":
            raise error
        return None

    shop.put(b"1", b"2", b"3")
    assert consumer.step() == 3
    wanted = {b"1": (1, None, None), b"2": (0, 4, None), b"3": (0, 0, error)}
    expected: list[Any] = []
    for body, outcome in wanted.items():
        expected += [("good", [body]), ("bad", [body]), ("bad", *outcome), ("good", *outcome)]
    assert told == expected
    assert "a hook of its own" in caplog.text


# --- dead letters


def test_dead_letters_are_kept_until_they_are_redriven(tmp_path: Path) -> None:
    config = replace(SMALL, retention_ms=1_000, commitlog_segment_bytes=8_192)
    clock = ManualClock()
    with TimerStore(tmp_path, config=config, clock=clock, disk=QuietDisk()) as store:
        consumer = Consumer(store, "g", max_attempts=0)
        consumer.subscribe("t", lambda d: Retry() if d.body == b"bad" else None)

        def fill_up() -> int:
            """Consume much, and let retention run; return where the log begins."""
            store.put_many([b"good" * 50] * 100, topic="t")
            consumer.step()
            clock.advance(timedelta(minutes=5))
            for _ in range(3):
                store.flush()
            return store.core.engine.commitlog.start

        fill_up()
        assert fill_up() > 0, "retention removes what was consumed"
        store.put(b"bad", topic="t")
        consumer.step()
        (letter,) = store.consume("%DLQ%g", group="inspection", timeout=0)
        letter.ack()
        kept = fill_up()
        assert fill_up() == kept, "the dead letter holds the log"
        assert consumer.retry_dead_letters() == 1
        consumer.step()
        store.pull("%DLQ%g", group="g", timeout=0).ack()
        fill_up()
        assert fill_up() > kept


# --- arguments


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": True},
        {"pull_count": 0},
        {"batch_count": 33},
        {"max_attempts": -1},
        {"timeout": "5"},
        {"timeout": timedelta(0)},
        {"start": "now"},
        {"start": 12},
        {"instance": "x"},
        {"broadcast": True, "instance": "x" * 120},
        {"group": "a/b"},
    ],
)
def test_bad_options(shop: Shop, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Consumer(shop.store, **({"group": "g"} | options))


def test_misuse_is_told(shop: Shop) -> None:
    consumer = Consumer(shop.store, "g")
    with pytest.raises(InvalidArgumentError, match="Call subscribe"):
        consumer.start()

    async def handler(d: Delivery) -> None:
        pass

    with pytest.raises(InvalidArgumentError, match="plain function"):
        consumer.subscribe("t", handler)
    with pytest.raises(InvalidArgumentError, match="topic is <function"):
        consumer.on(handler)  # type: ignore[arg-type]  # @consumer.on, without a topic
    consumer.subscribe("t", shop.note)
    with pytest.raises(InvalidArgumentError, match="has a handler"):
        consumer.subscribe("t", shop.note)
    consumer.start()
    for act in (consumer.start, lambda: consumer.subscribe("u", shop.note)):
        with pytest.raises(InvalidArgumentError, match="was started"):
            act()
    with pytest.raises(InvalidArgumentError, match="limit"):
        consumer.retry_dead_letters(limit=-1)
    with pytest.raises(InvalidArgumentError, match="timedelta"):
        consumer.close(timeout="3")  # type: ignore[arg-type]
    assert consumer.close() is True
    assert consumer.close() is True
    with pytest.raises(InvalidArgumentError, match="was closed"):
        consumer.step()
    assert "g" in repr(consumer)


def test_a_closed_store(shop: Shop) -> None:
    consumer = shop.consumer()
    consumer.start()
    shop.store.close()
    with pytest.raises(StoreClosedError):
        consumer.step()
    shop.clock.advance(SECOND)
    assert consumer.close() is True


def test_messages_are_logged_with_their_id(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "timerstore")
    consumer = Consumer(shop.store, "g", batch_count=32)

    @consumer.on("t")
    def fail(ds: list[Delivery]) -> None:
        raise ValueError("a mistake of mine")

    ids = shop.put(*[b"x"] * 12)
    consumer.step()
    (record,) = (each for each in caplog.records if each.exc_info)
    assert all(id in record.getMessage() for id in ids[:10])
    assert "and 2 more" in record.getMessage() and "a mistake of mine" in caplog.text
