"""The largest message: taken by every call that puts one, then fired, rolled, sent back until dead.

It is the same for all of them, and one byte more is refused by all.
"""

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.models.ledger import read_messages
from tests.rigs import broker
from timerstore import Config, InvalidArgumentError, ManualClock, TimerStore, Tuning
from timerstore.calls.consuming.delivery import FAILED, Delivery
from timerstore.calls.consuming.sendback import send_back, send_to_dead
from timerstore.services.cleaning.retention import Retention
from timerstore.timelog.bytes.limits import AROUND_BYTES, content_bytes_max

pytestmark = pytest.mark.slow

START_MS = 1_800_000_000_000
MINUTE = timedelta(minutes=1)
LARGE = [pytest.param(size, marks=pytest.mark.slow) for size in (1 << 20, 4 << 20, 8 << 20)]
SIZES: list[Any] = [1 << 10, 16 << 10, *LARGE]
SHORT = {"topic": "t", "group": "g"}
LONG = {"topic": "T" * 127, "group": "G" * 120}
NAMES = pytest.mark.parametrize("names", [SHORT, LONG], ids=["short", "long"])


def config(segment_bytes: int) -> Config:
    return Config(
        durability="process",
        retention_ms=3_600_000,
        delay_levels="1s 1m",
        tuning=Tuning(
            commitlog_segment_bytes=segment_bytes,
            consumequeue_segment_bytes=400,
            wheel_slot_count=128,
            roll_window_slots=40,
        ),
    )


def open_store(path: Path, segment_bytes: int) -> tuple[TimerStore, ManualClock]:
    clock = ManualClock(START_MS, force=True)
    return timerstore.open(path / "s", clock=clock, config=config(segment_bytes)), clock


def one(store: TimerStore, topic: str, group: str) -> Delivery:
    (delivery,) = store.consume(topic, group=group, timeout=0)
    return delivery


@NAMES
@pytest.mark.parametrize("segment_bytes", SIZES)
def test_the_largest_is_sent_back_until_it_is_dead(
    tmp_path: Path, segment_bytes: int, names: dict[str, str]
) -> None:
    topic, group = names["topic"], names["group"]
    body = b"\xff" * content_bytes_max(segment_bytes)
    store, clock = open_store(tmp_path, segment_bytes)
    far_ms = START_MS + 300_000  # it rolls on the way
    id = store.reschedule(store.put(body, topic=topic, at_ms=START_MS + 200_000), at_ms=far_ms)
    clock.advance(5 * MINUTE)
    for attempt in range(16):
        delivery = one(store, topic, group)
        assert (delivery.body, delivery.id, delivery.attempt) == (body, id, attempt)
        if attempt % 2:
            delivery.nack(2 * MINUTE)  # rolls
        else:
            send_back(
                store.putting, group, delivery._handed.message(delivery._i), delay_level=attempt + 1
            )
            delivery.ack()
        clock.advance(2 * MINUTE)
    delivery = one(store, topic, group)
    send_to_dead(store.putting, group, delivery._handed.message(delivery._i))
    delivery.ack()
    dead = one(store, f"%DLQ%{group}", group)
    assert (dead.body, dead.id) == (body, id)
    dead.nack()
    assert one(store, topic, group).body == body
    stats = store.stats()
    assert stats.unreadable_count == 0 and store.count() == 0
    store.close()
    assert timerstore.verify(tmp_path / "s", config=config(segment_bytes)).ok


@NAMES
@pytest.mark.parametrize("segment_bytes", SIZES[:4])
def test_all_calls_have_one_limit(
    tmp_path: Path, segment_bytes: int, names: dict[str, str]
) -> None:
    topic, group = names["topic"], names["group"]
    largest = content_bytes_max(segment_bytes)
    store, clock = open_store(tmp_path, segment_bytes)
    calls: list[Any] = [
        lambda body: store.put(body, topic=topic),
        lambda body: store.put(body, topic=topic, delay_level=2),
        lambda body: store.put_many([b"x", body], topic=topic),
        lambda body: store.put_many([body], topic=topic, delay_level=1),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=rf"{largest} at most"):
            call(bytes(largest + 1))
        assert store.count() == 0
        call(bytes(largest))
        clock.advance(MINUTE)
        assert [len(d.body) for d in store.consume(topic, group=group, timeout=0)][-1] == largest
    store.close()
    assert timerstore.verify(tmp_path / "s", config=config(segment_bytes)).ok


@pytest.mark.parametrize("segment_bytes", SIZES[1:3])
def test_what_describes_a_message_counts(tmp_path: Path, segment_bytes: int) -> None:
    """A long key, a long tag, many properties: with the body they take what a body may take."""
    largest = content_bytes_max(segment_bytes)
    store, clock = open_store(tmp_path, segment_bytes)
    key, tag = "k" * 5_000, "ä" * 1_000
    many = {f"name {i}": "ü" * 40 for i in range(50)}
    named = sum(len(name) + 2 + 80 for name in many)
    put: dict[str, Any] = {"topic": LONG["topic"]}
    for more, bytes_more in (
        ({"key": key}, 4 + 2 + 5_000),
        ({"tag": tag}, 4 + 2 + 2_000),
        ({"properties": many}, named),
        ({"key": key, "tag": tag, "properties": many}, 4 + 2 + 5_000 + 4 + 2 + 2_000 + named),
    ):
        for level in (None, 1):
            left = largest - bytes_more
            with pytest.raises(InvalidArgumentError, match="at most"):
                store.put(bytes(left + 1), **put, **more, delay_level=level)
            store.put(bytes(left), **put, **more, delay_level=level)
    for level in (None, 1):
        left = largest - (4 + 2 + 5_000) - (4 + 2 + 2_000)
        with pytest.raises(InvalidArgumentError, match="at most"):
            store.put_many([bytes(left + 1)], **put, keys=[key], tag=tag, delay_level=level)
        store.put_many([bytes(left)], **put, keys=[key], tag=tag, delay_level=level)
    clock.advance(MINUTE)
    for delivery in list(store.consume(LONG["topic"], group=LONG["group"], timeout=0)):
        delivery.nack()
    got = list(store.consume(LONG["topic"], group=LONG["group"], timeout=0))
    assert len(got) == 10 and {d.attempt for d in got} == {1}
    store.close()


def test_a_tag_beside_a_key_may_not_overflow_the_properties(tmp_path: Path) -> None:
    store, clock = open_store(tmp_path, 1 << 20)
    for keys, tag in ((None, "t" * 40_000), (["k" * 20_000], "t" * 20_000)):
        with pytest.raises(InvalidArgumentError, match="key, tag and properties together take"):
            store.put_many([b"b"], keys=keys, tag=tag)
        with pytest.raises(InvalidArgumentError, match="key, tag and properties together take"):
            store.put(b"b", key=None if keys is None else keys[0], tag=tag)
    store.put_many([b"b"], keys=["k" * 15_000], tag="t" * 15_000)
    clock.advance(MINUTE)
    (delivery,) = store.consume("default", timeout=0)
    assert delivery.key == "k" * 15_000 and delivery.tag == "t" * 15_000
    delivery.nack()
    assert next(iter(store.consume("default", timeout=0))).attempt == 1
    store.close()


@pytest.mark.parametrize("segment_bytes", SIZES[1:4])
def test_the_short_way_has_the_same_limit(tmp_path: Path, segment_bytes: int) -> None:
    """On the wall clock, where a plain put is one compiled call."""
    largest = content_bytes_max(segment_bytes)
    with timerstore.open(tmp_path / "s", config=config(segment_bytes)) as store:
        for length in (1, largest, largest + 1, largest):  # the first makes the topic known
            if length > largest:
                with pytest.raises(InvalidArgumentError, match=rf"{largest} at most"):
                    store.put(bytes(length), topic="t", at_ms=START_MS)
            else:
                store.put(bytes(length), topic="t", at_ms=START_MS - 1_000_000_000_000)
        got = [len(d.body) for _, d in zip(range(3), store.consume("t", timeout=10), strict=False)]
    assert got == [1, largest, largest]


def test_no_form_takes_more_than_is_kept_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each message in a log takes around its content, against the list in `limits.py`."""
    monkeypatch.setattr(Retention, "run", lambda _: 0)  # all are read at the end
    topic, group = LONG["topic"], LONG["group"]
    small = dataclasses.replace(config(16 << 10), retention_ms=0, cleaning_slack_bytes=0)
    clock = ManualClock(START_MS, force=True)
    store = timerstore.open(tmp_path / "s", clock=clock, config=small)
    far_ms = START_MS + 300_000
    store.reschedule(store.put(b"body", topic=topic, key="k", debounce=200), at_ms=far_ms)
    move_by_cleaning(store, clock)
    clock.advance(5 * MINUTE)
    one(store, topic, group).nack(2 * MINUTE)
    move_by_cleaning(store, clock)
    clock.advance(2 * MINUTE)
    delivery = one(store, topic, group)
    send_back(store.putting, group, delivery._handed.message(delivery._i), delay_level=2)
    clock.advance(2 * MINUTE)
    delivery = one(store, topic, group)
    send_to_dead(store.putting, group, delivery._handed.message(delivery._i))
    store.close()
    found: dict[str, int] = {}
    for message in read_messages(tmp_path / "s"):
        properties = message.properties
        if "TIMER_DEL_UNIQKEY" in properties or message.body == b"short":
            continue
        again = "sent back" if "RETRY_TOPIC" in properties else ""
        if message.topic == "SCHEDULE_TOPIC_XXXX":
            form = "in a level"
        elif message.topic == "rmq_sys_wheel_timer":
            rolled = "rolled" if "TIMER_ROLL_TIMES" in properties else ""
            form = ", ".join(filter(None, [again, rolled])) or "put, or rescheduled"
        elif message.topic.startswith("%DLQ%"):
            form = "dead"
        elif "TIMER_DEQUEUE_MS" not in properties:
            form = "from a level"
        else:
            form = ", ".join(filter(None, [again, "fired"]))
        # Since when it fails is said where there is room for that.
        failed = sum(len(each + properties[each]) + 2 for each in FAILED & properties.keys())
        content_bytes = len(message.body) + len("KEYS.k.")
        around_bytes = message.size_bytes - content_bytes - failed
        found[form] = max(found.get(form, 0), around_bytes)
    assert found.keys() == AROUND_BYTES.keys()
    for form, length in found.items():
        # Times have 13 digits until 2286, and the log's timers rolled less than ten times; a
        # rescheduled broker's timer names an id of 56 digits.
        spare = 4 * 2 + 9 + (56 - 32)
        assert AROUND_BYTES[form] - spare <= length <= AROUND_BYTES[form], form


def move_by_cleaning(store: TimerStore, clock: ManualClock) -> None:
    """Fill the log with what is done, and have cleaning copy what is pending to its end."""
    copied_count = store.stats().cleaning.copied_count
    store.put_many([b"short"] * 90, topic="short", delay_ms=1_000)
    clock.advance(timedelta(seconds=2))
    store.pull("short", timeout=0).ack()
    while store.core.upkeep.cleaner.step():
        pass
    assert store.stats().cleaning.copied_count > copied_count


@pytest.mark.parametrize("segment_bytes", [4 << 10, 64 << 10])
def test_a_brokers_message_whose_copy_does_not_fit_is_passed_by(
    tmp_path: Path, segment_bytes: int
) -> None:
    """It was not checked by us: each of these fills its segment, and the last must roll."""
    due_ms = broker.PUT_MS + 5_500
    messages = [
        broker.filling(broker.timer("t", b"", due_ms, "0A" * 16), segment_bytes),
        broker.timer("t", b"small", due_ms, "0B" * 16),
        broker.filling(broker.at_level("t", b"", 1, "0C" * 16), segment_bytes),
        broker.at_level("t", b"level", 1, "0D" * 16),
        broker.filling(broker.timer("t", b"", due_ms + 100_000, "0E" * 16), segment_bytes),
        broker.timer("t", b"last", due_ms + 200_000, "0F" * 16),
    ]
    broker.write_store(tmp_path / "s", messages, segment_bytes)
    store, clock = open_store(tmp_path, segment_bytes)
    clock.advance(10 * MINUTE)
    got = [d.body for d in store.consume("t", group="g", timeout=0)]
    assert sorted(got) == [b"last", b"level", b"small"]
    assert store.stats().unreadable_count == 3
    store.close()


def test_a_brokers_message_that_cannot_be_sent_back_is_refused(tmp_path: Path) -> None:
    """Its fired copy fits; with where it was consumed from it would not."""
    message = broker.filling(broker.timer("t", b"", broker.PUT_MS + 5_500, "0A" * 16), 4_096)
    message.body = message.body[:-100]
    many = broker.timer("t", b"b", broker.PUT_MS + 5_500, "0B" * 16, {"a": "x" * 32_400})
    broker.write_store(tmp_path / "s", [message], 4_096)
    broker.write_store(tmp_path / "many" / "s", [many], 64 << 10)
    for path in (tmp_path, tmp_path / "many"):
        store, clock = open_store(path, 4_096)
        clock.advance(MINUTE)
        delivery = one(store, "t", "g")
        message_of = delivery._handed.message(delivery._i)
        for refused in (
            lambda: delivery.nack(),  # noqa: B023
            lambda: send_back(store.putting, "g", message_of, delay_level=1),  # noqa: B023
            lambda: send_to_dead(store.putting, "G" * 120, message_of),  # noqa: B023
        ):
            with pytest.raises(InvalidArgumentError, match="cknowledge it"):
                refused()
        delivery.ack()
        store.close()
