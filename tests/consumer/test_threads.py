"""The consumer's threads on the wall clock."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.waiting import wait_until
from timerstore import (
    Config,
    Consumer,
    CorruptStoreError,
    Delivery,
    InvalidArgumentError,
    Retry,
    StoreFullError,
    TimerStore,
)
from timerstore.calls.consuming import run as run_module
from timerstore.calls.consuming.group import Group
from timerstore.consumer import handling
from timerstore.consumer.subscription import Subscription
from timerstore.consumer.threads import Threads
from timerstore.services.world.background import BackgroundThread

SMALL: dict[str, Any] = {
    "durability": "process",
    "commitlog_segment_bytes": 1 << 20,
    "consumequeue_segment_bytes": 20_000,
    "timerlog_segment_bytes": 52_000,
    "near_count_max": 1 << 16,
    "delay_levels": "1s 1s 1s 1s",
}
PATIENCE_S = 60.0  # other programs may have the machine


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with TimerStore(tmp_path, config=Config.from_mapping(SMALL, "the test")) as store:
        yield store


def test_threads_work_at_the_same_time(store: TimerStore) -> None:
    together = threading.Barrier(8)
    consumer = Consumer(store, "g", threads=8)
    consumer.subscribe("t", lambda d: together.wait(PATIENCE_S) and None)
    with consumer:
        store.put_many([b"x"] * 8, topic="t")
        group = store.consuming.group("t", "g")
        wait_until(lambda: group.committed().get(("t", 0)) == 8)
    assert not together.broken


@pytest.mark.parametrize("batch_count", [1, 7])
def test_each_message_once(store: TimerStore, batch_count: int) -> None:
    seen: list[str] = []

    def handle(got: Any) -> None:
        seen.extend(d.id for d in (got if batch_count > 1 else [got]))

    consumer = Consumer(store, "g", threads=5, batch_count=batch_count)
    consumer.subscribe("t", handle)
    with consumer:
        ids = store.put_many([b"x"] * 500, topic="t", delay_ms=list(range(250)) * 2)
        wait_until(lambda: len(seen) >= 500)
    assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize(
    "limits",
    [
        {"inflight_count_max": 3},
        {"inflight_bytes_max": 1},
        {"inflight_span_max": 4},
        {"inflight_count_max": 1, "inflight_span_max": 1, "inflight_bytes_max": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("rate", [None, "100000/s"])
def test_limits_hold_and_nothing_is_dropped(
    tmp_path: Path, limits: dict[str, int], rate: str | None
) -> None:
    active, most, seen, lock = 0, 0, 0, threading.Lock()

    def handle(d: Delivery) -> None:
        nonlocal active, most, seen
        with lock:
            active += 1
            most = max(most, active)
        time.sleep(0.001)
        with lock:
            active, seen = active - 1, seen + 1

    with TimerStore(tmp_path, config=Config.from_mapping(SMALL | limits, "the test")) as store:
        store.put_many([b"x" * 100] * 150, topic="t")
        consumer = Consumer(store, "g", threads=12, rate=rate)
        consumer.subscribe("t", handle)
        with consumer:
            wait_until(lambda: seen == 150)
        (group,) = (each.group for each in consumer._workings.subscriptions)
        wait_until(lambda: group.committed()["t", 0] == 150)
    assert 1 <= most <= limits.get("inflight_count_max", limits.get("inflight_span_max", 1))


@pytest.mark.parametrize("rate", [None, "100000/s"])
def test_one_that_hangs_stops_pulling_at_the_span(tmp_path: Path, rate: str | None) -> None:
    go_on, seen = threading.Event(), [0]

    def handle(d: Delivery) -> None:
        if d.body == b"hangs":
            go_on.wait(PATIENCE_S)
        seen[0] += 1

    with TimerStore(
        tmp_path, config=Config.from_mapping(SMALL | {"inflight_span_max": 20}, "the test")
    ) as store:
        store.put(b"hangs", topic="t")
        store.put_many([b"x"] * 60, topic="t")
        consumer = Consumer(store, "g", threads=4, rate=rate)
        consumer.subscribe("t", handle)
        with consumer:
            wait_until(lambda: seen[0] == 19)
            time.sleep(0.2)
            assert seen[0] == 19
            go_on.set()
            wait_until(lambda: seen[0] == 61)


def test_a_damaged_entry_stops_no_consumer_at_its_span(tmp_path: Path) -> None:
    bodies = {b"%d" % i for i in range(60)}
    config = Config.from_mapping(SMALL | {"inflight_span_max": 4}, "the test")
    for life in range(2):
        seen = set[bytes]()
        with TimerStore(tmp_path, config=config) as store:
            if life == 0:
                store.put_many(sorted(bodies), topic="t")
                wait_until(lambda store=store: store.stats().fired_count == 60)
                file = next((tmp_path / "consumequeue" / "t" / "0").iterdir())
                with open(file, "r+b") as opened:
                    opened.write(bytes(20))
            consumer = Consumer(store, "g", threads=4)
            consumer.subscribe("t", lambda d, seen=seen: seen.add(d.body))
            with consumer:
                wanted = 1 if life else 59
                wait_until(lambda seen=seen, wanted=wanted: len(seen) == wanted)
        bodies -= seen
    assert not bodies


def test_other_topics_go_on_where_one_is_at_its_limit(tmp_path: Path) -> None:
    go_on, others = threading.Event(), [0]

    def count(d: Delivery) -> None:
        others[0] += 1

    with TimerStore(
        tmp_path, config=Config.from_mapping(SMALL | {"inflight_count_max": 2}, "the test")
    ) as store:
        store.put_many([b"x"] * 5, topic="slow")
        consumer = Consumer(store, "g", threads=4)
        consumer.subscribe("slow", lambda d: go_on.wait(PATIENCE_S) and None)
        consumer.subscribe("fast", count)
        with consumer:
            time.sleep(0.2)
            store.put_many([b"x"] * 50, topic="fast")
            wait_until(lambda: others[0] == 50)
            go_on.set()


def test_retries_come_back(store: TimerStore) -> None:
    attempts: list[int] = []

    def handle(d: Delivery) -> Retry | None:
        attempts.append(d.attempt)
        return Retry(delay_level=1) if d.attempt < 1 else None

    consumer = Consumer(store, "g")
    consumer.subscribe("t", handle)
    with consumer:
        start = time.monotonic()
        store.put(b"x", topic="t")
        wait_until(lambda: attempts == [0, 1])
    assert time.monotonic() - start >= 0.99


def test_too_slow_in_a_thread(store: TimerStore) -> None:
    go_on, attempts = threading.Event(), []

    def handle(d: Delivery) -> None:
        attempts.append(d.attempt)
        if d.attempt == 0:
            go_on.wait(PATIENCE_S)

    consumer = Consumer(store, "g", threads=2, timeout=timedelta(milliseconds=100))
    consumer.subscribe("t", handle)
    with consumer:
        store.put(b"x", topic="t")
        wait_until(lambda: attempts == [0, 1])
        go_on.set()


def test_handed_in_again_where_sending_back_fails(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def full(*_: Any, **__: Any) -> None:
        raise StoreFullError("no space. Free some.")

    def handle(d: Delivery) -> Retry | None:
        attempts.append(d.attempt)
        return Retry() if len(attempts) == 1 else None

    monkeypatch.setattr(run_module, "send_back", full)
    monkeypatch.setattr(handling, "AGAIN_MS", 100)
    consumer = Consumer(store, "g", threads=1)
    consumer.subscribe("t", handle)
    with consumer:
        store.put(b"x", topic="t")
        wait_until(lambda: attempts == [0, 0])


def test_close_waits_for_handlers(store: TimerStore) -> None:
    go_on, begun, ended = threading.Event(), threading.Event(), []

    def handle(d: Delivery) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        ended.append(d.body)

    consumer = Consumer(store, "g", threads=1)
    consumer.subscribe("t", handle)
    consumer.start()
    store.put_many([b"1", b"2", b"3"], topic="t")
    assert begun.wait(PATIENCE_S)
    assert consumer.close(timeout=timedelta(milliseconds=50)) is False
    assert not ended
    # What was not begun is for the next one of the group.
    assert [d.body for d in store.consume("t", group="g", timeout=0.2)] == [b"2", b"3"]
    go_on.set()
    wait_until(lambda: ended == [b"1"])
    group = store.consuming.group("t", "g")
    wait_until(lambda: len(group.cursors) > 0 and group.committed()["t", 0] == 1)


def test_an_error_of_the_store_stops_it_and_is_raised(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(store, "g")
    consumer.subscribe("t", lambda d: None)
    consumer.start()
    threads = consumer._threads
    assert threads is not None

    def damaged(*_: Any, **named: Any) -> Any:
        raise CorruptStoreError("commitlog", 0, "this is a test")

    monkeypatch.setattr(store.consuming.group("t", "g"), "pull_ready", damaged)
    wait_until(lambda: threads.failure.error is not None)
    with pytest.raises(CorruptStoreError, match="this is a test"):
        consumer.close()


class AnyEnd(BaseException):
    """What nobody expects."""


class EndingHook:
    """A hook that ends its thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def before(self, deliveries: Any) -> None:
        """Raise."""
        raise self.error

    def after(self, deliveries: Any, outcome: Any) -> None:
        """Do nothing."""


ENDING_PLACES = {
    "pull": (Group, "pull_ready"),
    "read": (Group, "_read"),
    "task": (Subscription, "tasks"),
    "lead": (Threads, "_lead"),
    "rest": (Threads, "_rest"),
    "wake": (Threads, "_wake_one"),
    "tend": (handling.Handling, "tend"),
    "judge": (handling.Handling, "_judge"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "error", [ValueError("a mistake of ours"), AnyEnd("the end"), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize("place", [*ENDING_PLACES, "hook", "handler"])
def test_whatever_ends_a_thread_ends_the_consumer_alone(
    tmp_path: Path,
    place: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is kept, logged, raised by `close`; nothing hangs, and what was not begun comes again."""
    if place in ("hook", "handler") and not isinstance(error, KeyboardInterrupt):
        return  # that is a failure of theirs, by the consumer's rules

    ended: list[bool] = []

    def end(*got: Any, **more: Any) -> Any:
        if ended and place in ENDING_PLACES:
            return real(*got, **more)
        ended.append(True)
        raise error

    store = TimerStore(tmp_path, config=Config.from_mapping(SMALL, "the test"))
    hooks = [EndingHook(error)] if place == "hook" else []
    consumer = Consumer(
        store, "g", threads=3, hooks=hooks, batch_count=2, timeout=timedelta(milliseconds=100)
    )
    consumer.subscribe("t", end if place == "handler" else lambda ds: Retry())
    assert consumer.error is None
    with monkeypatch.context() as patch:
        if place in ENDING_PLACES:
            real = getattr(*ENDING_PLACES[place])
            patch.setattr(*ENDING_PLACES[place], end)
        consumer.start()
        store.put_many([b"x"] * 5, topic="t")
        wait_until(lambda: consumer.error is not None)
        assert consumer.error is error
        (warning,) = [w for w in store.health().warnings if w.kind == "consumer stopped"]
        assert (warning.group, warning.topic) == ("g", "t")
        assert type(error).__name__ in warning.what
        with pytest.raises(type(error)):
            consumer.close(timeout=timedelta(seconds=PATIENCE_S))
    assert not [w for w in store.health().warnings if w.kind == "consumer stopped"]
    wait_until(lambda: any(each.exc_info and each.exc_info[1] is error for each in caplog.records))
    assert not [each for each in threading.enumerate() if each.name.startswith("timerstore-g")]
    if place in ("pull", "read", "task", "lead", "hook", "handler"):  # no handler ended
        assert len(list(store.consume("t", group="g", timeout=0.2))) == 5
    store.close()
    TimerStore(tmp_path, config=Config.from_mapping(SMALL, "the test")).close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "error",
    [AnyEnd("a panic"), asyncio.CancelledError(), GeneratorExit(), SystemExit(3)],
    ids=repr,
)
@pytest.mark.parametrize("hooked", [False, True])
def test_what_is_no_exception_is_a_failure_like_others(
    store: TimerStore, error: BaseException, hooked: bool
) -> None:
    """It counts an attempt, and becomes a dead letter; the others are handled."""
    good: list[bytes] = []

    def handle(d: Any) -> None:
        if d.body == b"bad":
            raise error
        good.append(d.body)

    hooks = [EndingHook(error)] if hooked else []
    consumer = Consumer(store, "g", threads=2, max_attempts=0, hooks=hooks)
    consumer.subscribe("t", handle)
    store.put_many([b"bad", b"1", b"2"], topic="t")
    with consumer:
        wait_until(lambda: len(good) == 2 and len(store.dead_letters("g")) == 1)
        assert consumer.error is None
        (letter,) = store.dead_letters("g")
        kind = "RuntimeError" if isinstance(error, SystemExit) else type(error).__qualname__
        assert letter.error_type.endswith(kind)


@pytest.mark.timeout(60)
def test_a_successor_ends_the_warning_of_a_consumer_that_stopped(store: TimerStore) -> None:
    def stop(d: Any) -> None:
        raise KeyboardInterrupt

    first = Consumer(store, "g", threads=1)
    first.subscribe("t", stop)
    first.start()
    store.put(b"x", topic="t")
    wait_until(lambda: first.error is not None)
    assert [w.kind for w in store.health().warnings] == ["consumer stopped"]
    second = Consumer(store, "g", threads=1)
    second.subscribe("t", lambda d: None)
    with second:
        assert not store.health().warnings
    with pytest.raises(KeyboardInterrupt):
        first.close()


@pytest.mark.timeout(60)
def test_a_consumer_whose_threads_cannot_start(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, start = threading.active_count(), BackgroundThread.start

    def run_out(thread: BackgroundThread) -> None:
        if threading.active_count() > before + 2:
            raise StoreFullError("The system has no thread left.")
        start(thread)

    consumer = Consumer(store, "g", threads=5)
    consumer.subscribe("t", lambda d: None)
    monkeypatch.setattr(BackgroundThread, "start", run_out)
    with pytest.raises(StoreFullError, match="no thread left"):
        consumer.start()
    assert threading.active_count() == before
    consumer.close()


@pytest.mark.timeout(60)
def test_a_store_that_stops_ends_its_consumers(tmp_path: Path) -> None:
    store = TimerStore(tmp_path, config=Config.from_mapping(SMALL, "the test"))
    consumer = Consumer(store, "g", threads=3)
    consumer.subscribe("t", lambda d: None)
    consumer.start()
    store.consuming.write_offsets = lambda: [][0]  # type: ignore[method-assign]
    with pytest.raises(IndexError):
        store.core.upkeep.flush()
    store.put(b"x")  # so that there is something to make durable
    for act in (consumer.close, store.close):
        wait_until(lambda: consumer.error is not None)
        with pytest.raises(IndexError):
            act()


def test_a_store_that_is_closed_first(tmp_path: Path) -> None:
    store = TimerStore(tmp_path, config=Config.from_mapping(SMALL, "the test"))
    consumer = Consumer(store, "g")
    consumer.subscribe("t", lambda d: None)
    consumer.start()
    store.close()
    assert consumer.close(timeout=timedelta(seconds=PATIENCE_S)) is True


def test_step_is_for_the_manual_clock(store: TimerStore) -> None:
    consumer = Consumer(store, "g")
    consumer.subscribe("t", lambda d: None)
    with pytest.raises(InvalidArgumentError, match="wall clock"):
        consumer.step()


class Alarm(BaseException):
    """What a signal's handler raises."""


def theirs() -> list[str]:
    """Return the threads of consumers."""
    return [each.name for each in threading.enumerate() if each.name.startswith("timerstore-g")]


def end(*_: Any) -> None:
    raise Alarm


@pytest.mark.timeout(90)
def test_closing_that_was_interrupted_leaves_no_thread_and_goes_on(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(store, "g", threads=4)
    consumer.subscribe("t", lambda d: None)
    consumer.start()
    with monkeypatch.context() as patch:
        patch.setattr(consumer._threads, "_wake_all", end)
        with pytest.raises(Alarm):
            consumer.close()
    wait_until(lambda: not theirs())  # also where nobody closes it again
    assert consumer.close() and consumer.close()


@pytest.mark.timeout(90)
def test_a_consumer_whose_start_was_interrupted_can_be_closed(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(store, "g", threads=4)
    consumer.subscribe("t", lambda d: None)
    monkeypatch.setattr(Threads, "start", end)
    with pytest.raises(Alarm):
        consumer.start()
    assert consumer.close()
