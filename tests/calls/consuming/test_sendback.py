"""Sending back: through delay levels, after a delay, to the dead letters, to any topic."""

from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.models.ledger import read_messages
from timerstore import Config, InvalidArgumentError, ManualClock, TimerStore, Tuning
from timerstore.calls.consuming.delivery import Delivery
from timerstore.calls.consuming.sendback import send_back, send_to, send_to_dead
from timerstore.timelog.bytes.decode import Message

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
CONFIG = Config(delay_levels="1s 5s 1m", durability="process")


def message_of(delivery: Delivery) -> Message:
    return delivery._handed.message(delivery._i)


def one(store: TimerStore, topic: str = "t", group: str = "g") -> Delivery:
    (delivery,) = store.consume(topic, group=group, timeout=0)
    return delivery


def test_over_and_over_then_to_the_dead(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = timerstore.open(tmp_path / "s", clock=clock, config=CONFIG)
    id = store.put(b"body", topic="t", at_ms=START_MS, key="k", tag="red", properties={"a": "b"})
    due_ms = START_MS
    for attempt, level in enumerate((1, 2, 9)):
        delivery = one(store)
        assert (delivery.id, delivery.attempt, delivery.due_ms) == (id, attempt, due_ms)
        assert (delivery.body, delivery.key, delivery.tag) == (b"body", "k", "red")
        assert delivery.properties == {"a": "b"} and delivery.topic == "t"
        send_back(store.putting, "g", message_of(delivery), delay_level=level)
        delivery.ack()
        assert store.count("%RETRY%g") == store.count() == 1
        assert [(timer.id, timer.topic) for timer in store.pending()] == [(id, "%RETRY%g")]
        wait = (SECOND, 5 * SECOND, 60 * SECOND)[min(level, 3) - 1]
        due_ms += wait // timedelta(milliseconds=1)
        clock.advance(wait - timedelta(milliseconds=1))
        assert not list(store.consume("t", group="g", timeout=0))
        store.close()
        store = timerstore.open(tmp_path / "s", clock=clock, config=CONFIG)
        clock.advance(timedelta(milliseconds=1))
    delivery = one(store)
    send_to_dead(store.putting, "g", message_of(delivery))
    delivery.ack()
    dead = one(store, "%DLQ%g")
    assert (dead.id, dead.attempt, dead.body, dead.tag) == (id, 4, b"body", "red")
    send_to(store.putting, b"t", message_of(dead), 0)
    again = one(store)
    assert (again.id, again.attempt, again.properties) == (id, 0, {"a": "b"})
    assert store.count() == 0
    store.close()
    assert timerstore.verify(tmp_path / "s", config=CONFIG).ok
    kinds = {m.topic: m for m in read_messages(tmp_path / "s")}
    for topic in ("%RETRY%g", "%DLQ%g"):
        properties = kinds[topic].properties
        assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("t", id)
        assert "DELAY" not in properties and kinds[topic].born_ms == START_MS
    retry = kinds["SCHEDULE_TOPIC_XXXX"].properties
    assert (retry["REAL_TOPIC"], retry["DELAY"], retry["UNIQ_KEY"]) == ("%RETRY%g", "3", id)


def test_a_message_of_a_level_keeps_its_id(tmp_path: Path) -> None:
    """Its retry has the key of a message that waited in a level, and is not the one to cancel."""
    clock = ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", clock=clock, config=CONFIG) as store:
        id = store.put(b"body", topic="t", delay_level=1)
        clock.advance(SECOND)
        delivery = one(store)
        send_back(store.putting, "g", message_of(delivery), delay_level=2)
        delivery.ack()
        assert not store.cancel(id) and store.get(id) is None and store.count() == 1
        clock.advance(5 * SECOND)
        assert (one(store).id, one(store, group="h").attempt) == (id, 0)


def test_after_a_delay(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", clock=clock, config=CONFIG) as store:
        store.put(b"body", topic="t")
        delivery = one(store)
        message = message_of(delivery)
        for wrong in (-SECOND, -5, "5"):
            with pytest.raises(InvalidArgumentError, match="Pass a "):
                send_back(store.putting, "g", message, delay=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="exclude"):
            send_back(store.putting, "g", message, delay=SECOND, delay_level=1)
        with pytest.raises(InvalidArgumentError, match="delay_level is 0"):
            send_back(store.putting, "g", message, delay_level=0)
        assert store.count() == 0
        send_back(store.putting, "g", message, delay=timedelta(microseconds=1))
        delivery.ack()
        clock.advance(timedelta(milliseconds=1))
        assert one(store).attempt == 1


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    config = Config(
        delay_levels="1s", durability="process", tuning=Tuning(commitlog_segment_bytes=1_024)
    )
    with timerstore.open(tmp_path / "s", clock=ManualClock(START_MS), config=config) as store:
        store.put(bytes(300), topic="t")
        message = message_of(one(store))
        large = message._replace(body=bytes(950))
        for refused in (
            lambda: send_back(store.putting, "g", large, delay_level=1),
            lambda: send_back(store.putting, "g", large),
            lambda: send_to_dead(store.putting, "g", large),
        ):
            with pytest.raises(InvalidArgumentError):
                refused()
        send_to_dead(store.putting, "g", message)


def test_nothing_is_sent_from_a_closed_store(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", clock=clock, config=CONFIG) as store:
        store.put(b"body", topic="t")
        message = message_of(one(store))
    for refused in (
        lambda: send_back(store.putting, "g", message, delay_level=1),
        lambda: send_to_dead(store.putting, "g", message),
    ):
        with pytest.raises(timerstore.StoreClosedError):
            refused()
