"""What a handler does with the list that it gets changes nothing for its consumer."""

import copy
import logging
import pickle
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.consumer.test_consumer import SECOND, Shop
from tests.small_store import SMALL
from timerstore import Consumer, Delivery, InvalidArgumentError, Outcome, Retry, TimerStore
from timerstore.values.amounts import shown_time

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "store")
    yield shop
    shop.store.close()


@pytest.mark.timeout(60)
def test_a_handler_may_empty_its_list(shop: Shop) -> None:
    seen: list[bytes] = []

    def handle(ds: list[Delivery]) -> Retry | None:
        if len(seen) < 3:
            seen.append(ds[0].body)
            ds.clear()
            return Retry(delay_level=1)
        while ds:
            seen.append(ds.pop().body)
        return None

    consumer = Consumer(shop.store, "g", batch_count=3, pull_count=3)
    consumer.subscribe("t", handle)
    shop.put(b"a", b"b", b"c", b"d")
    assert consumer.step() == 4
    shop.clock.advance(2 * SECOND)
    consumer.step()
    shop.put(b"e")
    consumer.step()
    shop.clock.advance(timedelta(minutes=1))
    consumer.step()
    assert set(seen) == {b"a", b"b", b"c", b"d", b"e"}
    held = consumer._workings.subscriptions[0]._held.values()
    assert [(each.count, each.bytes) for each in held] == [(0, 0)] * len(held)
    consumer.close()
    shop.store.flush()
    shop.kill()
    assert shop.store.consuming.group("t", "g").pull(10) is None


@pytest.mark.timeout(60)
def test_hooks_may_empty_their_lists(shop: Shop) -> None:
    class Emptying:
        def before(self, deliveries: list[Delivery]) -> None:
            deliveries.clear()

        def after(self, deliveries: list[Delivery], outcome: Outcome) -> None:
            deliveries.clear()

    consumer = Consumer(shop.store, "g", batch_count=3, hooks=[Emptying(), Emptying()])
    consumer.subscribe("t", shop.note)
    shop.put(b"a", b"b")
    assert consumer.step() == 2
    assert shop.new() == [b"a", b"b"]


class Noting:
    """A hook that notes where each message comes from."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, int, int, int]] = []

    def before(self, deliveries: list[Delivery]) -> None:
        for d in deliveries:
            self.seen.append((d.group, d.topic, d.attempt, d.queue_id, d.queue_index, d.offset))

    def after(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        pass


def test_a_hook_sees_group_queue_and_offset(shop: Shop) -> None:
    noting, queues = Noting(), shop.store.core.engine.queues
    consumer = Consumer(shop.store, "g", hooks=[noting])
    consumer.subscribe("t", lambda d: Retry(delay_level=1) if d.attempt == 0 else None)
    shop.put(b"a", b"b")
    assert consumer.step() == 2
    shop.clock.advance(2 * SECOND)
    assert consumer.step() == 2

    def offset(topic: bytes, index: int) -> int:
        return int(queues.read(queues.row(topic), index, 1)[0]["offset"])

    assert noting.seen == [
        ("g", "t", attempt, 0, index, offset(topic, index))
        for attempt, topic in enumerate((b"t", b"%RETRY%g"))
        for index in range(2)
    ]


@pytest.mark.timeout(60)
def test_a_handler_may_replace_bodies(shop: Shop) -> None:
    """Bytes in flight are counted by what came: else a queue's room shrinks for ever."""

    def handle(ds: list[Delivery]) -> Retry:
        for d in ds:
            d.body = {"parsed": 1}  # type: ignore[assignment]
        return Retry(delay_level=1, ack_index=1)

    consumer = Consumer(shop.store, "g", batch_count=3)
    consumer.subscribe("t", handle)
    shop.put(b"aaaa", b"bb", b"c")
    assert consumer.step() == 3
    held = consumer._workings.subscriptions[0]._held.values()
    assert [(each.count, each.bytes) for each in held] == [(0, 0)]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("timeout", [None, timedelta(0), timedelta.max])
def test_a_handler_may_close_its_consumer_while_it_starts(
    tmp_path: Path, timeout: timedelta | None
) -> None:
    with TimerStore(tmp_path / "store", config=SMALL) as store:
        for _ in range(10):
            handled: list[str] = []
            consumer = Consumer(store, "g", threads=100)

            @consumer.on("t")
            def close(
                d: Delivery, consumer: Consumer = consumer, handled: list[str] = handled
            ) -> None:
                handled.append(d.id)
                consumer.close(timeout)

            put = set(store.put_many([b"x"] * 300, topic="t"))
            consumer.start()
            assert consumer.close()
            while put - set(handled):  # what was not begun comes to the next
                batch = store.pull("t", group="g", timeout=10)
                handled += batch.ids.to_pylist()
                batch.ack()


class Partly:
    def takes_none(self) -> None: ...

    def takes_one(self, delivery: object) -> None: ...


@pytest.mark.parametrize("handler", [
    *(lambda: None, lambda a, b: None, lambda *, d: None, Partly().takes_none, Partly.takes_one),
], ids=range(5))  # fmt: skip
def test_a_handler_that_takes_no_delivery_is_refused(shop: Shop, handler: Any) -> None:
    """It would be called until all its messages are dead letters."""
    with pytest.raises(InvalidArgumentError, match="one argument"):
        Consumer(shop.store, "g").subscribe("t", handler)


@pytest.mark.parametrize("handler", [
    *(lambda d: None, lambda d, more=1: None, lambda *all: None, Partly().takes_one, print, len),
    *(dict.fromkeys, Mock(), partial(print, end="")),
], ids=range(9))  # fmt: skip
def test_a_handler_that_may_take_one_is_taken(shop: Shop, handler: Any) -> None:
    """Also a builtin that does not say what it takes."""
    Consumer(shop.store, "g").subscribe("t", handler)


@pytest.mark.timeout(60)
def test_a_failure_s_line_says_which_how_often_and_when(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(delivery: Delivery) -> None:
        raise ValueError("no")

    consumer = Consumer(shop.store, "g", max_attempts=1, backoff=[timedelta(minutes=1)])
    consumer.subscribe("t", fail)
    id = shop.store.put(b"x", topic="t", key="user:7")
    consumer.step()
    first = caplog.records[-1]
    due_ms = shop.clock.now_ms + 60_000
    assert f"t: message {id} (key 'user:7', attempt 0) failed and comes again at" in caplog.text
    assert shown_time(due_ms) in first.getMessage()
    told = vars(first)
    assert (told["keys"], told["attempt"], told["next_ms"]) == (["user:7"], 0, due_ms)
    shop.clock.advance(timedelta(minutes=1))
    consumer.step()
    assert "attempt 1) failed and becomes a dead letter" in caplog.text
    shop.store.put(b"y", topic="t", expires=1)
    consumer.step()
    told = [each for each in caplog.records if "expires before it could come again" in each.message]
    assert len(told) == 1 and vars(told[0])["next_ms"] is None


def test_a_retry_s_values_have_names() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Retry\(delay=5\) .*Retry\(delay_level=5\)"):
        Retry(5)  # type: ignore[misc]
    waits = Retry(delay=5, reason="later")
    assert copy.copy(waits) == pickle.loads(pickle.dumps(waits)) == waits


class _Mute(BaseException):
    """It fails to say what it is, with what is no Exception; that one pytest can show."""

    def __str__(self) -> str:
        raise BaseException("it says nothing")

    __repr__ = __str__


class _AsksTheError(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.getMessage()}: {record.exc_info[1] if record.exc_info else None}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["raises", "returns", "exits", "before", "after"])
def test_what_cannot_say_what_it_is_has_failed_like_others(
    shop: Shop, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program's formatter may ask an error for its text without care, as PySpark's does.
    monkeypatch.setattr(caplog.handler, "formatter", _AsksTheError())

    def handle(_: Delivery) -> Any:
        if how == "returns":
            return _Mute()
        if how == "exits":
            raise SystemExit(_Mute())
        raise _Mute if how == "raises" else ValueError("said")

    def say_nothing(*_: Any) -> None:
        raise _Mute

    hooks = [type("Hook", (), dict.fromkeys(("before", "after"), lambda *_: None))()]
    if how in ("before", "after"):
        setattr(hooks[0], how, say_nothing)
        monkeypatch.setattr(type(hooks[0]), "__repr__", say_nothing)
    consumer = Consumer(shop.store, "g", max_attempts=0, hooks=hooks)
    consumer.subscribe("t", handle)
    shop.put(b"a", b"b")
    assert consumer.step() == 2
    consumer.close()
    assert [each.body for each in shop.store.dead_letters("g")] == [b"a", b"b"]
    assert ("_Mute, which fails to say what it is" in caplog.text) == (
        how in ("raises", "before", "after")
    )
