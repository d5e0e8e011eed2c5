"""Listings beside threads that change the store: each is of one instant."""

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.tiers import how_many
from timerstore.calls.pending.is_pending import find_pending
from timerstore.services.looking.instant import capture_instant

pytestmark = pytest.mark.slow

SECONDS = how_many("LISTING_SECONDS", 2, 20)
CONFIG = timerstore.Config(
    durability="process", flush_interval_ms=50, tuning=timerstore.Tuning(precision_ms=100)
)


class Ledger:
    """What the threads know: who was put, and who was cancelled, and when they knew it."""

    def __init__(self) -> None:
        self.due_ms: dict[str, int] = {}  # since their put returned
        self.touched: set[str] = set()  # a cancel or reschedule of them has begun
        self.gone: set[str] = set()  # it has returned True


def put_and_cancel(store: timerstore.TimerStore, ledger: Ledger, stop: threading.Event) -> None:
    chance, mine = random.Random(threading.get_ident()), list[str]()
    while not stop.is_set():
        due_ms = time.time_ns() // 1_000_000 + chance.randrange(900)
        if chance.random() < 0.2:
            level = store.put(b"l", topic="levels", delay_level=chance.choice([1, 2]))
            mine.append(level)
        else:
            mine.append(store.put(b"x" * 50, topic="t", at_ms=due_ms))
            ledger.due_ms[mine[-1]] = due_ms
        if len(mine) > 50:
            id = mine.pop(chance.randrange(len(mine)))
            ledger.touched.add(id)
            if chance.random() < 0.7:
                if store.cancel(id):
                    ledger.gone.add(id)
            elif id in ledger.due_ms:
                try:
                    later = store.reschedule(id, at_ms=due_ms + 300)
                except timerstore.TooLateError:
                    continue
                ledger.gone.add(id)
                ledger.due_ms[later] = due_ms + 300


def while_threads_work(
    path: Path, seconds: float, look: Callable[[timerstore.TimerStore, Ledger], None]
) -> None:
    """Open a store, have three threads put and cancel in it, and look again and again."""
    with timerstore.open(path, config=CONFIG) as store:
        ledger, stop, errors = Ledger(), threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                put_and_cancel(store, ledger, stop)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not errors:
                look(store, ledger)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors, errors[0]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_listing_is_of_one_instant(tmp_path: Path) -> None:
    def look(store: timerstore.TimerStore, ledger: Ledger) -> None:
        gone, put, touched = set(ledger.gone), dict(ledger.due_ms), set(ledger.touched)
        listed = [timer.id for timer in store.pending()]
        if len(ledger.gone) % 2:
            listed = store.pending_columns(columns=["id"])["id"].to_pylist()
        now_ms = time.time_ns() // 1_000_000
        assert not gone.intersection(listed), "a timer whose cancel had returned True"
        sure = {id for id, due_ms in put.items() if due_ms > now_ms} - touched - ledger.touched
        assert sure.issubset(listed), "a timer that is still to come"
        assert len(set(listed)) == len(listed)
        instant = capture_instant(store.core.engine)
        time.sleep(random.Random(len(gone)).choice([0, 0, 0.01, 0.3]))
        found = find_pending(store.core, instant)
        assert len(found.message) == instant.pending_count, "not as many as were counted then"

    while_threads_work(tmp_path / "store", SECONDS, look)


@pytest.mark.timeout(120)
def test_what_was_cancelled_stays_out_of_a_listing_that_began_before_it_was_passed(
    tmp_path: Path,
) -> None:
    clock = timerstore.ManualClock(1_700_000_000_000)
    config = timerstore.Config(durability="process", tuning=timerstore.Tuning(precision_ms=100))
    with timerstore.open(tmp_path / "store", config=config, clock=clock) as store:
        due_ms = clock.now_ms + np.arange(300) * 10
        ids = store.put_many([b"%d" % i for i in range(300)], topic="t", at_ms=due_ms)
        levels = [store.put(b"l", topic="t", delay_level=1) for _ in range(20)]
        assert store.cancel_many(ids[100:200]).all() and store.cancel(levels[3])
        clock.advance(timedelta(milliseconds=100))
        instant = capture_instant(store.core.engine)
        count = store.count()
        clock.advance(timedelta(seconds=1_000))  # all of it is fired, the deletes are passed
        assert store.count() == 0
        found = find_pending(store.core, instant)
        assert len(found.message) == instant.pending_count == count == 300 - 100 - 11 + 19


def test_a_plot_says_how_long_a_bar_is(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with timerstore.open(tmp_path / "plot", clock=timerstore.ManualClock()) as store:
        store.put(b"x", delay=timedelta(hours=1))
        for bucket_ms, said in ((3_600_000, "1 h"), (90_000, "90 s"), (250, "250 ms")):
            axes = pyplot.figure().subplots()
            assert store.horizon(bucket_ms).plot(axes).get_ylabel() == f"timers in {said}"
    pyplot.close("all")
