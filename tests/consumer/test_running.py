"""A consumer as a program's main part: what signals do to it, what status it returns."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.small_store import SMALL
from timerstore import Consumer, Delivery, InvalidArgumentError, ManualClock, TimerStore
from timerstore.consumer.consumer import SIGNALS, Signals
from timerstore.services.world.background import Flag

CONFIG = replace(SMALL, durability="process")


def term() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def term_once_it_runs(_: Delivery) -> None:
    while not isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Signals):
        time.sleep(0.01)
    term()


@pytest.fixture
def before() -> Iterator[list[int]]:
    """The signals that came to whoever had them before."""
    came: list[int] = []
    kept = {number: signal.signal(number, lambda n, _: came.append(n)) for number in SIGNALS}
    yield came
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    store = TimerStore(tmp_path / "s", config=CONFIG)
    yield store
    store.close()


def left(path: Path) -> list[bytes]:
    with TimerStore(path, config=CONFIG) as store:
        return sorted(d.body for d in store.consume("t", group="g", timeout=0))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_lets_handlers_end(store: TimerStore, before: list[int], number: int) -> None:
    ended: list[bytes] = []
    consumer = Consumer(store, "g", threads=2)

    @consumer.on("t")
    def slow(d: Delivery) -> None:
        os.kill(os.getpid(), number)
        threading.Event().wait(0.3)
        ended.append(d.body)

    store.put(b"1", topic="t")
    store.put(b"2", topic="t", delay=timedelta(hours=1))
    assert consumer.run() == 0
    assert ended == [b"1"] and store.core.closed and before == []
    assert left(store.path) == []  # it is acknowledged
    os.kill(os.getpid(), number)
    assert before == [number]  # as it was


@pytest.mark.timeout(60)
def test_the_store_stays_open_where_it_is_told(store: TimerStore, before: list[int]) -> None:
    consumer = Consumer(store, "g", threads=1)
    consumer.subscribe("t", term_once_it_runs)
    store.put(b"1", topic="t")
    with consumer:  # started already
        assert consumer.run(close_store=False) == 0
    assert not store.core.closed
    with pytest.raises(InvalidArgumentError, match="started before"):
        consumer.run()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["second signal", "timeout"])
def test_who_does_not_end_is_left(store: TimerStore, before: list[int], how: str) -> None:
    consumer, go_on, ended = Consumer(store, "g", threads=1), Flag(), Flag()

    @consumer.on("t")
    def hangs(d: Delivery) -> None:
        term()
        if how == "second signal":
            while not consumer._threads.stopping:  # type: ignore[union-attr]
                go_on.wait(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(30)
        ended.set()

    store.put_many([b"1", b"2"], topic="t")
    timeout = timedelta(seconds=0.2) if how == "timeout" else None
    number = signal.SIGINT if how == "second signal" else signal.SIGTERM
    assert consumer.run(timeout=timeout) == 128 + number
    assert not ended.is_set() and store.core.closed
    term()
    assert before == [signal.SIGTERM]
    go_on.set()
    while not ended.wait(1):
        pass
    assert left(store.path) == [b"1", b"2"]  # it ended too late to be acknowledged


@pytest.mark.timeout(60)
def test_a_third_signal_is_not_ours(store: TimerStore, before: list[int]) -> None:
    """The second one has waited for nobody; what hangs then is the store, or its disk."""
    consumer = Consumer(store, "g", threads=1)
    consumer.subscribe("t", lambda _: term())
    store.core.at_close.append(lambda: [term() for _ in range(2)] and None)
    store.put(b"1", topic="t")
    assert consumer.run() == 0
    assert before[-1:] == [signal.SIGTERM]


@pytest.mark.timeout(60)
def test_an_error_is_a_status(
    store: TimerStore, before: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(store, "g", threads=2)

    @consumer.on("t")
    def breaks(d: Delivery) -> None:
        raise KeyboardInterrupt

    store.put(b"1", topic="t")
    assert consumer.run() == 1
    assert isinstance(consumer.error, KeyboardInterrupt)
    assert any("has stopped" in record.getMessage() for record in caplog.records)
    assert left(store.path) == [b"1"]


@pytest.mark.timeout(60)
def test_a_store_that_was_closed_ends_it(store: TimerStore, before: list[int]) -> None:
    consumer = Consumer(store, "g", threads=1)
    consumer.subscribe("t", lambda _: threading.Thread(target=store.close).start())
    store.put(b"1", topic="t")
    assert consumer.run() == 0


@pytest.mark.timeout(60)
def test_a_store_that_cannot_be_closed_is_a_status(
    store: TimerStore, before: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("no disk")

    consumer = Consumer(store, "g", threads=1)
    consumer.subscribe("t", lambda _: term())
    store.put(b"1", topic="t")
    store.core.at_close.append(fail)
    assert consumer.run() == 1
    assert any("no disk" in record.getMessage() for record in caplog.records)
    store.core.at_close.remove(fail)


def test_where_it_cannot_run(store: TimerStore, tmp_path: Path) -> None:
    found: list[str] = []

    def try_it() -> None:
        try:
            Consumer(store, "g").run()
        except InvalidArgumentError as e:
            found.append(str(e))

    thread = threading.Thread(target=try_it, name="worker")
    thread.start()
    thread.join()
    assert "the thread 'worker'" in found[0] and "start() here" in found[0]
    with pytest.raises(InvalidArgumentError, match="seconds as a number"):
        Consumer(store, "g").run(timeout="30")  # type: ignore[arg-type]
    with TimerStore(tmp_path / "m", config=SMALL, clock=ManualClock()) as manual:
        consumer = Consumer(manual, "g")
        with pytest.raises(InvalidArgumentError, match="manual clock"):
            consumer.run()


# --- what is no handler


async def coroutine(d: Delivery) -> None: ...


def generator(d: Delivery) -> Any:
    yield


class Called:
    async def __call__(self, d: Delivery) -> None: ...


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (coroutine, "an async def.* or use timerstore.aio.Consumer"),
        (partial(coroutine), "an async def"),
        (Called(), "an async def"),
        (generator, "without yield"),
        (5, "a plain function that takes a Delivery"),
        (None, "a plain function"),
    ],
)
def test_what_is_no_handler_is_refused(store: TimerStore, bad: Any, told: str) -> None:
    consumer = Consumer(store, "g")
    with pytest.raises(InvalidArgumentError, match=told):
        consumer.subscribe("t", bad)
    with pytest.raises(InvalidArgumentError, match=told):
        consumer.on("t")(bad)


def test_what_is_no_body_is_told_how_to_be_one(store: TimerStore) -> None:
    for bad in ("text", {"a": 1}):
        with pytest.raises(InvalidArgumentError, match=r"text.encode\(\)"):
            store.put(bad)  # type: ignore[arg-type]


def test_a_text_is_no_duration(store: TimerStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for call in (
        lambda: store.put(b"x", delay="5 s"),  # type: ignore[arg-type]
        lambda: store.pause("firing", duration="5 s"),  # type: ignore[arg-type]
        lambda: Consumer(store, "g", timeout="5 s"),  # type: ignore[arg-type]
        lambda: Consumer(store, "g").close("5 s"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match=r"Pass a datetime\.timedelta, or seconds"):
            call()
