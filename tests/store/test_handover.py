"""Handing over to a broker, which fires whatever the slots from the read cursor on lead to."""

import contextlib
import dataclasses
import errno
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests import naive
from tests.as_broker import AsBroker
from tests.naive_services import DELETE, TIMER, Enqueued, EnqueuePut
from tests.rigs import broker
from tests.services.test_cleaning import (
    SECOND,
    SMALL,
    START_MS,
    copy_some,
    drain,
    live_on,
    open_small,
)
from tests.tiers import how_many, some
from timerstore import ManualClock, TimerStore, TimerStoreError, verify
from timerstore.jit.record import Words
from timerstore.services.broker import for_broker
from timerstore.services.engine.engine import Engine
from timerstore.services.world.background import BackgroundThread
from timerstore.services.world.state import SERVICE_NAMES
from timerstore.store import handover
from timerstore.timelog.files.disk import Disk
from timerstore.validation import validate

SERVICE_THREADS = {f"timerstore-{name}" for name in (*SERVICE_NAMES, "prefetch")}
EACH = how_many("HANDOVER_STEP", 4, 1)
FEW_UNITS = dataclasses.replace(SMALL, timerlog_segment_bytes=52 * 4 + 16)
pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("any_wheel")]


def _copied_in_part(
    path: Path, clock: ManualClock, times: int, end: Callable[[TimerStore], None]
) -> tuple[list[str], list[str]]:
    """Live in a store that ends in the midst of a pass; return its far timers, the cancelled."""
    store = open_small(path, clock)
    ids = [store.put(b"far %d" % (i % 3), delay=(500 + i % 3) * SECOND) for i in range(30)]
    cancelled = [ids[3], ids[7]]
    assert store.cancel_many(cancelled).all()
    store.core.upkeep.cleaner.stopped = True
    live_on(store, clock, 5)
    assert copy_some(store, 7, times) > 0
    store.core.upkeep.cleaner.stopped = True
    end(store)
    return ids, cancelled


def _hopped_store(
    path: Path, clock: ManualClock, rnd: random.Random
) -> tuple[TimerStore, list[str]]:
    """A store whose timers have hopped among those that were put since; and which are pending."""
    store = open_small(path, clock, FEW_UNITS)
    ids: list[str] = []
    for _ in range(rnd.randrange(8, 14)):
        for _ in range(rnd.randrange(1, 9)):
            delay = rnd.choice((1, 30, 100, 300, 900)) + rnd.randrange(9)
            ids.append(store.put(b"%d" % len(ids), delay=delay * SECOND))
        store.cancel(rnd.choice(ids))
        clock.advance(rnd.randrange(1, 40) * SECOND)
        drain(store)
        if rnd.random() < 0.5:
            store.flush()
    return store, sorted(timer.id for timer in store.pending())


def _assert_sound(path: Path) -> None:
    for report in verify(path), validate(path):
        assert report.ok, str(report)


def _compare(path: Path, broker: AsBroker, now_ms: int) -> None:
    """The index is what enqueue-put's twin links, in the order of the log."""
    tuning, read_slot = FEW_UNITS.tuning, broker.read_slot
    wheel = naive.Wheel(
        *(tuning.precision_ms, tuning.wheel_slot_count, tuning.roll_window_slots),
        *(read_slot, read_slot),
    )
    segment_bytes = tuning.timerlog_segment_bytes
    twin = EnqueuePut(wheel, read_slot, segment_bytes, segments=set(range(99)))
    entries = []
    for offset in sorted({unit.message_offset for unit in broker.units.values()}):
        message = broker.messages[offset]
        says, kind = message.properties, TIMER
        if "TIMER_DEL_UNIQKEY" in says:
            kind = DELETE
        due_ms, topic = int(says["TIMER_OUT_MS"]), naive.java_hash(says["REAL_TOPIC"])
        entries.append(Enqueued(due_ms, due_ms, offset, message.size_bytes, topic, kind, 0, 0))
    assert twin.step(entries, now_ms, tuning.commitlog_segment_bytes) == len(entries)
    assert broker.units == twin.units
    used = naive.used_slots((path / "timerwheel").read_bytes())
    assert {slot.number: slot for slot in used.values()} == twin.slots


def _do_nothing(store: TimerStore) -> None:
    """The same life hands over."""


@pytest.mark.tier("prove", but=("1-close", "2-abandon", "4-_do_nothing"))
@pytest.mark.parametrize("end", [TimerStore.close, TimerStore.abandon, _do_nothing])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_what_was_copied_in_part_is_there_once(
    tmp_path: Path, end: Callable[[TimerStore], None], times: int
) -> None:
    """Sources and copies are linked, of a pass that is under way, or that nobody remembers."""
    clock, path, stores = ManualClock(START_MS, force=True), tmp_path / "s", []

    def ended(store: TimerStore) -> None:
        end(store)
        stores.append(store)

    ids, cancelled = _copied_in_part(path, clock, times, ended)
    store = stores[0] if end is _do_nothing else open_small(path, clock)
    store.core.upkeep.cleaner.stopped = True
    pending = sorted(set(ids) - set(cancelled))
    assert sorted(timer.id for timer in store.pending()) == pending
    store.handover()
    assert AsBroker(path).keys() == pending
    _assert_sound(path)

    with open_small(path, clock) as store:
        assert store.count() == 28 == len(list(store.pending()))
        assert store.cancel(cancelled[0]) and store.get(cancelled[1]) is None  # as before
        clock.advance(700 * SECOND)
        assert sorted(drain(store)) == sorted(
            b"far %d" % (i % 3) for i in range(30) if i not in (3, 7)
        )
    _assert_sound(path)


@pytest.mark.parametrize("seed", some(range(6), 3))
def test_what_hopped_has_one_unit_in_the_order_of_the_log(tmp_path: Path, seed: int) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store, ids = _hopped_store(path, clock, random.Random(seed))
    cancelled = store.put(b"cancelled", delay=800 * SECOND)
    store.cancel(cancelled)
    hours_ago = time.time() - 100 * 3_600
    for file in (path / "commitlog").glob("0*"):
        os.utime(file, (hours_ago, hours_ago))
    store.handover()
    assert min(file.stat().st_mtime for file in (path / "commitlog").glob("0*")) > hours_ago + 3_600
    assert not (path / for_broker.FOLDER).exists()
    broker = AsBroker(path)
    assert broker.keys() == ids
    assert broker.misled_files() == []
    _compare(path, broker, clock.now_ms)
    _assert_sound(path)
    with open_small(path, clock, FEW_UNITS) as store:
        assert sorted(timer.id for timer in store.pending()) == ids
        assert store.count() == len(ids) and store.get(cancelled) is None
        store.handover()  # again
    assert AsBroker(path).keys() == ids
    _assert_sound(path)
    with open_small(path, clock, FEW_UNITS) as store:
        clock.advance(1_000 * SECOND)
        assert len(drain(store)) == len(ids) and store.count() == 0


@pytest.mark.tier("prove", only=("1", "3", "8"))
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8])
def test_each_number_of_timers(tmp_path: Path, count: int) -> None:
    """With four units to a file of the timer log, one of which is the last delete's."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    with open_small(path, clock, FEW_UNITS) as store:
        ids = sorted(store.put_many([b"x"] * count, delay_ms=list(range(9_000, 9_000 + count))))
        assert (store.handover() is None) == (count == 0)
    assert AsBroker(path).keys() == ids
    _assert_sound(path)
    with open_small(path, clock, FEW_UNITS) as store:
        clock.advance(20 * SECOND)
        assert len(drain(store)) == count


def test_a_slot_that_has_fired_in_part_is_handed_over(tmp_path: Path) -> None:
    """No slot need be finished: what was fired from it has no unit any more."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store = open_small(path, clock)
    within_ms = SMALL.precision_ms
    ids = store.put_many([b"%d" % i for i in range(within_ms)], delay_ms=list(range(within_ms)))
    half = within_ms // 2
    clock.advance((half - 1) / 1_000)
    store.handover()
    assert clock.now_ms == START_MS + half - 1
    assert AsBroker(path).keys() == sorted(ids[half:])
    with open_small(path, clock) as store:
        clock.advance(SECOND)
        assert sorted(drain(store)) == sorted(b"%d" % i for i in range(within_ms))


def test_what_has_fired_waits_for_its_group(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    with open_small(path, clock) as store:
        store.put_many([b"a", b"b", b"c"], topic="t")
        clock.advance(SECOND)
        first, *_ = store.pull("t", group="g", timeout=0)
        first.ack()
        store.handover()
    with open_small(path, clock) as store:
        assert [each.body for each in store.pull("t", group="g", timeout=0)] == [b"b", b"c"]


STEPS = ["_append_last", "make_index", "write_broker_files"]
LAST_STEPS = ["use_index", "remove_files", "write_checkpoint", "remove_mark"]


def _killing(original: Callable[..., object], *, after: bool) -> Callable[..., object]:
    def killed(*given: object, **more: object) -> None:
        if after:
            original(*given, **more)
        raise KeyboardInterrupt

    return killed


@pytest.mark.tier("prove", only=("True-[!r]*", "True-remove_files"))  # the next step begins there
@pytest.mark.parametrize("step", [*STEPS, *LAST_STEPS])
@pytest.mark.parametrize("after", [True, False])
def test_a_handover_may_be_killed_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Whoever opens the store then has the same timers, and fires each once."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    put, cancelled = _copied_in_part(path, clock, 2, TimerStore.abandon)
    ids = sorted(set(put) - set(cancelled))
    store = open_small(path, clock)
    store.core.upkeep.cleaner.stopped = True
    place = handover if hasattr(handover, step) else for_broker
    monkeypatch.setattr(place, step, _killing(getattr(place, step), after=after))
    with pytest.raises(KeyboardInterrupt):
        store.handover()
    monkeypatch.undo()
    if step in STEPS:
        assert sorted(timer.id for timer in store.pending()) == ids
    store.abandon()
    with open_small(path, clock) as store:
        assert sorted(timer.id for timer in store.pending()) == ids
        assert store.get(cancelled[0]) is None and store.cancel(cancelled[1])
        assert not (path / for_broker.FOLDER).exists()
        assert store.health().ok
        clock.advance(700 * SECOND)
        assert len(drain(store)) == len(ids)
    _assert_sound(path)


@pytest.mark.parametrize("step", LAST_STEPS)
def test_a_store_whose_handover_a_signal_ended_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store, ids = _hopped_store(path, clock, random.Random(1))
    place = handover if hasattr(handover, step) else for_broker
    monkeypatch.setattr(place, step, _killing(getattr(place, step), after=False))
    with pytest.raises(KeyboardInterrupt):
        store.handover()
    monkeypatch.undo()
    store.close()
    with open_small(path, clock, FEW_UNITS) as store:
        assert sorted(timer.id for timer in store.pending()) == ids
        clock.advance(1_000 * SECOND)
        assert len(drain(store)) == len(ids)
    _assert_sound(path)


class FailingDisk(Disk):
    """A disk on which nothing goes any more from one of its events on."""

    left = 1 << 30

    def event(self, kind: str, path: Path) -> None:
        """Count down, then fail."""
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("joined", range(1, 7))
def test_a_handover_that_ends_while_threads_stop_leaves_one_of_each(
    tmp_path: Path, joined: int
) -> None:
    """The store goes on afterwards, and two threads of one service would spoil it."""
    with TimerStore(tmp_path / "store") as store:
        store.put(b"far", delay=500 * SECOND)
        mine = [thread.name for thread in threading.enumerate() if thread.name in SERVICE_THREADS]
        count, join = 0, BackgroundThread.join

        def interrupted_once(thread: BackgroundThread, timeout_s: float | None = None) -> None:
            nonlocal count
            count += 1
            if count == joined:
                raise KeyboardInterrupt
            join(thread, timeout_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BackgroundThread, "join", interrupted_once)
            with pytest.raises(KeyboardInterrupt):
                store.handover()
        names = [thread.name for thread in threading.enumerate() if thread.name in SERVICE_THREADS]
        assert sorted(names) == sorted(mine) and len(mine) >= len(SERVICE_NAMES)
        store.put(b"near", delay_ms=1)
        assert [delivery.body for delivery in store.pull("default", timeout=10)] == [b"near"]


def test_what_is_put_meanwhile_is_refused_or_there(tmp_path: Path) -> None:
    """A put falls between any two lines of the handover; its thread is let go on at each."""
    clock = ManualClock(START_MS, force=True)
    store = open_small(tmp_path / "store", clock)
    lines, ids, refused = set[int](), list[str](), 0

    def put_beside(frame: FrameType, event: str, _: object) -> Any:
        nonlocal refused
        if frame.f_code.co_filename != handover.__file__:
            return None
        if event == "line" and frame.f_lineno not in lines:
            lines.add(frame.f_lineno)
            thread = threading.Thread(target=put)
            thread.start()
            thread.join(20)
            assert not thread.is_alive()
        return put_beside

    def put() -> None:
        nonlocal refused
        try:
            ids.append(store.put(b"beside", delay=100 * SECOND))
        except TimerStoreError:
            refused += 1

    sys.settrace(put_beside)
    try:
        store.handover()
    finally:
        sys.settrace(None)
    assert ids and refused > 20
    with open_small(tmp_path / "store", clock) as store:
        assert sorted(timer.id for timer in store.pending()) == sorted(ids)


@pytest.mark.slow
@pytest.mark.promise
def test_wherever_the_disk_fails_nothing_is_lost(tmp_path: Path) -> None:
    """At its events in turn, until a handover comes to its end."""
    stop, is_over = 0, False
    while not is_over:
        clock, path, disk = ManualClock(START_MS, force=True), tmp_path / str(stop), FailingDisk()
        store = TimerStore(path, config=SMALL, clock=clock, disk=disk)
        ids = sorted(store.put_many([b"x"] * 9, delay_ms=[90_000] * 9))
        store.flush()
        disk.left = stop
        with contextlib.suppress(TimerStoreError, OSError):
            store.handover()
            is_over = True
        disk.left = 1 << 30
        store.abandon()
        with TimerStore(path, config=SMALL, clock=clock) as store:
            assert sorted(timer.id for timer in store.pending()) == ids
            clock.advance(100 * SECOND)
            assert len(drain(store)) == 9
        stop += EACH
    assert stop > 20


@pytest.mark.parametrize("named", [False, True])
def test_what_a_brokers_delete_cancelled_is_not_fired(tmp_path: Path, named: bool) -> None:
    """A broker of 5.5 leaves the topic out by default, and each broker matches only one form."""
    due_ms, keys = broker.PUT_MS + 600_000, [f"K{i}" for i in range(9)]
    put = [broker.timer("t", b"x", due_ms + i, key, {}) for i, key in enumerate(keys)]
    for i in (2, 5):
        target = f"t+{keys[i]}" if named else keys[i]
        put.append(broker.timer("t", b"0", due_ms + i, keys[i], {"TIMER_DEL_UNIQKEY": target}))
    path = broker.write_store(tmp_path / "s", put, 1 << 16)
    with open_small(path, ManualClock(broker.PUT_MS + 1_000, force=True)) as store:
        assert store.count() == 7
        store.handover()
    assert AsBroker(path).keys() == [key for key in keys if key not in ("K2", "K5")]
    _assert_sound(path)


@pytest.mark.parametrize("wrong", ["a unit is missing", "a timer is missing", "another order"])
def test_what_a_broker_would_not_fire_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """The index is read as a broker reads it before the store's own is let go."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store = open_small(path, clock)
    ids = store.put_many([b"x"] * 9, delay_ms=[90_000] * 9)
    waiting, write = for_broker._waiting, for_broker._write
    part = slice(1, None) if wrong == "a unit is missing" else np.array([1, 0, *range(2, 10)])

    def written(engine: Engine, messages: Words, read_slot: int, now_ms: int) -> int:
        return write(engine, messages[part], read_slot, now_ms)

    with monkeypatch.context() as patch:
        if wrong == "a timer is missing":
            patch.setattr(for_broker, "_waiting", lambda engine: waiting(engine)[1:])
        else:
            patch.setattr(for_broker, "_write", written)
        with pytest.raises(TimerStoreError, match="would not fire each timer once"):
            store.handover()
    assert store.count() == 9
    clock.advance(100 * SECOND)
    assert len(drain(store)) == len(ids)
    store.handover()
    _assert_sound(path)
