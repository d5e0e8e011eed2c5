"""Admission: who puts waits for room, until one of many things ends the wait."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.interrupting import alarms
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import (
    Config,
    InvalidArgumentError,
    ManualClock,
    ReadOnlyError,
    StoreClosedError,
    StoreFullError,
    TimerStore,
    Tuning,
)
from timerstore.calls.putting import admission
from timerstore.jit.kernel import INTERPRETED
from timerstore.services.running import runner as runner_module

pytestmark = pytest.mark.timeout(300)

FAR_MS = 4_000_000_000_000
LIMIT = 6
CONFIG = replace(SMALL, admission="wait", admission_count_max=LIMIT, delay_levels="1s 2h")
SECOND = timedelta(seconds=1)


class Alarm(BaseException):
    """What a signal's handler raises."""


class Call(threading.Thread):
    """A call in a thread of its own, with what came of it."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.act, self.result, self.error = act, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.act()
        except BaseException as e:
            self.error = e

    def end(self) -> Any:
        """Wait for its end; raise what it raised."""
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with TimerStore(tmp_path, config=CONFIG) as store:
        yield store


def fill(store: TimerStore) -> str:
    """Stop the services, then put as many as there is room for; return an id."""
    wait_until(lambda: store.putting.admission.backlog() == 0)
    store.core.runner.stop()
    ids = [store.put(b"x", topic="t", at_ms=FAR_MS) for _ in range(LIMIT)]
    assert store.putting.admission.backlog() == LIMIT
    return ids[0]


def test_the_default_is_that_the_queue_grows(tmp_path: Path) -> None:
    with TimerStore(tmp_path, config=SMALL) as store:
        store.core.runner.stop()
        assert len(store.put_many([b"x"] * 3_000, at_ms=FAR_MS)) == 3_000
        assert store.stats().services[0].queue_count == 3_000
        store.core.runner.resume()


def test_what_adds_a_timer_waits_for_room(store: TimerStore) -> None:
    store.put(b"m", topic="d")
    delivery = next(store.consume("d", timeout=30))
    old = store.put(b"x", topic="t", at_ms=FAR_MS)
    store.put(b"x", topic="t", at_ms=FAR_MS)  # from now on it may take the short way
    fill(store)
    calls = [
        Call(lambda: store.put(b"x", topic="t", at_ms=FAR_MS)),
        Call(lambda: store.put(b"x", topic="t", at_ms=FAR_MS, key="k")),
        Call(lambda: store.put(b"x", topic="t", delay=SECOND)),
        Call(lambda: store.put_many([b"x"] * 3 * LIMIT, topic="t", at_ms=FAR_MS)),
        Call(lambda: store.reschedule(old, at_ms=FAR_MS + 1)),
        Call(lambda: delivery.nack(SECOND)),
    ]
    time.sleep(0.15)
    assert all(call.is_alive() for call in calls)
    assert store.putting.admission.backlog() == LIMIT == store.stats().services[0].queue_count
    store.core.runner.resume()
    for call in calls:
        call.end()
    assert len(set(calls[3].result)) == 3 * LIMIT
    assert store.get(old) is None


def test_what_makes_room_or_takes_none_does_not_wait(store: TimerStore) -> None:
    id = fill(store)
    assert store.cancel(id)
    assert store.put(b"x", delay_level=2)
    assert len(store.put_many([b"x"] * 3 * LIMIT, delay_level=2)) == 3 * LIMIT
    assert store.get(id) is None
    store.flush()
    store.core.runner.resume()


def test_put_many_goes_in_as_there_is_room(store: TimerStore) -> None:
    wait_until(lambda: store.putting.admission.backlog() == 0)
    store.core.runner.stop()
    call = Call(lambda: store.put_many([b"%d" % i for i in range(100)], topic="t", at_ms=FAR_MS))
    wait_until(lambda: store.putting.admission.backlog() == LIMIT)
    time.sleep(0.05)
    assert store.count() == LIMIT
    store.core.runner.resume()
    bodies = [store.get(id).body for id in call.end()]
    assert bodies == [b"%d" % i for i in range(100)]


@pytest.mark.parametrize("many", [False, True])
def test_a_wait_ends_when_the_store_is_closed(tmp_path: Path, many: bool) -> None:
    store = TimerStore(tmp_path, config=CONFIG)
    wait_until(lambda: store.putting.admission.backlog() == 0)
    store.core.runner.stop()
    for _ in range(0 if many else LIMIT):
        store.put(b"x", at_ms=FAR_MS)
    bodies = [b"x"] * 50
    call = Call(lambda: store.put_many(bodies, at_ms=FAR_MS) if many else store.put(b"y"))
    wait_until(lambda: store.putting.admission.backlog() == LIMIT)
    time.sleep(0.05)
    store.close()
    with pytest.raises(StoreClosedError) as ended:
        call.end()
    assert len(ended.value.ids) == (LIMIT if many else 0)
    with TimerStore(tmp_path, config=CONFIG) as store:
        assert store.count() == LIMIT


def test_a_wait_ends_when_nothing_may_be_put_any_more(store: TimerStore) -> None:
    fill(store)
    call = Call(lambda: store.put(b"y"))
    time.sleep(0.05)
    store.core.refuse("This is a test.")
    with pytest.raises(ReadOnlyError):
        call.end()
    store.core.refuse(None)
    store.core.runner.resume()


def test_a_wait_ends_with_what_ended_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TimerStore(tmp_path, config=CONFIG)
    fill(store)
    call = Call(lambda: store.put(b"y"))
    time.sleep(0.05)

    def end(*_: Any) -> int:
        raise MemoryError("this is a test")

    monkeypatch.setattr(runner_module, "run", end)
    store.core.runner.resume()
    with pytest.raises(MemoryError, match="this is a test"):
        call.end()
    with pytest.raises(MemoryError):
        store.close()


def test_a_wait_ends_where_services_find_no_space(store: TimerStore) -> None:
    fill(store)
    call = Call(lambda: store.put(b"y"))
    time.sleep(0.05)
    store.core.runner.waiting_for_space = error = StoreFullError("The disk is full. Make room.")
    with pytest.raises(StoreFullError, match="The disk is full") as raised:
        call.end()
    assert raised.value is not error  # other threads raise it too
    store.core.runner.waiting_for_space = None
    store.core.runner.resume()


@pytest.mark.parametrize("many", [False, True])
def test_a_wait_ends_after_its_time(tmp_path: Path, many: bool) -> None:
    with TimerStore(tmp_path, config=replace(CONFIG, admission_timeout_ms=20)) as store:
        fill(store)
        with pytest.raises(StoreFullError, match="admission_timeout_ms") as refused:
            store.put_many([b"y"] * 2, at_ms=FAR_MS) if many else store.put(b"y", at_ms=FAR_MS)
        assert list(refused.value.ids) == []
        assert store.count() == LIMIT
        store.core.runner.resume()
        assert store.put(b"y", at_ms=FAR_MS)


@pytest.mark.parametrize("raises", [True, False])
def test_a_signal_gets_through(store: TimerStore, raises: bool) -> None:
    main, seen = threading.get_ident(), []

    def handle(*_: Any) -> None:
        seen.append(True)
        if raises:
            raise Alarm
        store.core.runner.resume()

    def send() -> None:
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        fill(store)
        timer = threading.Timer(0.1, send)
        timer.start()
        try:
            store.put(b"y", at_ms=FAR_MS)
        except Alarm:
            assert raises
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen and store.count() == LIMIT + (not raises)
    store.core.runner.resume()
    store.put(b"z", at_ms=FAR_MS)


def test_a_manual_clock_runs_the_services_within_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_800_000_000_000)
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        for _ in range(3 * LIMIT):
            store.put(b"x", topic="t", delay=SECOND)
        ids = store.put_many([b"x"] * 20 * LIMIT, topic="t", delay_ms=1_000)
        assert store.reschedule(ids[0], at_ms=clock.now_ms + 500)
        assert store.count() == 23 * LIMIT
        assert store.putting.admission.backlog() <= LIMIT + 2
        clock.advance(SECOND)
        assert len(list(store.consume("t", timeout=0))) == 23 * LIMIT
        with monkeypatch.context() as patch:
            patch.setattr(store.core.runner, "play", lambda start_ms, stop_ms: None)
            with pytest.raises(StoreFullError, match="manual clock") as refused:
                store.put_many([b"x"] * 20, delay_ms=1_000)
        assert len(refused.value.ids) <= LIMIT


BAD: list[dict[str, Any]] = [
    {"admission": "never"},
    {"admission": None},
    {"admission_count_max": 0},
    {"admission_count_max": "many"},
    {"admission_timeout_ms": 0},
]


@pytest.mark.parametrize("values", BAD, ids=str)
def test_settings_that_cannot_be(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(values))):
        Config.from_mapping(values, "the test")


def test_settings_from_the_environment() -> None:
    names = {"ADMISSION": "wait", "ADMISSION_COUNT_MAX": "9", "ADMISSION_TIMEOUT_MS": "5"}
    config = Config.from_env({f"TIMERSTORE_{name}": text for name, text in names.items()})
    expected = Config(
        admission="wait", tuning=Tuning(admission_count_max=9, admission_timeout_ms=5)
    )
    assert config == expected


@pytest.mark.parametrize("limit", [1, 2, 7, 64])
def test_putters_are_woken_and_nothing_is_lost(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads that never look up by themselves: a wake-up that is missed hangs one."""
    monkeypatch.setattr(admission, "_POLL_MS", 3_600_000)
    rounds, ids, moved, most = (5 if INTERPRETED else 60), list[str](), list[str](), 0

    def put(number: int) -> None:
        for i in range(rounds):
            ids.append(store.put(b"x", topic="t", at_ms=FAR_MS + i))
            ids.append(store.put(b"x", topic="t", at_ms=FAR_MS + i, key="k"))
            many = store.put_many([b"x"] * 9, topic="t", delay_ms=0 if i & 1 else 10**11)
            ids.extend(many)
            if not i & 1:
                moved.append(store.reschedule(many[0], at_ms=FAR_MS))
                assert store.cancel(many[1])

    with TimerStore(tmp_path, config=replace(CONFIG, admission_count_max=limit)) as store:
        calls = [Call(lambda number=number: put(number)) for number in range(8)]
        while any(call.is_alive() for call in calls):
            most = max(most, store.putting.admission.backlog())
            time.sleep(0.001)
        for call in calls:
            call.end()
        # Beyond the limit: a piece for each thread, the delete of a reschedule or of a cancel.
        assert most <= limit + 8 * (min(limit, 9) + 2)
        assert len(set(ids)) == len(ids) == 8 * rounds * 11
        due = 8 * (rounds // 2) * 9
        cancelled = 8 * (rounds - rounds // 2)
        wait_until(lambda: store.count("t") == len(ids) - due - cancelled)
        got = [d.id for d in store.consume("t", timeout=0.5)]
        assert len(got) == len(set(got)) == due
        pending = {timer.id for timer in store.pending()}
        assert pending >= set(moved) and len(pending) == store.count()


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="machine code keeps signals out")
def test_closes_and_signals_beside_waiting_putters(tmp_path: Path) -> None:
    """Each put is kept or refused, over closes at any moment and signals' exceptions anywhere."""
    ids: list[str] = []
    unsure = 0

    def put(store: TimerStore) -> None:
        try:
            while True:
                ids.append(store.put(b"x" * 100, topic="t", at_ms=FAR_MS))
                try:
                    ids.extend(store.put_many([b"x"] * 20, topic="t", at_ms=FAR_MS))
                except StoreClosedError as e:
                    ids.extend(e.ids)
        except StoreClosedError:
            pass

    main, armed = threading.get_ident(), [False]
    with alarms(Alarm, lambda _: armed[0]):
        for _ in range(8):
            store = TimerStore(tmp_path, config=replace(CONFIG, admission_count_max=3))
            calls = [Call(lambda store=store: put(store)) for _ in range(7)]
            for _ in range(5):
                timer = threading.Timer(0.01, lambda: signal.pthread_kill(main, signal.SIGALRM))
                try:
                    armed[0] = True
                    timer.start()
                    while True:
                        unsure += 1
                        ids.append(store.put(b"y", topic="t", at_ms=FAR_MS))
                        unsure -= 1
                except Alarm:
                    armed[0] = False
                timer.join()
            store.close()
            for call in calls:
                call.end()
    with TimerStore(tmp_path, config=CONFIG) as store:
        pending = {timer.id for timer in store.pending()}
        assert pending >= set(ids) and len(ids) <= len(pending) <= len(ids) + unsure
