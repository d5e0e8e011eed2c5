"""The ordered consumer: the rows of its table in rules.md, then each promise by itself."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.test_retry_rules import LEVELS_MS, TIMEOUT, handler, table
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import (
    Consumer,
    CorruptStoreError,
    Delivery,
    InvalidArgumentError,
    ManualClock,
    Retry,
    StoreFullError,
    TimerStore,
)
from timerstore.calls.consuming import run as run_module
from timerstore.consumer import sources
from timerstore.testing.disk import QuietDisk

SECOND = timedelta(seconds=1)
ROWS = table("ordered")


class Bench:
    """A store with an ordered consumer whose handlers do what they are told."""

    def __init__(self, path: Path, ordered: Any, config: Any = SMALL, **options: Any) -> None:
        self.path, self.config, self.clock = path, config, ManualClock()
        self.options = {"ordered": ordered, "timeout": TIMEOUT} | options
        self.seen: list[tuple[bytes, int, int]] = []
        self.failing: dict[bytes, int] = {}
        self.start_ms = self.clock.now_ms
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.clock.now_ms)
        self.store = TimerStore(self.path, config=self.config, clock=self.clock, disk=QuietDisk())
        self.consumer = self.new_consumer()

    def new_consumer(self, **options: Any) -> Consumer:
        consumer = Consumer(self.store, "g", **(self.options | options))
        consumer.subscribe("t", self.handle)
        return consumer

    def handle(self, d: Delivery) -> Retry | None:
        self.seen.append((d.body, self.clock.now_ms - self.start_ms, d.attempt))
        if self.failing.get(d.body, 0):
            self.failing[d.body] -= 1
            raise OSError("no luck")
        return None

    def put(self, *bodies: str) -> None:
        """`a1`: of the key `a`."""
        for body in bodies:
            self.store.put(body.encode(), topic="t", key=body[0] if body[0] != "-" else None)

    def reopen(self, *, crash: bool = False) -> None:
        if crash:
            self.store.abandon()
        else:
            self.consumer.close()
            self.store.close()
        self.open()

    def came(self) -> list[bytes]:
        found = [body for body, _, _ in self.seen]
        self.seen.clear()
        return found

    def lines(self) -> dict[str, list[bytes]]:
        """What came since the last call, by key."""
        found: defaultdict[str, list[bytes]] = defaultdict(list)
        for body in self.came():
            found[body.decode()[0]].append(body)
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "key")
    yield bench
    bench.consumer.close()
    bench.store.close()


# --- the table


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_the_rules(row: list[str], tmp_path: Path) -> None:
    ordered, attempt, what, *expected = row
    clock = ManualClock()
    begun: defaultdict[bytes, list[int]] = defaultdict(list)
    acted: list[int] = []
    act = handler(what, clock)

    def handle(d: Delivery) -> Any:
        begun[d.body].append(clock.now_ms)
        if d.body != b"A" or acted:
            return None
        if d.attempt < int(attempt):
            return Retry(delay_level=1)
        acted.append(clock.now_ms)
        return act(d)

    with TimerStore(tmp_path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
        consumer = Consumer(store, "g", ordered=True if ordered == "topic" else "key")
        consumer.subscribe("t", handle)
        for body, key in ((b"A", "a"), (b"B", "a"), (b"C", "c")):
            store.put(body, topic="t", key=key)
        with consumer:
            clock.advance(timedelta(hours=4))
        dead = {letter.body: letter.attempts for letter in store.dead_letters("g")}

    (acted_ms,) = acted
    taken_ms = (TIMEOUT + SECOND) // timedelta(milliseconds=1) if "long" in what else 0
    again = [ms for ms in begun[b"A"] if ms > acted_ms]
    became = "acknowledged"
    if again:
        waited_ms = again[0] - acted_ms
        became = f"again after {waited_ms} ms"
        if waited_ms in LEVELS_MS:
            became = f"again after level {LEVELS_MS.index(waited_ms) + 1}"
    elif dead:
        assert dead == {b"A": int(attempt) + 1}
        became = "dead letter"

    def when(body: bytes) -> str:
        (ms,) = begun[body]
        if again and ms == again[0]:
            return "when A is done"
        return "when A has ended" if ms == acted_ms + taken_ms else "before"

    assert [became, when(b"B"), when(b"C")] == expected


# --- by itself


def test_a_line_is_held_back_others_go_on(bench: Bench) -> None:
    bench.failing = {b"a1": 2}
    bench.put("a1", "a2", "b1", "-1", "-2", "b2", "a3")
    assert bench.consumer.step() == 5
    assert bench.came() == [b"a1", b"b1", b"-1", b"-2", b"b2"]
    bench.clock.advance(10 * SECOND)
    bench.put("b3")
    assert bench.consumer.step() == 2 and bench.came() == [b"a1", b"b3"]
    bench.clock.advance(30 * SECOND)
    assert bench.consumer.step() == 3
    assert bench.seen == [(b"a1", 40_000, 2), (b"a2", 40_000, 0), (b"a3", 40_000, 0)]
    (row,) = bench.consumer.stats()
    assert (row.group.handled_count, row.group.failed_count, row.group.retried_count) == (8, 2, 2)
    assert row.group.lag_count == row.group.in_flight_count == 0


def test_what_is_given_up_lets_its_line_go_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, True, max_attempts=1)
    bench.failing = {b"a1": 9}
    bench.put("a1", "b1")
    with bench.consumer:
        bench.clock.advance(20 * SECOND)
        assert bench.seen == [(b"a1", 0, 0), (b"a1", 10_000, 1), (b"b1", 10_000, 0)]
        (letter,) = bench.store.dead_letters("g")
        assert (letter.attempts, letter.first_failed_ms) == (2, bench.start_ms)
        assert (letter.died_ms, letter.error_text) == (bench.start_ms + 10_000, "no luck")
        bench.failing.clear()
        assert bench.consumer.retry_dead_letters() == 1
        bench.clock.advance(SECOND)
        assert bench.seen[3:] == [(b"a1", 20_000, 0)]
    bench.store.close()


def test_a_line_may_be_held_for_ever(tmp_path: Path) -> None:
    bench = Bench(tmp_path, True, max_attempts=None)
    bench.failing = {b"a1": 18}
    bench.put("a1", "a2")
    with bench.consumer:
        bench.clock.advance(timedelta(hours=16))
    assert [body for body, _, _ in bench.seen] == [b"a1"] * 19 + [b"a2"]
    assert bench.seen[18][1] - bench.seen[17][1] == LEVELS_MS[-1]
    bench.store.close()


def test_where_dying_fails_the_line_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.consumer = bench.new_consumer(max_attempts=0)
    bench.failing = {b"a1": 1}
    fails = [True]

    def send(*_: Any, **__: Any) -> None:
        if fails.pop(0):
            raise CorruptStoreError("commitlog", 0, "no disk")

    monkeypatch.setattr(run_module, "send_to_dead", send)
    bench.put("a1", "a2")
    bench.consumer.step()
    assert bench.came() == [b"a1"]
    bench.clock.advance(6 * SECOND)
    bench.consumer.step()
    assert bench.came() == [b"a1", b"a2"]


def test_it_reads_alone(bench: Bench) -> None:
    bench.put("a1", "a2")
    (first, _) = bench.store.pull("t", group="g", timeout=0)
    with pytest.raises(InvalidArgumentError, match="hold 2 messages of 't'"):
        bench.consumer.step()
    bench.reopen()
    assert first.body == b"a1"
    assert bench.consumer.step() == 2
    for call in (
        lambda: bench.store.pull("t", group="g", timeout=0),
        lambda: next(bench.store.consume("t", group="g", timeout=0)),
        lambda: bench.new_consumer(ordered=False).step(),
    ):
        with pytest.raises(InvalidArgumentError, match="An ordered consumer of the group 'g'"):
            call()
    with pytest.raises(InvalidArgumentError, match="must be the only one"):
        bench.new_consumer().step()
    assert len(bench.store.pull("t", group="other", timeout=0)) == 2
    bench.consumer.close()
    assert len(bench.store.pull("t", group="g", timeout=0)) == 0


@pytest.mark.parametrize(
    "options",
    [
        *({"ordered": "keys"}, {"ordered": 1}, {"ordered": None}),
        *({"batch_count": 2}, {"broadcast": True}, {"max_attempts": -1}),
    ],
)
def test_what_is_refused(bench: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        bench.new_consumer(**options)


def test_reading_ahead_has_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = replace(SMALL, inflight_count_max=4, inflight_span_max=8)
    bench = Bench(tmp_path, "key", config)
    bench.failing = {b"a0": 1}
    bench.put(*[f"a{i}" for i in range(12)], "b1")
    bench.consumer.step()
    assert bench.came() == [b"a0"]  # eight are in memory, which is all: b1 waits too
    bench.consumer.step()
    told = [r for r in caplog.records if "nothing more is read" in r.getMessage()]
    assert len(told) == 1 and "the 1 lines that wait" in told[0].getMessage()
    bench.clock.advance(10 * SECOND)
    bench.consumer.step()
    assert bench.lines() == {"a": [b"a%d" % i for i in range(12)], "b": [b"b1"]}
    bench.consumer.close()
    bench.store.close()


def test_a_clock_that_was_set_holds_nothing_for_ever(bench: Bench) -> None:
    bench.failing = {b"a1": 1}
    bench.put("a1")
    bench.consumer.step()
    bench.reopen()
    bench.store.consuming.held_back("t", "g")[0, 0] = (1, bench.start_ms, 1 << 50, 90_000)
    bench.consumer.step()
    bench.clock.advance(timedelta(milliseconds=90_000))
    bench.consumer.step()
    assert bench.came() == [b"a1", b"a1"]


# --- in threads


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ordered", [True, "key"])
def test_in_threads(tmp_path: Path, ordered: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Each line one after the other, others beside it; a slow handler is named, and waited for."""
    config = replace(SMALL, delay_levels="1s 1s 1s", durability="process")
    seen: defaultdict[str, list[bytes]] = defaultdict(list)
    running: defaultdict[str, int] = defaultdict(int)
    wrong: list[str] = []
    together, lock, failed = [0, 0], threading.Lock(), set[bytes]()

    def is_told() -> bool:
        records = caplog.records.copy()
        return any("the messages of its line wait" in each.getMessage() for each in records)

    with TimerStore(tmp_path, config=config) as store:
        consumer = Consumer(
            *(store, "g"), ordered=ordered, threads=8, timeout=timedelta(milliseconds=100)
        )

        @consumer.on("t")
        def handle(d: Delivery) -> None:
            line = "" if ordered is True else d.key or ""
            with lock:
                running[line] += 1
                together[0] += 1
                together[1] = max(together)
                if running[line] > 1:
                    wrong.append(f"two of {line}")
            try:
                if d.body == b"11":
                    wait_until(is_told)
                if int(d.body) % 200 == 7 and d.body not in failed:
                    failed.add(d.body)
                    raise OSError("no luck")
                time.sleep(0.0005)
                seen[line].append(d.body)
            finally:
                with lock:
                    running[line] -= 1
                    together[0] -= 1

        bodies = [b"%d" % i for i in range(200)]
        store.put_many(bodies, topic="t", keys=[f"{i % 7}" for i in range(200)])
        with consumer:
            wait_until(lambda: sum(map(len, seen.values())) == 200)
        assert not wrong
        for line, found in seen.items():
            assert found == [each for i, each in enumerate(bodies) if line in ("", f"{i % 7}")]
        assert ordered is True or together[1] > 1
        assert is_told()
        assert store.consuming.group("t", "g").committed() == {("t", 0): 200}


@pytest.mark.timeout(60)
def test_who_still_runs_keeps_others_out(tmp_path: Path) -> None:
    with TimerStore(tmp_path, config=replace(SMALL, durability="process")) as store:
        go_on, begun = threading.Event(), threading.Event()
        consumer = Consumer(store, "g", ordered=True, threads=2)

        @consumer.on("t")
        def handle(d: Delivery) -> None:
            begun.set()
            go_on.wait(30)
            raise OSError("no luck")

        store.put_many([b"1", b"2", b"3"], topic="t")
        consumer.start()
        assert begun.wait(30)
        assert not consumer.close(timedelta(milliseconds=50))
        after = Consumer(store, "g", ordered=True)
        after.subscribe("t", lambda d: None)
        with pytest.raises(InvalidArgumentError, match="must be the only one"):
            after.start()
        go_on.set()
        wait_until(lambda: store.consuming.group("t", "g").owner is None)
        # It failed, too late to be held back: the next one begins with it.
        found = [d.body for d in store.consume("t", group="g", timeout=0)]
        assert found == [b"1", b"2", b"3"]


@pytest.mark.timeout(60)
def test_closing_lets_each_topic_go_once_its_own_handlers_have_ended(tmp_path: Path) -> None:
    with TimerStore(tmp_path, config=replace(SMALL, durability="process")) as store:
        topics, go_on, begun = "abc", threading.Event(), threading.Event()
        consumer = Consumer(store, "g", ordered=True)

        def handle(d: Delivery) -> None:
            begun.set()
            go_on.wait(30)

        for topic in topics:
            consumer.subscribe(topic, handle)
        consumer.start()
        store.put(b"1", topic="b")
        assert begun.wait(30)
        assert not consumer.close(timedelta(0))
        readers = {topic: store.consuming.group(topic, "g") for topic in topics}
        assert [each for each in topics if readers[each].owner is not None] == ["b"]
        go_on.set()
        wait_until(lambda: readers["b"].owner is None)
        assert [len(store.pull(each, group="g", timeout=0)) for each in topics] == [0, 0, 0]


@pytest.mark.parametrize("kind", [{"ordered": True}, {"broadcast": True}])
def test_a_start_that_fails_has_begun_nothing(
    bench: Bench, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be tried again, by the same consumer or another one."""

    def consumer() -> Consumer:
        made = bench.new_consumer(**({"ordered": False} | kind))
        made.subscribe("u", bench.handle)
        return made

    first, real = consumer(), sources.LimitedSubscription.open

    def fail(subscription: sources.LimitedSubscription, *args: Any) -> None:
        if subscription.topic == "u":
            raise StoreFullError("no space left")
        real(subscription, *args)

    group = first._workings.settings.reads_as
    for each in (first, first, consumer()):
        with monkeypatch.context() as patched:
            patched.setattr(sources.LimitedSubscription, "open", fail)
            with pytest.raises(StoreFullError):
                each.start()
        assert not bench.store.consuming.is_read("t", group)
    if "ordered" in kind:
        bench.store.put(b"1", topic="u")
        (held,) = bench.store.pull("u", group="g", timeout=0)
        with pytest.raises(InvalidArgumentError, match="hold 1 messages"):
            first.start()
        assert not bench.store.consuming.is_read("t", group)
        held.ack()
        assert not bench.store.consuming.is_read("u", group)
    bench.put("a1")
    first.start()
    assert first.step() == 1 and first.close()
    consumer().start()


@pytest.mark.parametrize("fails", [False, True])
def test_a_put_in_its_place_ends_it(bench: Bench, fails: bool) -> None:
    """What a handler raises after that changes nothing: the line goes on."""
    seen: list[bytes] = []
    consumer = Consumer(bench.store, "h", ordered=True)

    @consumer.on("t")
    def handle(d: Delivery) -> None:
        seen.append(d.body)
        if d.body == b"a1":
            d.ack_and_put(b"next", topic="t", delay=SECOND)
            if fails:
                raise OSError("no luck")

    bench.put("a1", "a2")
    with consumer:
        bench.clock.advance(30 * SECOND)
        assert seen == [b"a1", b"a2", b"next"]
    assert bench.store.dead_letters("h") == []
