"""Background threads that end: each of them, by anything, is seen by the next call."""

import ctypes
import errno
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.interrupting import alarms
from tests.rigs.waiting import wait_until
from tests.small_store import small
from timerstore import Consumer, FlushFailedError, StoreFullError, TimerStore
from timerstore.jit.host import wake_event
from timerstore.services.durable.flush import Flusher
from timerstore.services.running import runner as runner_module
from timerstore.services.world.background import BackgroundThread, Failure, Flag
from timerstore.testing.disk import FailingDisk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # A signal's exception may fall into a destructor, where Python reports and drops it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIG = small(
    1 << 14,
    2_000,
    5_200,
    precision_ms=100,
    roll_window_slots=600,
    wheel_slot_count=2_048,
    near_count_max=1 << 16,
    flush_interval_ms=10,
    retention_ms=1,
)


class AnyEnd(BaseException):
    """What nobody expects."""


ENDS = [ValueError("a mistake of ours"), MemoryError(), SystemExit(3), AnyEnd("the end")]


def repeat(act: Callable[[], None]) -> None:
    while True:
        act()


def ours() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("timerstore")]


def raising(error: BaseException) -> Callable[..., Any]:
    def end(*_: Any, **__: Any) -> Any:
        raise error

    return end


def end_run(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(runner_module, "run", raising(error))


def end_meet(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(runner_module, "provide", raising(error))
    store.put_many([b"x"] * 300, delay_ms=3_600_000)  # more than a segment of units


def end_ahead(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(store.core.engine, "prepare_ahead", raising(error))


def end_changed(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(Flusher, "has_changed", property(raising(error)))


def end_flush(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(store.core.upkeep, "flush", raising(error))


def end_write(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(store.core.flusher, "_write", raising(error))


def end_offsets(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(store.consuming, "write_offsets", raising(error))


def end_retention(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(store.core.upkeep.retention, "_remove", raising(error))


def end_after(store: TimerStore, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr(store.core.upkeep.retention, "run", raising(error))


PLACES = {
    "timer": [end_run, end_meet],
    "flush": [end_ahead, end_changed, end_flush, end_write, end_offsets, end_retention, end_after],
}
STORE_ENDS = [
    pytest.param(thread, place, error, id=f"{place.__name__}-{type(error).__name__}")
    for thread, places in PLACES.items()
    for i, place in enumerate(places)
    for error in (ENDS if i == 0 else ENDS[-1:])
]


@pytest.mark.parametrize(("thread", "place", "error"), STORE_ENDS)
def test_a_thread_that_ends_is_seen(
    tmp_path: Path,
    thread: str,
    place: Callable[..., None],
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the next call of whatever kind, in `stats()`, in the log; and the store lets go."""
    path, count = tmp_path / "store", 1
    store = timerstore.open(path, config=CONFIG)
    store.put(b"x", delay=timedelta(hours=1))
    with monkeypatch.context() as patch:
        place(store, patch, error)
        count = store.core.engine.queues.next_index(0)
        os_wake(store)
        wait_until(lambda: store.core.engine.failure.error is not None)
    calls: list[Callable[[], Any]] = [
        lambda: store.put(b"x"),
        lambda: store.put(b"x", delay=timedelta(hours=1), key="k"),
        lambda: store.put_many([b"x"]),
        lambda: store.count(),
        lambda: store.pull("default", timeout=1),
        lambda: next(store.consume("default")),
        lambda: store.flush(),
        lambda: list(store.pending()),
        lambda: Consumer(store, "g").retry_dead_letters(),
    ]
    for call in calls:
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error
    stats = store.stats()
    assert stats.stopped_by is not None and type(error).__name__ in stats.stopped_by
    wait_until(lambda: any(each.exc_info and each.exc_info[1] is error for each in caplog.records))
    wait_until(lambda: f"timerstore-{thread}" not in ours())
    with pytest.raises(type(error)):
        store.close()
    assert ours() == []
    with timerstore.open(path, config=CONFIG) as again:
        assert again.count() == count


def os_wake(store: TimerStore) -> None:
    """Have the services' threads come out of their kernel."""
    store.core.engine.world.callers.stop = 1
    for eventfd in store.core.engine.eventfds:
        wake_event(eventfd)
    time.sleep(0.1)
    store.core.engine.world.callers.stop = 0


def test_a_failure_is_the_first_one_and_its_trace_does_not_grow() -> None:
    failure = Failure()
    failure.check()
    for error in ENDS:
        failure.keep(error)
    lengths = []
    for _ in range(3):
        with pytest.raises(type(ENDS[0])) as raised:
            failure.check()
        lengths.append(len(raised.traceback))
    assert failure.error is ENDS[0] and lengths[0] == lengths[2]


def test_a_thread_tells_its_end() -> None:
    told: list[BaseException] = []
    thread = BackgroundThread("timerstore-test", raising(ENDS[-1]), told.append)
    thread.join()  # it was not started: nothing to wait for
    thread.start()
    thread.join(10)
    assert told == [ENDS[-1]] and not thread.is_alive and not thread.is_current


def test_an_interrupted_wait_does_not_take_it_for_ended() -> None:
    stop, told = threading.Event(), list[BaseException]()
    thread = BackgroundThread("timerstore-test", lambda: stop.wait() and None, told.append)
    with alarms(ENDS[-1]):
        thread.start()
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(AnyEnd):
                thread.join()
            assert thread.is_alive
    stop.set()
    thread.join()
    assert not thread.is_alive and not told


def test_a_store_whose_threads_cannot_start_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        no_thread = raising(RuntimeError("can't start new thread"))
        patch.setattr("threading.Thread.start", no_thread)
        with pytest.raises(StoreFullError, match=r"no thread, or no memory, left for .*ulimit -u"):
            timerstore.open(tmp_path, config=CONFIG)
    assert ours() == []
    with timerstore.open(tmp_path, config=CONFIG) as store:
        assert store.count() == 0


# --- a full or failing disk under the flush thread


def test_a_full_disk_is_waited_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing stops; checkpoints, offsets and retention go on once there is room."""
    disk = FailingDisk()
    with TimerStore(tmp_path, config=CONFIG, disk=disk) as store:
        ids = [store.put(b"x", delay=timedelta(hours=1))]
        for kinds, where in (
            (("write",), "timercheck"),
            (("replace",), "consumerOffset"),
            (("create", "allocate", "mkdir", "write", "replace", "remove"), ""),
        ):
            for delivery in store.consume("now", timeout=0):
                delivery.ack()
            disk.refuse(errno.ENOSPC, *kinds, where=where)
            ids.append(store.put(b"x", delay=timedelta(hours=1)))
            store.put(b"x", topic="now")
            for delivery in store.consume("now", timeout=10):
                delivery.ack()
                break
            wait_until(lambda: store.stats().waiting_for_space is not None)
            assert "no space left" in (store.stats().waiting_for_space or "")
            assert store.stats().stopped_by is None and store.count() == len(ids)
            disk.heal()
            before = store.stats().checkpoint_count
            wait_until(lambda: store.stats().waiting_for_space is None)
            wait_until(lambda: store.stats().checkpoint_count > before)  # noqa: B023
    with timerstore.open(tmp_path, config=CONFIG) as again:
        assert again.core.findings.clean and again.count() == len(ids)
    messages = [each.getMessage() for each in caplog.records]
    assert any("no space left" in each for each in messages)
    assert any("there is room again" in each for each in messages)


@pytest.mark.parametrize(("kind", "least_count"), [("create", 6), ("allocate", 2)])
def test_segments_ahead_wait_for_room(tmp_path: Path, kind: str, least_count: int) -> None:
    """What is made ahead of its need finds no room: the next put alone fails, and only then."""
    disk = FailingDisk()
    with TimerStore(tmp_path, config=CONFIG, disk=disk) as store:
        store.put(bytes(1_000), delay=timedelta(hours=1))
        wait_until(lambda: store.core.engine.world.enqueue_put.linked_index == 1)
        disk.refuse(errno.ENOSPC, kind)
        ids: list[str] = []

        def put_one() -> None:
            ids.append(store.put(bytes(1_000), delay=timedelta(hours=1)))

        with pytest.raises(StoreFullError):
            repeat(put_one)
        wait_until(lambda: store.stats().waiting_for_space is not None)
        assert store.count() == 1 + len(ids) >= least_count
        disk.heal()
        wait_until(lambda: store.stats().waiting_for_space is None)
        for _ in range(30):
            put_one()
        assert store.count() == 1 + len(ids)


def test_what_there_is_room_for_is_not_refused(tmp_path: Path) -> None:
    """Nobody makes segments ahead here: the last one is filled before anything is refused."""
    disk, clock = FailingDisk(), timerstore.ManualClock()
    with TimerStore(tmp_path, config=CONFIG, disk=disk, clock=clock) as store:
        store.put(bytes(1_000), delay=timedelta(hours=1))
        disk.refuse(errno.ENOSPC, "create")
        with pytest.raises(StoreFullError):
            repeat(lambda: store.put(bytes(1_000), delay=timedelta(hours=1)))
        log = store.core.engine.commitlog
        left_bytes = log.numbers[-1] * log.segment_bytes + log.segment_bytes - log.end
        assert left_bytes < 1_500
        disk.heal()
        store.put(bytes(1_000), delay=timedelta(hours=1))


KINDS = ["create", "allocate", "sync", "sync_folder", "replace", "write", "remove"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_disk_stops_the_store(tmp_path: Path, kind: str) -> None:
    """Wherever it fails: every call says so, and the directory is let go of."""
    disk, path = FailingDisk(), tmp_path / "store"
    store = TimerStore(path, config=CONFIG, disk=disk)
    error: type[BaseException] = FlushFailedError
    kept_count = int(kind != "remove")  # one that is pending keeps what lies behind it
    store.put_many([b"kept"] * kept_count, delay_ms=3_600_000)
    disk.refuse(errno.EIO, kind)

    def put_and_take() -> None:
        store.put(bytes(500))
        for delivery in store.consume("default", timeout=0.01):
            delivery.ack()
            break

    with pytest.raises((FlushFailedError, OSError)) as first:
        repeat(put_and_take)
    wait_until(lambda: store.core.engine.failure.error is not None or first.type is OSError)
    if store.core.engine.failure.error is None:  # a call met it, and no thread of ours did
        wait_until(lambda: disk.refused[kind] > 3 or store.core.engine.failure.error is not None)
    if store.core.engine.failure.error is not None:
        error = type(store.core.engine.failure.error)
        with pytest.raises(error):
            store.count()
    with pytest.raises(error):
        store.close()
    assert ours() == []
    with timerstore.open(path, config=CONFIG) as again:
        assert again.count() >= kept_count


def test_removing_goes_on_where_a_full_disk_kept_a_segment(tmp_path: Path) -> None:
    """The oldest that stayed goes before any other, else a log would have a gap."""
    disk, clock = FailingDisk(), timerstore.ManualClock(1_700_000_000_000)
    store = TimerStore(tmp_path, config=CONFIG, disk=disk, clock=clock)
    folder = tmp_path / "commitlog"

    def live_a_while() -> None:
        for _ in range(60):
            store.put(bytes(1_000))
        for delivery in store.consume("default", timeout=0):
            delivery.ack()
        clock.advance(timedelta(seconds=10))

    live_a_while()
    disk.refuse(errno.ENOSPC, "remove", "rename", where="commitlog")
    with pytest.raises(StoreFullError):
        store.flush()
    live_a_while()
    with pytest.raises(StoreFullError):
        store.flush()
    kept = sorted(int(each.name) for each in folder.iterdir())
    assert kept[0] == 0 and kept == list(range(0, kept[-1] + 1, CONFIG.commitlog_segment_bytes))
    disk.heal()
    store.flush()
    left = sorted(int(each.name) for each in folder.iterdir())
    assert left[0] == store.core.engine.commitlog.start > 0
    assert left == list(range(left[0], left[-1] + 1, CONFIG.commitlog_segment_bytes))
    assert store.core.upkeep.retention.removed_count >= len(kept) - len(left)
    store.close()


# --- arrays that grow while NumPy looks


def test_topics_that_appear_while_segments_are_made_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy counts what is not zero before it collects it; others append in between."""
    clock = timerstore.ManualClock()
    with timerstore.open(tmp_path, config=CONFIG, clock=clock) as store:
        queues, stop = store.core.engine.queues, threading.Event()
        next_index = queues.table.next_index
        count = len(next_index)

        def appear() -> None:  # as a kernel does, without the GIL
            while not stop.is_set():
                for value in (0x01, 0x00):
                    ctypes.memset(next_index.ctypes.data + 8, value, 8 * (count - 1))

        monkeypatch.setattr(queues, "prepare", lambda row, ahead: None)
        monkeypatch.setattr(queues, "files", queues.files * count)
        thread = threading.Thread(target=appear)
        thread.start()
        try:
            for _ in range(200):
                store.core.engine.prepare_ahead()
        finally:
            stop.set()
            thread.join()
            next_index[1:] = 0
            monkeypatch.undo()


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("step", ["_append_last", "make_index", "write_broker_files"])
@pytest.mark.parametrize("manual", [False, True], ids=["wall clock", "manual clock"])
def test_time_goes_on_where_a_handover_fails(
    tmp_path: Path, manual: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops the services; what fails then starts them again."""
    clock = timerstore.ManualClock() if manual else None
    with timerstore.open(tmp_path, config=CONFIG, clock=clock) as store:
        store.put(b"before", delay=timedelta(hours=1))
        with monkeypatch.context() as patch:
            patch.setattr(f"timerstore.store.handover.{step}", raising(ENDS[-1]))
            with pytest.raises(AnyEnd):
                store.handover()
        store.put(b"x", topic="later", delay=timedelta(milliseconds=1))
        if clock is not None:
            clock.advance(timedelta(seconds=1))
        (delivery,) = store.pull("later", timeout=10)
        assert delivery.body == b"x"
        assert store.count() == 1 and store.stats().stopped_by is None


def test_a_flag_wakes_all_and_can_be_taken_back() -> None:
    flag, woken = Flag(), list[bool]()
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(30))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not flag.wait(0.001) and not flag.is_set()
    flag.set()
    flag.set()
    for thread in threads:
        thread.join()
    assert woken == [True] * 3 and flag.is_set() and flag.wait(0)
    flag.clear()
    assert not flag.wait(0.001)


@pytest.mark.timeout(60)
def test_no_signal_breaks_a_flag() -> None:
    flag, hits = Flag(), 0
    until = time.monotonic() + 1
    with alarms(ENDS[-1]), suppress(AnyEnd):  # the last one may come between two tries
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                while time.monotonic() < until:
                    flag.set()
                    flag.wait(0.01)
                    flag.clear()
                    flag.wait(0.00001)
            except AnyEnd:
                hits += 1
    thread = threading.Thread(target=flag.set)
    thread.start()
    while not flag.wait(0.1):
        pass
    thread.join()
    assert hits
