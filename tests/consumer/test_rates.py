"""Consumers with a rate: threads, a manual clock, several processes' clients, an event loop.

What is handed out when is compared with a model in `tests/calls/consuming/test_turns.py`. Here no
handler may begin sooner than its turn; with a manual clock, it begins just then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.models.turns_model import check_windows
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import Consumer, Delivery, InvalidArgumentError, ManualClock, Retry, TimerStore
from timerstore.calls.consuming import group as group_module
from timerstore.calls.consuming import turns as turns_module
from timerstore.calls.consuming.cursors import QueueCursor
from timerstore.testing.disk import QuietDisk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
MS = timedelta(milliseconds=1)


class Bench:
    """A store on a manual clock, whose consumer notes what came when."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.options = path, options
        self.clock = ManualClock()
        self.start_ms = self.clock.now_ms
        self.seen: list[tuple[int, str]] = []
        self.failing = 0
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.clock.now_ms)
        self.store = TimerStore(self.path, config=SMALL, clock=self.clock, disk=QuietDisk())
        self.consumer = Consumer(self.store, "g", **self.options)
        self.consumer.subscribe("t", self.handle)
        self.consumer.start()

    def handle(self, given: Any) -> Retry | None:
        for d in given if isinstance(given, list) else [given]:
            self.seen.append((self.clock.now_ms - self.start_ms, d.body.decode()))
        if self.failing:
            self.failing -= 1
            return Retry(delay=timedelta(0))
        return None

    def put(self, *bodies: str, **more: Any) -> None:
        """`a1`: of the tenant `a`."""
        for body in bodies:
            properties = {"tenant": body[0]} if body[0] != "-" else None
            self.store.put(body.encode(), topic="t", properties=properties, **more)

    def close(self) -> None:
        self.consumer.close()
        self.store.close()

    def row(self) -> timerstore.GroupStats:
        return next(row for row in self.store.stats().groups if row.topic == "t")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(tmp_path / "s", **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_burst_comes_at_its_rate(bench: Callable[..., Bench]) -> None:
    b = bench(rate="10/s", burst=3)
    b.put(*(f"-{i}" for i in range(6)), delay=timedelta(seconds=1))
    b.clock.advance(timedelta(seconds=5))
    times = [1_000, 1_000, 1_000, 1_100, 1_200, 1_300]
    assert b.seen == [(ms, f"-{i}") for i, ms in enumerate(times)]


def test_each_key_has_its_own_rate_and_holds_nobody_up(bench: Callable[..., Bench]) -> None:
    b = bench(rate="1/s", rate_by="tenant")
    b.put(*(f"a{i}" for i in range(50)), "b0", "c0", "b1", "-0", "-1")
    b.clock.advance(timedelta(seconds=1.5))
    first, second = ["a0", "b0", "c0", "-0"], ["a1", "b1", "-1"]
    assert b.seen == [(0, body) for body in first] + [(1_000, body) for body in second]
    b.put("d0")
    b.clock.advance(MS)
    assert b.seen[-1] == (1_500, "d0")


def test_beyond_what_is_looked_at_others_wait(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "AHEAD_COUNT_MAX", 250)
    b = bench(rate="1/s", rate_by="tenant")
    b.put(*["a"] * 300, "b")
    b.clock.advance(timedelta(seconds=10))
    assert {body for _, body in b.seen} == {"a"} and b.row().turn_wait_count >= 256
    b.clock.advance(timedelta(seconds=100))
    assert "b" in [body for _, body in b.seen]


def test_retries_take_turns_too(bench: Callable[..., Bench]) -> None:
    b = bench(rate="10/s", rate_by="tenant", burst=1)
    b.failing = 3
    b.put("a0", "a1")
    b.clock.advance(timedelta(seconds=3))
    assert sorted(body for _, body in b.seen) == ["a0", "a0", "a0", "a1", "a1"] or len(b.seen) == 5
    check_windows([ms for ms, _ in b.seen], 100, 1)


def test_retries_are_not_starved_by_a_backlog(bench: Callable[..., Bench]) -> None:
    b = bench(rate="100/s", burst=1)
    b.failing = 1
    b.put(*(f"-{i}" for i in range(200)))
    b.clock.advance(timedelta(seconds=1))
    assert [body for _, body in b.seen].count("-0") == 2


def test_a_list_takes_a_turn_for_each_message(bench: Callable[..., Bench]) -> None:
    b = bench(rate="10/s", burst=4, batch_count=8)
    b.put(*(f"-{i}" for i in range(6)))
    b.clock.advance(timedelta(seconds=1))
    assert [ms for ms, _ in b.seen] == [0] * 4 + [100, 200]


def test_turns_that_were_taken_are_known_after_a_restart(bench: Callable[..., Bench]) -> None:
    b = bench(rate="5/h", burst=2, rate_by="tenant")
    b.put("a0", "a1", "a2", "b0")
    b.clock.advance(MS)
    b.close()
    b.open()
    b.put("b1", "b2")
    b.clock.advance(timedelta(minutes=11))
    assert [body for _, body in b.seen] == ["a0", "a1", "b0", "b1"]
    b.clock.advance(timedelta(minutes=2))
    assert [body for _, body in b.seen[4:]] == ["a2", "b2"]


def test_a_kill_forgets_what_came_since_the_checkpoint(bench: Callable[..., Bench]) -> None:
    b = bench(rate="5/h", burst=2)
    b.put("-0")
    b.clock.advance(MS)
    b.store.flush()
    b.put("-1")
    b.clock.advance(MS)
    b.consumer._workings.state = "closed"
    b.store.abandon()
    b.open()
    b.put("-2", "-3")
    b.clock.advance(MS)
    bodies = [body for _, body in b.seen]
    assert (
        bodies[:2] == ["-0", "-1"] and len(bodies) == 3
    )  # one turn was kept as taken, one forgotten


def test_a_clock_that_was_set_back_costs_a_turn_at_most(bench: Callable[..., Bench]) -> None:
    b = bench(rate="10/m", burst=5)
    b.put(*"abcde")
    b.clock.advance(MS)
    b.close()
    b.clock = ManualClock(b.clock.now_ms - 30 * 24 * 3_600_000)
    b.open()
    b.put("f")
    b.clock.advance(timedelta(seconds=6))
    assert [body for _, body in b.seen] == list("abcdef")


def test_another_rate_holds_from_the_next_consumer_on(bench: Callable[..., Bench]) -> None:
    b = bench(rate="1/h")
    b.put("-0", "-1", "-2")
    b.clock.advance(MS)
    b.consumer.close()
    b.consumer = Consumer(b.store, "g", rate="10/s", burst=1)
    b.consumer.subscribe("t", b.handle)
    b.consumer.start()
    b.clock.advance(timedelta(seconds=1))
    assert [(ms, body) for ms, body in b.seen] == [(0, "-0"), (101, "-1"), (201, "-2")]


def test_stats_and_health_say_that_it_waits(bench: Callable[..., Bench]) -> None:
    b = bench(rate="1/h")
    assert b.row().rate is None and b.row().turn_wait_count == 0
    b.put("-0", "-1", "-2")
    b.clock.advance(MS)
    assert (b.row().rate, b.row().turn_wait_count) == ("1/h", 2)
    health = b.store.health()
    assert health.ok and health.state == "running"
    assert "'g'" in str(health) and "1/h at most: 2 wait for their turn" in str(health)
    b.clock.advance(timedelta(hours=3))
    assert b.row().turn_wait_count == 0 and not b.store.health().conditions


def test_what_anybody_else_pulls_is_not_handed_out_again(bench: Callable[..., Bench]) -> None:
    b = bench(rate="1/s", rate_by="tenant")
    b.put("a0", "a1", "a2", "a3")
    b.clock.advance(MS)
    batch = b.store.pull("t", group="g", max_count=2, timeout=0)
    assert [d.body for d in batch] == [b"a1", b"a2"]
    b.clock.advance(timedelta(seconds=1))
    assert [body for _, body in b.seen] == ["a0", "a3"]
    del batch


def test_damaged_entries_take_no_turns(bench: Callable[..., Bench]) -> None:
    b = bench(rate="1/h", burst=1)
    b.consumer.close()
    b.put("-0", "-1", "-2")
    b.store.core.play_now()
    commitlog = b.store.core.engine.commitlog
    (row,) = b.store.core.engine.queues.rows(b"t")
    for entry in b.store.core.engine.queues.read(row, 0, 2):
        commitlog.view(int(entry["offset"]))[100:110] = 255
    b.consumer = Consumer(b.store, "g", **b.options)
    b.consumer.subscribe("t", b.handle)
    b.consumer.start()
    b.clock.advance(MS)
    assert [body for _, body in b.seen] == ["-2"]


def test_however_many_expire_the_next_comes_at_its_time(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "_ROUNDS_MAX", 2)
    b = bench(rate="1/s", burst=1)
    b.put("-0", *["-e"] * 20, expires=timedelta(milliseconds=500))
    b.put("-1")
    b.clock.advance(timedelta(seconds=1))
    assert b.seen == [(0, "-0"), (1_000, "-1")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": "fast"}, "rate is 'fast'. Pass a str such as"),
        ({"burst": 3}, "go only with rate"),
        ({"rate_by": "tenant"}, "go only with rate"),
        ({"rate": "1/s", "burst": 0}, "burst is 0"),
        ({"rate": "1/s", "rate_by": 7}, "rate_by is 7"),
        ({"rate": "1/s", "ordered": True}, "rate does not go with ordered"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with (
        timerstore.open(tmp_path / "s", config=SMALL) as store,
        pytest.raises(InvalidArgumentError, match=said),
    ):
        Consumer(store, "g", **options)


def test_tags_are_refused(bench: Callable[..., Bench]) -> None:
    consumer = Consumer(bench(rate="1/s").store, "h", rate="1/s")
    with pytest.raises(InvalidArgumentError, match="a topic of its own"):
        consumer.subscribe("t", print, tags="a")


# --- real time


class Noted:
    """When handlers began, by tenant, in ns."""

    def __init__(self, interval_ms: int, burst: int) -> None:
        self.interval_ns, self.burst = interval_ms * 1_000_000, burst
        self.begun_ns = time.monotonic_ns()
        self.bodies = defaultdict[str, list[int]](list)
        self.lock = threading.Lock()

    def __call__(self, d: Delivery) -> None:
        with self.lock:
            self.bodies[d.properties.get("tenant", "")].append(int(d.body))

    @property
    def count(self) -> int:
        return sum(map(len, list(self.bodies.values())))

    def check(self, *, in_order: bool = False) -> None:
        """Nothing came twice, and all of it not sooner than its rate allows."""
        elapsed_ns = time.monotonic_ns() - self.begun_ns
        for bodies in self.bodies.values():
            assert len(set(bodies)) == len(bodies) <= self.burst + elapsed_ns // self.interval_ns
            assert not in_order or bodies == sorted(bodies)


def put_some(store: TimerStore, count: int) -> None:
    for i in range(count):
        store.put(b"%d" % i, topic="t", properties={"tenant": "abc"[i % 3]})


def test_what_waits_holds_no_thread(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        noted, others = Noted(3_600_000, 1), list[bytes]()
        consumer = Consumer(store, "g", threads=1, rate="1/h")
        consumer.subscribe("t", noted)
        put_some(store, 20)
        free = Consumer(store, "g", threads=1)
        free.subscribe("u", lambda d: others.append(d.body))
        with consumer, free:
            wait_until(lambda: noted.count == 1)
            store.put(b"x", topic="u")
            wait_until(lambda: others == [b"x"])
            assert next(r for r in store.stats().groups if r.topic == "t").in_flight_count == 0
        noted.check()


def test_threads(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        noted = Noted(20, 2)
        consumer = Consumer(store, "g", threads=8, rate="50/s", burst=2, rate_by="tenant")
        consumer.subscribe("t", noted)
        put_some(store, 60)
        with consumer:
            wait_until(lambda: noted.count == 60)
        noted.check()


def test_clients_share_the_rate_of_their_group(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store, timerstore.serve(store):
        noted = Noted(20, 2)
        put_some(store, 60)
        clients: list[timerstore.AnyStore] = [
            timerstore.connect(store.path, timeout=5),
            timerstore.open(store.path, share=True, config=SMALL),
        ]
        consumers = []
        for client, topics in zip(clients, (("t",), ("t", "u")), strict=True):
            consumer = Consumer(client, "g", threads=4, rate="50/s", burst=2, rate_by="tenant")
            for topic in topics:
                consumer.subscribe(topic, noted)
            consumer.start()
            consumers.append(consumer)
        wait_until(lambda: "wait for their turn" in str(clients[0].health()) or noted.count == 60)
        wait_until(lambda: noted.count == 60)
        for consumer in consumers:
            consumer.close()
        for client in clients:
            client.close()
        noted.check()
        assert store.stats().groups[0].handled_count == 60


def test_a_client_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store, timerstore.serve(store):
        noted = Noted(1, 1_000)
        put_some(store, 30)
        blocked, go_on = threading.Event(), threading.Event()

        def block(d: Delivery) -> None:
            blocked.set()
            go_on.wait(50)

        with timerstore.connect(store.path, timeout=5) as client:
            lost = Consumer(client, "g", threads=3, rate="1000/s", burst=5, rate_by="tenant")
            lost.subscribe("t", block)
            lost.start()
            assert blocked.wait(50)
        consumer = Consumer(store, "g", rate="1000/s", burst=5, rate_by="tenant")
        consumer.subscribe("t", noted)
        with consumer:
            wait_until(lambda: noted.count == 30)
        go_on.set()
        noted.check()


def test_an_event_loop(tmp_path: Path) -> None:
    noted = Noted(20, 2)

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            for i in range(60):
                await store.put(b"%d" % i, topic="t", properties={"tenant": "abc"[i % 3]})
            consumer = timerstore.aio.Consumer(store, "g", rate="50/s", burst=2, rate_by="tenant")

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                noted(d)

            async with consumer:
                while noted.count < 60:
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    noted.check(in_order=True)


def test_the_span_that_is_looked_at_is_bounded(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerstore.calls.consuming.cursors.LOOKED_SPAN_MAX", 300)
    b = bench(rate="1/h", rate_by="tenant")
    b.put("a0", "a1", *(f"{i:03}" for i in range(400)))
    b.clock.advance(MS)
    (cursor,) = (c for c in b.store.consuming.group("t", "g").cursors.values())
    assert type(cursor) is QueueCursor and cursor.next - cursor.committed <= 300
    b.clock.advance(timedelta(hours=1))
    assert "a1" in [body for _, body in b.seen]
