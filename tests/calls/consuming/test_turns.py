"""Turns: the rule against its model, then what a group is handed, whatever else happens to it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.turns_model import Bucket, check_windows
from tests.small_store import SMALL
from timerstore import InvalidArgumentError, ManualClock, TimerStore
from timerstore.calls.consuming import group as group_module
from timerstore.calls.consuming import turns as turns_module
from timerstore.calls.consuming.cursors import QueueCursor
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.grouptally import TALLY_FILE
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.turns import Buckets, Rate, Turns, key_in
from timerstore.testing.disk import QuietDisk

pytestmark = pytest.mark.timeout(120)
MS_NS = 1_000_000


def check_heaps(turns: Turns) -> None:
    """Check that each key that waits stands once in a heap, and what waits is in order."""
    keys = [key for heap in (turns._ready, turns._later) for _, key in heap]
    assert sorted(keys) == sorted(turns._waiting)
    assert turns._waiting_count == sum(map(len, turns._waiting.values()))
    for number, key in turns._ready:
        assert number == turns._waiting[key][0][0]
    for waiting in turns._waiting.values():
        numbers = [place[0] for place in waiting]
        assert numbers and numbers == sorted(numbers)


def rate_of(rate: str, burst: int | None = None, by: str | None = None) -> Rate:
    found = Rate.of(rate, burst, by)
    assert found is not None
    return found


# --- the rule


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=60),
)
def test_one_number_does_what_a_bucket_does(
    interval_ns: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    rate = Rate("", interval_ns, burst, "k")
    buckets, now_ns = Buckets(rate, {}, 1_000), 1_000
    models = {key: Bucket(interval_ns, burst, now_ns) for key in "abc"}
    came = defaultdict[str, list[int]](list)
    for pause_ns, wanted in steps:
        now_ns += pause_ns
        if pause_ns == 7:  # a restart
            buckets = Buckets(rate, dict(buckets.full_ns), now_ns)
        for key, model in models.items():
            model.advance(now_ns)
            for _ in range(wanted):
                assert (buckets.free_ns(key, now_ns) <= now_ns) == model.is_free
                if not model.is_free:
                    left_ns = buckets.free_ns(key, now_ns) - now_ns
                    assert left_ns == interval_ns - model.filled_ns
                    break
                buckets.take(key, now_ns)
                model.take()
                came[key].append(now_ns)
    for times_ns in came.values():
        check_windows(times_ns, interval_ns, burst)


def test_a_clock_that_was_set_back_costs_an_interval() -> None:
    rate = rate_of("5/h", 3)
    buckets = Buckets(rate, {"": 10**18}, 1_000)
    assert buckets.free_ns("", 2_000) == 1_000 + rate.interval_ns


def test_keys_that_have_their_whole_burst_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "KEYS_MAX", 5)
    buckets = Buckets(rate_of("1/s", 1, "k"), {}, 0)
    for i in range(5):
        buckets.take(str(i), i * 10**9 // 10)
    assert not buckets.has_room(5 * 10**8)
    assert buckets.has_room(2 * 10**9) and not buckets.full_ns


@pytest.mark.parametrize(
    ("rate", "interval_ns", "burst"),
    [
        ("100/s", 10 * MS_NS, 10),
        ("10/m", 6_000 * MS_NS, 1),
        ("5/h", 720_000 * MS_NS, 1),
        ("3/s", 333_333_334, 1),
        ("5000/s", 200_000, 500),
    ],
)
def test_a_rate_is_read(rate: str, interval_ns: int, burst: int) -> None:
    assert rate_of(rate) == Rate(rate, interval_ns, burst, "")


@pytest.mark.parametrize("rate", ["", "100", "0/s", "-1/s", "1.5/s", "1/d", "100 / s", 100, "1/S"])
def test_what_is_no_rate_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r'Pass a str such as "100/s"'):
        Rate.of(rate, None, None)


@pytest.mark.parametrize(
    "wrong",
    [(None, 5, None), (None, None, "k"), ("1/s", 0, None), ("1/s", None, ""), ("1/s", "a", 5)],
)
def test_what_goes_with_no_rate_is_refused(wrong: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Pass|Use"):
        Rate.of(*wrong)


def test_long_keys_are_kept_short() -> None:
    keys = {key_in({"k": value}, "k") for value in ("x" * 30_000, "y" * 30_000, "x" * 30_000)}
    assert len(keys) == 2 and all(len(key) <= 64 for key in keys)
    assert key_in({}, "k") == ""


# --- a group, against the same model


class Bench:
    """A store that is pulled at a rate, its clock moved by hand, beside buckets of the model."""

    def __init__(self, path: Path, rate: Rate) -> None:
        self.path, self.rate, self.clock = path, rate, ManualClock()
        self.put_count = 0
        self.waiting = defaultdict[str, list[bytes]](list)
        self.buckets: dict[str, Bucket] = {}
        self.came = defaultdict[str, list[int]](list)
        self.held: list[tuple[str, Run, int, bytes]] = []
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.clock.now_ms)
        self.store = TimerStore(self.path, config=SMALL, clock=self.clock, disk=QuietDisk())

    def key(self, name: str) -> str:
        return name if self.rate.by else ""

    def put(self, names: str) -> None:
        for name in names:
            body = b"%s%d" % (name.encode(), self.put_count)
            self.put_count += 1
            self.store.put(body, topic="t", properties={"k": name} if name != "-" else None)
            self.waiting[self.key(name)].append(body)

    def bucket(self, key: str) -> Bucket:
        now_ns = self.clock.now_ms * MS_NS
        bucket = self.buckets.setdefault(
            key, Bucket(self.rate.interval_ns, self.rate.burst, now_ns)
        )
        bucket.advance(now_ns)
        return bucket

    def pull(self, count_max: int) -> int:
        self.store.core.play_now()
        run = self.store.consuming.pull_in_turn(self.rate, "t", "g", count_max)
        if (turns := self.store.consuming.group("t", "g").turns) is not None:
            check_heaps(turns)
        assert len(run) <= count_max
        for place, delivery in enumerate(run):
            key = self.key(delivery.body[:1].decode())
            assert self.waiting[key].pop(0) == delivery.body, "in order"
            self.bucket(key).take()
            self.came[key].append(self.clock.now_ms * MS_NS)
            self.held.append((key, run, place, delivery.body))
        if not len(run):  # nothing is idle that has a free turn, and it is known when one is free
            waiting = [key for key, bodies in self.waiting.items() if bodies]
            assert not [key for key in waiting if self.bucket(key).is_free]
            group = self.store.consuming.group("t", "g")
            left_ns = [self.rate.interval_ns - self.bucket(key).filled_ns for key in waiting]
            assert group.turn_ms() == pytest.approx(min(left_ns, default=float("inf")) / MS_NS)
            assert not waiting or group.turns is None or group.turns.waits_of(1)
        return len(run)

    def settle(self) -> None:
        for _, run, place, _ in self.held:
            run.settle_some([place])
        self.held.clear()

    def give_back(self) -> None:
        """It comes first again, and takes another turn."""
        for key, run, place, body in reversed(self.held):
            run.give_back([place])
            self.waiting[key].insert(0, body)
        self.held.clear()

    def restart(self) -> None:
        self.give_back()
        self.store.close()
        self.open()

    def check(self) -> None:
        for times_ns in self.came.values():
            check_windows(times_ns, self.rate.interval_ns, self.rate.burst)


STEPS = st.one_of(
    st.tuples(st.just("put"), st.text("aaabc-", min_size=1, max_size=12)),
    st.tuples(st.just("pull"), st.sampled_from([1, 2, 8])),
    st.tuples(st.just("pass"), st.sampled_from([1, 7, 100, 101, 350, 2_000])),
    st.tuples(st.sampled_from(["settle", "give_back", "restart"]), st.none()),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([("10/s", 1), ("10/s", 3), ("3/s", 2), ("1000/s", 5)]),
    st.sampled_from([None, "k"]),
    st.lists(STEPS, max_size=40),
)
def test_a_group_is_handed_what_its_rate_allows(
    rate: tuple[str, int], by: str | None, steps: list[tuple[str, Any]]
) -> None:
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "s", rate_of(*rate, by))
        try:
            for what, given in steps:
                if what == "pass":
                    bench.clock.advance(timedelta(milliseconds=given))
                elif given is None:
                    getattr(bench, what)()
                else:
                    getattr(bench, what)(given)
            while any(bench.waiting.values()):
                if not bench.pull(8):
                    bench.clock.advance(timedelta(milliseconds=50))
            bench.settle()
            bench.check()
            assert not any(row.lag_count for row in bench.store.stats().groups)
        finally:
            bench.store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock(), disk=QuietDisk()) as made:
        yield made


def put_of(store: TimerStore, *names: str, **more: Any) -> None:
    for name in names:
        store.put(name.encode(), topic="t", properties={"k": name[0]}, **more)
    store.core.play_now()


def bodies(run: Run | None) -> list[bytes]:
    return [d.body for d in run or ()]


@pytest.mark.parametrize("by", [None, "k"])
def test_what_is_not_durable_may_have_a_turn_though_another_key_waits(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch, by: str | None
) -> None:
    synced = list[bool]()
    monkeypatch.setattr(Group, "make_visible", lambda self: bool(synced.append(True)))
    put_of(store, "a0", "a1")
    pull = partial(store.consuming.pull_in_turn, rate_of("1/h", 1, by), "t", "g", 8)
    assert bodies(pull()) == [b"a0"] and bodies(pull()) == []
    assert synced == ([True] if by else [])


def test_a_run_gives_back_its_own_turns(store: TimerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pull may come between: of one turn each, an expired message and two that are not."""
    group, rate, runs = store.consuming.group("t", "g"), rate_of("1/h", 1, "k"), list[Run | None]()
    put_of(store, "x0", expires=timedelta(seconds=1))
    put_of(store, "a0", "x1", "a1")
    store.core.clock.advance(timedelta(seconds=10))
    read = Group._read

    def read_late(self: Group, *found: Any) -> Run:
        monkeypatch.setattr(Group, "_read", read)
        runs.append(self.pull_long(1, None, rate))
        return read(self, *found)

    monkeypatch.setattr(Group, "_read", read_late)
    while run := group.pull_long(1, None, rate):
        runs.append(run)
    assert [bodies(each) for each in runs] == [[b"a0"], [b"x1"]]


@pytest.mark.parametrize("by", [None, "k"])
@pytest.mark.parametrize("count_max", [1, 8])
def test_a_queue_at_its_limits_holds_up_no_other(
    store: TimerStore, by: str | None, count_max: int
) -> None:
    rate, group = rate_of("1000/s", 100, by), store.consuming.group("t", "g")
    put_of(store, *(f"{'ab'[i % 2]}{i}" for i in range(40)))
    run = group.pull_long(1, None, rate)
    assert run is not None
    run.nack(0, timedelta(0))
    store.core.clock.advance(timedelta(milliseconds=100))

    def room(cursor: QueueCursor, visible_end: int, count_max: int) -> int:
        return count_max if full is None or cursor.row != full else 0

    full: int | None = run.cursor.row
    again = group.pull_long(count_max, room, rate)
    assert bodies(again) == [b"a0"] and group.pull_long(count_max, room, rate) is None
    assert group.turns is not None
    check_heaps(group.turns)
    full = None
    rest = list[bytes]()
    while (run := group.pull_long(count_max, room, rate)) is not None:
        rest += bodies(run)
    assert rest == [b"%s%d" % (b"ab"[i % 2 : i % 2 + 1], i) for i in range(1, 40)]


def test_what_expires_has_little_looked_at_again(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, group, looked = rate_of("1/h", 1, "k"), store.consuming.group("t", "g"), list[int]()
    look = QueueCursor.look

    def count_looked(self: QueueCursor, *given: Any) -> Any:
        found, stop = look(self, *given)
        looked.extend(found)
        return found, stop

    monkeypatch.setattr(QueueCursor, "look", count_looked)
    put_of(store, *["a"] * 100)
    for i in range(50):
        put_of(store, chr(0x100 + i), "a", expires=timedelta(seconds=1))
    put_of(store, "z")
    store.core.clock.advance(timedelta(seconds=10))
    assert bodies(group.pull_long(1, None, rate)) == [b"a"]
    assert bodies(group.pull_long(1, None, rate)) == [b"z"]
    assert len(looked) == len(set(looked)) == 201


def test_a_turn_that_is_given_back_is_had_by_what_waits_for_it(store: TimerStore) -> None:
    rate, group = rate_of("1/h", 1, "k"), store.consuming.group("t", "g")
    put_of(store, "a0", expires=timedelta(seconds=1))
    put_of(store, "a1", "b0", "a2")
    store.core.clock.advance(timedelta(seconds=10))
    came = [bodies(group.pull_long(8, None, rate)) for _ in range(3)]
    assert came == [[b"a1", b"b0"], [], []]


def test_what_expires_holds_up_no_close(store: TimerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some runs of which all had expired, who pulls is asked to come again at once."""
    monkeypatch.setattr(group_module, "_ROUNDS_MAX", 3)
    rate, group = rate_of("10/s", 1), store.consuming.group("t", "g")
    group.hand_clock = None  # a consumer on a manual clock has all come at once
    put_of(store, *["e"] * 8, expires=timedelta(seconds=1))
    put_of(store, "a0", "a1")
    store.core.clock.advance(timedelta(seconds=10))
    for _ in range(2):
        assert group.pull_long(1, None, rate) is None and group.turn_ms() == 0
    assert bodies(group.pull_long(1, None, rate)) == [b"a0"]
    assert group.pull_long(1, None, rate) is None and group.turn_ms() > 0


@pytest.mark.parametrize("by", [None, "k"])
def test_no_more_wait_for_turns_than_are_left(store: TimerStore, by: str | None) -> None:
    put_of(store, *["a"] * 6)
    assert len(store.consuming.pull_in_turn(rate_of("1/h", 1, by), "t", "g", 8)) == 1
    assert not len(store.consuming.pull_in_turn(rate_of("1/h", 1, by), "t", "g", 8))

    def waiting() -> int:
        return next(row.turn_wait_count for row in store.stats().groups if row.topic == "t")

    assert waiting() == 5
    store.pull("t", group="g", max_count=8, timeout=0).ack()
    assert waiting() == 0 and not store.health().conditions


def test_turns_that_are_free_again_are_not_kept_in_the_file(store: TimerStore) -> None:
    path = store.path / "config" / TALLY_FILE
    put_of(store, "a", "b")
    assert len(store.consuming.pull_in_turn(rate_of("1/h", 1, "k"), "t", "g", 8)) == 2
    store.flush()
    assert len(json.loads(path.read_text())["groups"]["t@g"]["turns"]) == 2
    store.core.clock.advance(timedelta(hours=2))
    store.flush()
    assert "turns" not in json.loads(path.read_text())["groups"]["t@g"]
