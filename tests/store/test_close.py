"""Closing: who is inside ends first, who comes later is refused."""

import gc
import os
import signal
import threading
import time
import weakref
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.interrupting import Interrupt, alarms, interrupted
from tests.rigs.program import FILES, python
from tests.rigs.storm_taken import run_of
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from tests.store_calls import calls_of
from tests.tiers import how_many
from timerstore import (
    ManualClock,
    StoreClosedError,
    StoreLockedError,
    TimerStore,
    TimerStoreError,
)
from timerstore.calls.consuming import run, sendback
from timerstore.jit.guards import Guard
from timerstore.services.calls.appending import append_all
from timerstore.services.running.runner import Runner
from timerstore.store import handover as close_module
from timerstore.testing.disk import QuietDisk

pytestmark = [
    pytest.mark.slow,
    # A signal's exception may fall into a destructor, where Python reports and drops it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FAR_MS = 4_000_000_000_000
ROUNDS = how_many("CLOSING_ROUNDS", 3, 15)


@pytest.mark.timeout(120)
def test_a_put_that_races_close_is_kept_or_refused(tmp_path: Path) -> None:
    ids: list[str] = []

    def put(store: TimerStore, short: bool) -> None:
        try:
            while True:
                key = None if short else "k"
                ids.append(store.put(b"x" * 100, topic="t", at_ms=FAR_MS, key=key))
        except StoreClosedError:
            pass

    for _ in range(ROUNDS):
        store = TimerStore(tmp_path, config=SMALL)
        threads = [threading.Thread(target=put, args=(store, i % 2 == 0)) for i in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        store.close()
        with TimerStore(tmp_path) as again:  # while they may still be in put
            ids.append(again.put(b"y", topic="t", at_ms=FAR_MS))
        for thread in threads:
            thread.join()
    assert len(set(ids)) == len(ids)
    with TimerStore(tmp_path) as store:
        assert store.count("t") == len(ids)
        assert {timer.id for timer in store.pending()} == set(ids)


@pytest.mark.timeout(60)
def test_no_call_gets_in_after_the_end(tmp_path: Path) -> None:
    store = TimerStore(tmp_path, config=SMALL)
    id = store.put(b"x", topic="t", at_ms=FAR_MS)
    group = store.consuming.group("t", "g")
    calls = {k: call for k, call in calls_of(store, id).items() if k not in ("close", "abandon")}
    calls |= {
        "put with a key": lambda: store.put(b"x", topic="t", key="k"),
        "put at a level": lambda: store.put(b"x", topic="t", delay_level=1),
        "pull of a group": lambda: group.pull(1),
    }
    listing, deliveries = store.pending(), store.consume("t", timeout=10)
    store.close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for name, call in calls.items():
        with pytest.raises(StoreClosedError):
            call()
        assert store.core.gate.words.sum() == 0, name
    with pytest.raises(StoreClosedError):
        next(listing)
    assert list(deliveries) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.timeout(60)
def test_a_waiting_pull_ends_with_its_store(tmp_path: Path) -> None:
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(StoreClosedError):
            store.pull("t")
        ended.set()

    store = TimerStore(tmp_path, config=SMALL)
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    store.close()
    assert ended.wait(30)
    thread.join()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["nack", "ack_and_put"])
def test_what_comes_in_the_place_of_a_message_does_so_though_closing_begins(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TimerStore(tmp_path, config=SMALL)
    closing = threading.Thread(target=store.close)

    def append(*args: Any, **kwargs: Any) -> None:
        append_all(*args, **kwargs)
        closing.start()
        wait_until(lambda: store.core.closed)

    monkeypatch.setattr(sendback if how == "nack" else run, "append_all", append)
    id = store.put(b"x", topic="t")
    (delivery,) = store.pull("t", group="g")
    if how == "nack":
        delivery.nack()
    else:
        id = delivery.ack_and_put(b"y")
    closing.join()
    with TimerStore(tmp_path) as again:
        batches = [again.pull("t", group="g", timeout=timeout) for timeout in (10, 0.3)]
        assert [each for batch in batches for each in batch.ids.to_pylist()] == [id]


@pytest.mark.timeout(60)
def test_what_cleaning_copied_meanwhile_has_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next opening counts all that is pending again."""
    stop = Runner.stop

    def stop_slowly(runner: Runner) -> None:
        stop(runner)
        time.sleep(0.3)  # the flush thread looks up each 50 ms

    monkeypatch.setattr(Runner, "stop", stop_slowly)
    with TimerStore(tmp_path, config=replace(SMALL, retention_ms=1)) as store:
        store.put_many([b"x" * 100] * 2_000, topic="t", at_ms=FAR_MS)
        cleaner, cleaning = store.core.upkeep.cleaner, store.core.engine.world.cleaning

        def clean() -> None:
            cleaner.run(at_once=True, until=cleaner.reach.find(cleaning.floor))

        monkeypatch.setattr(cleaner, "go_on", clean)
        wait_until(lambda: cleaning.copied_count)
    with TimerStore(tmp_path) as store:
        assert store.core.findings.relinked_count == 0 and store.count("t") == 2_000


class ClosesFirst:
    """A lock whose store is closed by another thread just before it is taken."""

    def __init__(self, store: TimerStore, lock: Any) -> None:
        self.lock, self.closing = lock, threading.Thread(target=store.close)

    def guard(self) -> Guard:
        if self.closing.ident is None:  # else it is that thread
            self.closing.start()
            self.closing.join()
        guard: Guard = self.lock.guard()
        return guard


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["one", "some", "batch"])
def test_an_acknowledgement_that_no_flush_will_keep_is_refused(tmp_path: Path, how: str) -> None:
    store = TimerStore(tmp_path, config=SMALL)
    store.put(b"x", topic="t")
    batch = store.pull("t", group="g")
    (delivery,) = batch
    run: Any = run_of(batch)
    run.reader.claimed.add((-1, 0))  # so a batch goes the long way, too
    run.reader.lock = ClosesFirst(store, run.reader.lock)
    ways = {"one": delivery.ack, "some": lambda: run.settle_some([0]), "batch": batch.ack}
    with pytest.raises(StoreClosedError):
        ways[how]()


def test_closing_inside_a_call_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000_000_000)
    with TimerStore(tmp_path, config=SMALL, clock=clock) as store:
        with store.core.gate.guard(), pytest.raises(TimerStoreError, match="inside another call"):
            store.close()
        assert store.count() == 0


@pytest.mark.timeout(60)
def test_a_handler_that_closes_in_the_midst_of_an_acknowledgement_is_refused(
    tmp_path: Path,
) -> None:
    clock = ManualClock(1_000_000_000_000)
    with TimerStore(tmp_path, config=SMALL, clock=clock) as store:
        store.put(b"x", topic="t")
        (delivery,) = store.pull("t", group="g")
        with (
            store.consuming.retries("g").lock.guard(),
            pytest.raises(TimerStoreError, match="inside another call"),
        ):
            store.close()
        delivery.ack()


@pytest.mark.timeout(60)
def test_a_handler_may_close_while_a_place_to_wait_is_taken(tmp_path: Path) -> None:
    store = TimerStore(tmp_path, config=SMALL)
    with store.core.waiters.waiter():
        pass
    with store.core.waiters._lock.guard():
        store.close()
    with store.core.waiters.waiter() as waiter:
        waiter.open_event()
        assert waiter.fd >= 0
    assert waiter.fd == -1  # whoever comes too late closes what he has opened


class Alarm(BaseException):
    """What the signal's handler raises."""


def running() -> list[str]:
    """Return the store's threads that go on running."""
    gc.collect()  # a pool of threads that an event loop of an earlier test left ends with it
    until = time.monotonic() + 10
    while time.monotonic() < until:
        names = [thread.name for thread in threading.enumerate()]
        names = [name for name in names if name.startswith("timerstore")]
        if not names:
            break
        time.sleep(0.01)
    return names


@pytest.mark.timeout(120)
def test_closing_can_be_interrupted_and_goes_on(tmp_path: Path) -> None:
    count = interrupted = 0
    with alarms(Alarm):
        for i in range(ROUNDS * 2):
            store = TimerStore(tmp_path, config=SMALL)
            assert store.count() == count
            store.put(b"x", at_ms=FAR_MS)
            count, wait_s = count + 1, 0.0002 * (i + 1)
            while True:
                try:
                    wait_s *= 1.5  # no close ends before the disk has written
                    signal.setitimer(signal.ITIMER_REAL, wait_s)
                    store.close()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    break
                except Alarm:
                    interrupted += 1
                    if store.core.lock_file.fd >= 0:
                        with pytest.raises(StoreLockedError):
                            TimerStore(tmp_path)
            assert not running()
    assert interrupted


@pytest.mark.timeout(120)
def test_closing_that_was_interrupted_in_its_flush_flushes_when_it_goes_on(tmp_path: Path) -> None:
    """Wherever it was ended, what was acknowledged is kept, and no recovery is due."""
    for at in range(0, 10_000, 5):
        path, clock = tmp_path / str(at), ManualClock(1_000_000_000_000)
        store = TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk())
        store.put(b"x", topic="t")
        store.pull("t", group="g").ack()
        try:
            with interrupted(at, "store/handover.py", "services/durable/flush.py") as count:
                store.close()
        except Interrupt:
            store.close()
        assert not (path / "abort").exists(), at
        with TimerStore(path, clock=clock, disk=QuietDisk()) as again:
            assert len(again.pull("t", group="g", timeout=0)) == 0, at
        if not count.raised:
            break
    assert at > 50


LET_GO = (
    "core/waiting.py",
    "engine/engine.py",
    "files/lockfile.py",
    "wheel/timerwheel.py",
)
"""Where a store's descriptors and its lock are let go."""


@pytest.mark.timeout(200)
def test_each_descriptor_is_closed_once_wherever_a_closing_was_ended(tmp_path: Path) -> None:
    """Closed twice, it may be another file's by then; never, the folder may stay locked."""
    at, step = 0, how_many("CLOSING_STEP", 16, 1)
    clock = ManualClock(1_000_000_000_000)
    with TimerStore(tmp_path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
        store.put(b"x", topic="t")
    del store  # its map of the wheel has a descriptor until nobody knows it
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    while True:
        store = TimerStore(tmp_path, clock=clock, disk=QuietDisk())
        try:
            with interrupted(at, *LET_GO) as count:
                store.close()
        except Interrupt:
            store.close()
        del store
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before, at
        if not count.raised:
            break
        at += step
    assert at > 20


@pytest.mark.timeout(120)
def test_opening_can_be_interrupted(tmp_path: Path) -> None:
    TimerStore(tmp_path, config=SMALL).close()
    opened = interrupted = 0
    with alarms(Alarm):
        for i in range(ROUNDS * 2):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.002 * i)
                with TimerStore(tmp_path, config=SMALL):
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    opened += 1
            except Alarm:
                interrupted += 1
    assert interrupted
    assert not running()
    TimerStore(tmp_path).close()


FREEZE = """
import sys, threading, timerstore
from small_store import SMALL
from dataclasses import replace
store = timerstore.open(sys.argv[1], config=replace(SMALL, durability=sys.argv[2]))
def put():
    for _ in range({count}):
        store.put(b"x" * 100, topic="t", at_ms=4_000_000_000_000)
def put_many():
    for _ in range({count} // 50):
        store.put_many([b"x" * 100] * 50, topic="t", at_ms=4_000_000_000_000)
threads = [threading.Thread(target=put) for _ in range(6)] + [threading.Thread(target=put_many)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert store.count() == 6 * {count} + {count} // 50 * 50
store.close()
"""


@pytest.mark.tier("prove", but=("process-*",))
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("durability", "count"), [("process", 20_000), ("group", 300)])
def test_threads_that_put_do_not_freeze_the_process(
    tmp_path: Path, durability: str, count: int
) -> None:
    start = ["-c", FREEZE.format(count=count), tmp_path / "store", durability]
    python(*start, timeout_s=180, PYTHONPATH=str(FILES / "tests"))


@pytest.mark.parametrize("manual", [False, True])
def test_a_closed_store_goes_with_the_last_reference(tmp_path: Path, manual: bool) -> None:
    """And not whenever Python looks for cycles."""
    clock = ManualClock() if manual else None
    gc.collect()
    gc.disable()
    try:
        with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
            store.put(b"a", topic="t")
            moved = store.reschedule(store.put(b"b", delay=timedelta(days=1)), at_ms=FAR_MS)
            assert store.get(moved) and store.cancel(moved)
            store.pull("t", timeout=5).ack()
            for delivery in store.consume("t", group="g", timeout=5):
                delivery.ack()
                break
            store.flush()
            store.clean()
            store.stats()
            assert list(store.pending()) == [] and store.pending_columns().num_rows == 0
        left = [weakref.ref(each) for each in (store.core, store.core.engine)]
        del store, delivery
        assert not any(each() for each in left)
    finally:
        gc.enable()


def test_closing_waits_until_each_timer_has_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next opening links them, and counts all that is pending."""
    monkeypatch.setattr(close_module, "LINK_PATIENCE_S", 60.0)
    with timerstore.open(tmp_path, config=timerstore.Config(durability="process")) as store:
        store.put_many([b"x"] * 60_000, topic="t", delay_ms=3_600_000)
    with timerstore.open(tmp_path) as store:
        assert store.core.findings.relinked_count == 0 and store.count() == 60_000


def test_closing_waits_for_units_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close_module, "LINK_PATIENCE_S", 0.05)
    monkeypatch.setattr(Runner, "_is_behind", lambda self: True)
    with timerstore.open(tmp_path) as store:
        store.put(b"x", delay=3_600)
    with timerstore.open(tmp_path) as store:
        assert store.count() == 1
