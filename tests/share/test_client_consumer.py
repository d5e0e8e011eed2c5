"""A consumer over a client: handlers here, retries, dead letters there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.consumer.test_handlers import Noting
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import (
    Client,
    Consumer,
    Delivery,
    InvalidArgumentError,
    Retry,
    StoreClosedError,
    TimerStore,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
QUICK = "10s 10s 1s 1s 1s"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    config = timerstore.Config(**{**vars_of(SMALL), "delay_levels": QUICK})
    with timerstore.open(tmp_path / "s", config=config) as store:
        timerstore.serve(store)
        yield store


def vars_of(config: timerstore.Config) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.fixture
def client(store: TimerStore) -> Iterator[Client]:
    with timerstore.connect(store.path, timeout=5) as client:
        yield client


def test_handlers_succeed_fail_and_give_up(store: TimerStore, client: Client) -> None:
    seen: list[tuple[bytes, int, str | None]] = []
    consumer = Consumer(client, "mailer", threads=4, max_attempts=1)

    @consumer.on("mail")
    def send(d: Delivery) -> Retry | None:
        seen.append((d.body, d.attempt, d.key))
        if d.body == b"bad":
            raise ValueError("no such address")
        if d.body == b"asked":
            return Retry(delay=timedelta(milliseconds=30), reason="not today")
        return Retry(delay_level=3) if d.body == b"again" and d.attempt == 0 else None

    @consumer.on("tagged", tags="a||b")
    def tagged(d: Delivery) -> None:
        seen.append((d.body, d.attempt, d.tag))

    def counts() -> list[int]:
        (mail,) = (each.group for each in consumer.stats() if each.topic == "mail")
        return [mail.handled_count, mail.failed_count, mail.retried_count, mail.dead_count]

    with consumer:
        client.put(b"good", topic="mail", key="k")
        client.put(b"bad", topic="mail")
        client.put(b"again", topic="mail")
        client.put(b"asked", topic="mail")
        for tag in "abc":
            client.put(tag.encode(), topic="tagged", tag=tag)
        wait_until(lambda: len(consumer.dead_letters()) == 2 and len(seen) >= 9)
        wait_until(lambda: counts() == [2, 5, 3, 2])  # a handler is counted once it has returned
    letters = {each.body: each for each in store.dead_letters("mailer")}
    assert (letters[b"asked"].attempts, letters[b"asked"].error_text) == (2, "not today")
    letter = letters[b"bad"]
    assert (letter.body, letter.topic, letter.attempts) == (b"bad", "mail", 2)
    assert letter.error_type == "ValueError" and letter.error_text == "no such address"
    assert sorted(seen) == [
        *((b"a", 0, "a"), (b"again", 0, None), (b"again", 1, None), (b"asked", 0, None)),
        *((b"asked", 1, None), (b"b", 0, "b")),
        *((b"bad", 0, None), (b"bad", 1, None), (b"good", 0, "k")),
    ]
    assert len(store.pull("mail", group="mailer", timeout=0)) == 0
    assert consumer.retry_dead_letters() == 2 and consumer.drop_dead_letters() == 0


def test_a_list_at_a_time_and_what_was_not_begun(store: TimerStore, client: Client) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(many: list[Delivery]) -> None:
        begun.set()
        go_on.wait(30)

    consumer = Consumer(client, "g", threads=1, batch_count=2, pull_count=6)
    consumer.subscribe("t", work)
    client.put_many([b"%d" % i for i in range(6)], topic="t")
    consumer.start()
    assert begun.wait(30)
    threading.Timer(0.2, go_on.set).start()
    assert consumer.close()
    left = store.pull("t", group="g", timeout=10).bodies.to_pylist()
    assert left == [b"2", b"3", b"4", b"5"]


def test_it_outlives_its_owner(store: TimerStore, client: Client) -> None:
    seen: list[bytes] = []
    consumer = Consumer(client, "g", threads=2)
    consumer.subscribe("t", lambda d: seen.append(d.body))
    with consumer:
        client.put(b"before", topic="t")
        wait_until(lambda: seen)
        config = store.core.engine.config
        store.close()
        with timerstore.open(store.path, config=config) as store:
            timerstore.serve(store)
            client.put(b"after", topic="t")
            wait_until(lambda: b"after" in seen)
            client.close()
            wait_until(lambda: not consumer._threads or consumer._threads.stopping)
        assert consumer.error is None


def test_what_needs_the_owner_is_refused(store: TimerStore, client: Client) -> None:
    for needed in ({"broadcast": True}, {"ordered": "key"}):
        refused = Consumer(client, "g", **needed)  # type: ignore[arg-type]
        refused.subscribe("t", lambda d: None)
        with pytest.raises(
            InvalidArgumentError, match="work only in the process that has the store open"
        ):
            refused.start()
    with pytest.raises(InvalidArgumentError, match="threads is"):
        Consumer(client, "g", threads=0)
    with pytest.raises(InvalidArgumentError, match="store is"):
        Consumer("timers", "g")  # type: ignore[arg-type]
    consumer = Consumer(client, "g", timeout=timedelta(seconds=5))
    consumer.subscribe("t", lambda d: None)
    with pytest.raises(InvalidArgumentError, match="wall clock"):
        consumer.step()
    client.close()
    with pytest.raises(StoreClosedError):
        consumer.start()


def test_a_hook_sees_group_queue_and_offset(store: TimerStore, client: Client) -> None:
    noting = Noting()
    consumer = Consumer(client, "mailer", hooks=[noting])
    consumer.subscribe("mail", lambda d: None)
    with consumer:
        store.put(b"a", topic="mail")
        wait_until(lambda: noting.seen)
    queues = store.core.engine.queues
    offset = int(queues.read(queues.row(b"mail"), 0, 1)[0]["offset"])
    assert noting.seen == [("mailer", "mail", 0, 0, 0, offset)]
    store.put(b"b", topic="mail")
    (delivery,) = client.pull("mail", group="other", timeout=30, max_count=1)
    assert (delivery.group, delivery.queue_index) == ("other", 0)
