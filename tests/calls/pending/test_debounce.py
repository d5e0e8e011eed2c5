"""Debounce: one timer for each key, that moves with each put, not beyond a time from the first."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.rigs import debounces, orders
from tests.small_store import SMALL
from tests.tiers import SEED, how_many
from timerstore import AnyStore, Delivery, ManualClock, Timer, TimerStore
from timerstore.calls.pending import pending
from timerstore.testing import Program
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.limits import content_bytes_max
from timerstore.timelog.writing.frame import encode_property

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
STEPS = how_many("CRASH_STEPS", 6, 100)


@pytest.fixture(params=[True, False], ids=["index", "scan"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimerStore]:
    with opened(tmp_path / "s", ManualClock(START_MS, force=True), request.param) as store:
        yield store


def opened(path: Path, clock: ManualClock, has_index: bool) -> TimerStore:
    config = replace(SMALL, key_index=has_index, retention_ms=3_600_000)
    return TimerStore(path, config=config, clock=clock, disk=QuietDisk())


def first_of(timer: Timer) -> int:
    return timer.put_ms if timer.first_put_ms is None else timer.first_put_ms


class Naive:
    """The obvious twin: for each key, when the first put was, when it is due, what it says."""

    def __init__(self) -> None:
        self.pending: dict[str, list[Any]] = {}
        self.fired: list[tuple[str, int, bytes]] = []

    def put(self, key: str, body: bytes, now: int, wait: int, at_most: int | None) -> None:
        first = self.pending[key][0] if key in self.pending else now
        due = now + wait if at_most is None else min(now + wait, first + at_most)
        self.pending[key] = [first, due, body]

    def move(self, key: str, due: int) -> None:
        if key in self.pending:
            self.pending[key][1] = due

    def pass_to(self, now: int) -> None:
        for key in [key for key, (_, due, _) in self.pending.items() if due <= now]:
            _, due, body = self.pending.pop(key)
            self.fired.append((key, due, body))


KEY = st.sampled_from(["a", "b"])
WAIT = st.integers(0, 30)
ACT = st.one_of(
    st.tuples(st.just("put"), KEY, WAIT, st.one_of(st.none(), st.integers(0, 60))),
    st.tuples(st.just("put"), KEY, WAIT, st.one_of(st.none(), st.integers(0, 60))),
    st.tuples(st.just("advance"), st.integers(0, 20)),
    st.tuples(st.just("move"), KEY, st.integers(1, 30)),
    st.tuples(st.just("cancel"), KEY),
    st.tuples(st.just("reopen")),
)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(240)
@given(st.lists(ACT, min_size=5, max_size=25), st.booleans())
def test_as_its_twin(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Any], has_index: bool
) -> None:
    path, clock, naive = tmp_path_factory.mktemp("d") / "s", ManualClock(START_MS), Naive()
    store, now = opened(path, clock, has_index), 0
    try:
        for number, (act, *told) in enumerate(acts):
            body = b"%d" % number
            if act == "put":
                key, wait, more = told
                at_most = None if more is None else wait + more
                store.put(body, topic="t", key=key, debounce=wait, at_most=at_most)
                naive.put(key, body, now, wait, at_most)
            elif act == "move":
                key, wait = told
                if timer := store.get_key("t", key):
                    store.reschedule(timer.id, delay=wait)
                naive.move(key, now + wait)
            elif act == "cancel":
                assert store.cancel_key("t", told[0]) == (told[0] in naive.pending)
                naive.pending.pop(told[0], None)
            elif act == "advance":
                clock.advance(told[0] * SECOND)
                now += told[0]
            else:
                store.close()
                store = opened(path, clock, has_index)
            clock.advance(timedelta())
            naive.pass_to(now)
            found = {
                timer.key: [
                    (first_of(timer) - START_MS) // 1_000,
                    (timer.due_ms - START_MS) // 1_000,
                    timer.body,
                ]
                for timer in store.pending()
            }
            assert found == naive.pending
        come = store.consume("t", timeout=0)
        fired = [(d.key, (d.due_ms - START_MS) // 1_000, d.body) for d in come]
        assert sorted(fired) == sorted(naive.fired)
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.on_disk
@pytest.mark.timeout(120 + 10 * STEPS)
@pytest.mark.parametrize("durability", ["group", "process"])
def test_one_timer_and_its_first_put_over_crashes(tmp_path: Path, durability: str) -> None:
    """After a kill or a power cut at any step there is one timer, which knows the first put."""
    config = orders.config_of(durability)
    with Program(debounces.work) as program:
        whole = program.run(tmp_path / "whole", durability)
        crashed = 0
        for number in range(STEPS):
            step = (number * whole.step_count + SEED) // STEPS % whole.step_count
            for name, crash in (("kill", program.kill), ("power", program.cut_power)):
                once, again = tmp_path / f"{name}{step}", tmp_path / name
                for path in (once, again):
                    life = crash(path, durability, step=step)
                    crashed += life.crashed
                    program.check(path, config=config)
                    with timerstore.open(path, config=config) as store:
                        timers = list(store.pending(topic="default", key="k"))
                    assert len(timers) <= 1
                    if life.said and (name == "kill" or durability == "group"):
                        assert [str(first_of(timer)) for timer in timers] == [life.said[-1]]
                        assert len(set(life.said)) == 1
        assert crashed > 2 * STEPS


def test_who_puts_without_end_keeps_it_from_nothing(store: TimerStore) -> None:
    """At its latest time it fires, while puts come all the time; then the next round begins."""
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    for _ in range(100):
        store.put(b"x", topic="t", key="k", debounce=5, at_most=10)
        clock.advance(SECOND)
    due = (store.pull("t", timeout=0).due_ms - START_MS).tolist()
    assert due == [10_000 + 10_000 * i for i in range(len(due))] and len(due) >= 9


def test_what_is_overdue_is_left_to_fire(store: TimerStore) -> None:
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    store.put(b"1", topic="t", key="k", debounce=5, at_most=5)
    store.pause("firing")
    clock.advance(6 * SECOND)
    second = store.put(b"2", topic="t", key="k", debounce=5, at_most=5)
    third = store.put(b"3", topic="t", key="k", debounce=5, at_most=5)
    assert store.find(second).moved_to == third and store.count("t") == 2
    store.resume("firing")
    clock.advance(6 * SECOND)
    assert [d.body for d in store.consume("t", timeout=0)] == [b"1", b"3"]


def test_a_plain_put_was_the_first(store: TimerStore) -> None:
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    store.put(b"1", topic="t", key="k", delay=90)
    clock.advance(20 * SECOND)
    id = store.put(
        b"2", topic="t", key="k", debounce=30, at_most=40, tag="g", properties={"a": "b"}
    )
    timer = store.get(id)
    assert timer is not None and timer.due_ms == START_MS + 40_000
    assert (timer.first_put_ms, timer.tag, timer.properties) == (START_MS, "g", {"a": "b"})
    moved = store.get(store.reschedule(id, delay=60, properties={"c": "d"}))
    assert moved is not None and moved.first_put_ms == START_MS and moved.properties == {"c": "d"}
    plain = store.get(store.put(b"3", topic="t", key="k", delay=60, replace=True))
    assert plain is not None and plain.first_put_ms is None


def test_one_that_was_moved_just_now_is_replaced(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the key and the look at the timer another thread moved it by its id."""
    first = store.put(b"1", topic="t", key="k", debounce=60)
    is_pending, moved = pending.ById.is_pending, list[str]()

    def move_after(self: Any, id: str) -> Any:
        said = is_pending(self, id)
        if id == first and not moved:
            moved.append(store.reschedule(id, delay=90))
        return said

    monkeypatch.setattr(pending.ById, "is_pending", move_after)
    store.put(b"2", topic="t", key="k", debounce=60)
    assert moved and [timer.body for timer in store.pending()] == [b"2"]


@pytest.mark.timeout(60)
def test_one_that_cannot_be_read_holds_no_put_up(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(b"1", topic="t", key="k", debounce=60)
    monkeypatch.setattr(pending.ById, "get", lambda *_: None)
    monkeypatch.setattr(pending.Keyed, "_find", lambda *_: None)
    store.put(b"2", topic="t", key="k", debounce=60)
    assert store.count("t") == 2


@pytest.mark.parametrize("told", [b"x", b"-5", b"", b"0", b"9" * 15, b"9" * 40, b"18000000000000"])
def test_what_the_property_says_is_not_trusted(
    store: TimerStore, told: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first put that is after now, before 1973 or no number counts as none."""
    said = encode_property(fmt.PROPERTY_FIRST_PUT, told)
    with monkeypatch.context() as patched:
        patched.setattr(pending, "encode_first_put", lambda _: said)
        store.put(b"2", topic="t", key="k", debounce=10)
    timer = store.get(store.put(b"3", topic="t", key="k", debounce=10, at_most=20))
    assert timer is not None and timer.due_ms == timer.put_ms + 10_000
    assert first_of(timer) in (START_MS, timer.put_ms)


def test_a_clock_that_was_set_back(store: TimerStore) -> None:
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    clock.advance(3_600 * SECOND)
    id = store.put(b"1", topic="t", key="k", debounce=100, at_most=100)
    clock._now_ms -= 3_600_000
    for _ in range(3):
        id = store.put(b"2", topic="t", key="k", debounce=100, at_most=100)
    timer = store.get(id)
    assert timer is not None and timer.due_ms <= START_MS + 100_000


def test_the_largest_is_put_again(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        body = bytes([7]) * content_bytes_max(store.core.engine.commitlog.segment_bytes)
        body = body[: len(body) - len("KEYS.k.")]
        ids = [store.put(body, key="k", debounce=60, at_most=90) for _ in range(3)]
        assert store.count() == 1 and store.get(ids[-1]).body == body  # type: ignore[union-attr]
        with pytest.raises(timerstore.InvalidArgumentError, match="Pass"):
            store.put(body + b"x", key="k", debounce=60)


def test_threads_put_one_timer(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        errors = list[BaseException]()

        def work(client: AnyStore) -> None:
            try:
                for _ in range(30):
                    key = random.choice("ab")
                    client.put(b"x", topic="t", key=key, debounce=60, at_most=90)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(store,), daemon=True) for _ in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert not errors and store.count("t") == 2
        for timer in store.pending():
            assert timer.due_ms <= first_of(timer) + 90_000


def test_a_handler_sees_a_plain_message(store: TimerStore) -> None:
    """What says when the first put was is nobody's property, and is gone after a nack."""
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    for _ in range(2):
        store.put(b"x", topic="t", key="k", debounce=1)
    clock.advance(SECOND)

    def take() -> Delivery:
        (d,) = store.consume("t", timeout=0)
        return d

    d = take()
    assert d.properties == {} and "TIMER_FIRST_PUT_MS" in d._handed.message(d._i).properties
    d.nack()
    clock.advance(SECOND)
    d = take()
    assert d.attempt == 1 and "TIMER_FIRST_PUT_MS" not in d._handed.message(d._i).properties


def test_what_expires_behind_its_latest_time_is_put(store: TimerStore) -> None:
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    store.put(b"1", topic="t", key="k", debounce=10, at_most=12)
    clock.advance(5 * SECOND)
    with pytest.raises(timerstore.InvalidArgumentError, match="expires"):
        store.put(b"2", topic="t", key="k", debounce=10, at_most=12, expires=6)
    timer = store.get(store.put(b"2", topic="t", key="k", debounce=10, at_most=12, expires=8))
    assert timer is not None and timer.due_ms == START_MS + 12_000
