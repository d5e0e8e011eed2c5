"""First pages: which a clean close names, and who asks for them. The file may say anything."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests.rigs.waiting import wait_until
from tests.services.test_prefetch import CONFIG, START_MS, forget
from timerstore import TimerStore, Tuning
from timerstore.jit.mapping import PAGE_BYTES, is_resident
from timerstore.jit.record import acting_as
from timerstore.services.engine import first_pages
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.first_pages import (
    PLACE_COLUMNS,
    PLACE_MESSAGE,
    PLACE_SIZE,
    PLACE_SLOT,
    PLACE_UNIT,
    FirstPages,
    list_places,
)
from timerstore.services.running.prefetch import Prefetcher, walk_ahead
from timerstore.services.world.background import Flag
from timerstore.services.world.state import PREFETCH, new_pages
from timerstore.testing.disk import FailingDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import FIRST_FILE, Stamp, write_derived
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.segments import SegmentedFile

DAY_MS = 86_400_000


def listed(engine: Engine, stop: int, count: int = 10_000) -> np.ndarray:
    places = np.full((count, PLACE_COLUMNS), -7, np.int64)
    with engine.timerlog.reading() as table:
        slots = engine.read_slot, stop
        found = list_places(engine.wheel.array, table, *slots, new_pages(), places)
    assert (places[found:] == -7).all()
    return places[:found]


def naive_pages(engine: Engine, stop: int) -> tuple[set[int], set[int]]:
    """The pages of all units in slots from the read cursor on, and of the messages of no rolls."""
    units = np.frombuffer(engine.timerlog.read(0, engine.timerlog.end), fmt.UNIT)
    slots = (units["write_ms"] + units["delta_ms"]) // engine.precision_ms
    units = units[(slots >= engine.read_slot) & (slots < stop)]
    plain = units[units["magic"] & fmt.UNIT_ROLL == 0]
    at = np.flatnonzero((slots >= engine.read_slot) & (slots < stop)) * fmt.UNIT_BYTES
    return set((at // PAGE_BYTES).tolist()), set((plain["message_offset"] // PAGE_BYTES).tolist())


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 30_000) | st.just(90 * DAY_MS), min_size=1, max_size=300),
    st.integers(0, 5_000),
    st.integers(0, 40),
    st.integers(1, 300),
)
def test_the_pages_of_the_next_slots(
    tmp_path_factory: pytest.TempPathFactory,
    delays_ms: list[int],
    pass_ms: int,
    slots: int,
    count: int,
) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path_factory.mktemp("s"), config=CONFIG, clock=clock) as store:
        ids = store.put_many([b"x" * 400] * len(delays_ms), delay_ms=delays_ms)
        store.cancel_many(ids[::5])
        clock.advance(pass_ms / 1_000)
        engine = store.core.engine
        stop = engine.read_slot + slots
        places = listed(engine, stop)
        read = places[places[:, PLACE_SIZE] > 0]
        pages = (
            set((places[:, PLACE_UNIT] // PAGE_BYTES).tolist()),
            set((read[:, PLACE_MESSAGE] // PAGE_BYTES).tolist()),
        )
        assert pages == naive_pages(engine, stop)
        assert (np.diff(places[:, PLACE_SLOT]) >= 0).all()
        fewer = listed(engine, stop, count)
        assert np.array_equal(fewer, places[: len(fewer)])


@pytest.mark.on_disk
def test_what_is_not_in_memory_is_left_out(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * 2_000, delay_ms=np.arange(2_000) * 20 + 3_000)
        clock.advance(0.5)  # then they have their units
        engine = store.core.engine
        stop = engine.read_slot + 100
        assert len(listed(engine, stop)) >= 40
        forget(engine.timerlog)
        assert len(listed(engine, stop)) == 0


def closed(path: Path, disk: Disk | None = None, spread_ms: int = 20_000) -> None:
    """Leave a store whose timers of the next slots lie anywhere."""
    config = timerstore.Config(durability="process", tuning=Tuning(timerlog_segment_bytes=1 << 16))
    with TimerStore(path, config=config, disk=disk) as store:
        due_ms = 60_000 + np.random.default_rng(1).integers(0, spread_ms, 4_000)
        store.put_many([bytes(1_000)] * len(due_ms), delay_ms=due_ms)


def drop(path: Path) -> None:
    """Have nothing of a closed store in the page cache."""
    for each in filter(Path.is_file, path.rglob("*")):
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@contextmanager
def opened_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Open a store in which nobody else prefetches; wait until the first pages were asked for."""
    with monkeypatch.context() as patch:
        patch.setattr(Prefetcher, "run", lambda self, stop: wait_for(stop))
        with timerstore.open(path) as store:
            engine = store.core.engine
            wait_until(lambda: not engine.world.prefetch.is_asking)
            yield engine


def wait_for(stop: Flag) -> None:
    while not stop.wait(1):
        pass


def is_there(log: SegmentedFile, offset: int, count: int) -> bool:
    return is_resident(log.view(offset), 0, count)


@pytest.mark.on_disk
@pytest.mark.timeout(120)
def test_opening_asks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(tmp_path / "s")
    drop(tmp_path / "s")
    with opened_alone(tmp_path / "s", monkeypatch) as engine:
        units = np.frombuffer(engine.timerlog.read(0, fmt.UNIT_BYTES * 1_000), fmt.UNIT)
        for unit in units:
            place = int(unit["message_offset"]), int(unit["message_size"])
            wait_until(partial(is_there, engine.commitlog, *place))


@pytest.mark.on_disk
@pytest.mark.timeout(120)
def test_they_take_no_more_than_half_of_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(tmp_path / "s")
    asked = list[int]()
    ask = first_pages.ask_for_places

    def seen(*args: Any) -> int:
        asked.append(len(args[2]))
        return int(ask(*args))

    monkeypatch.setattr(first_pages, "ask_for_places", seen)
    monkeypatch.setattr(first_pages, "available_bytes", lambda: 100 * 2 * PAGE_BYTES)
    drop(tmp_path / "s")
    with opened_alone(tmp_path / "s", monkeypatch):
        assert 20 < sum(asked) < 50


def changed(data: bytes, how: str) -> bytes | None:
    if how == "it is gone":
        return None
    if how == "a bit is another":
        return data[:-1] + bytes([data[-1] ^ 1])
    return data[: len(data) // 2] if how == "half is gone" else b""


@pytest.mark.parametrize(
    "how", ["it is gone", "a bit is another", "half is gone", "it is empty", "of an earlier close"]
)
def test_what_is_not_of_that_close_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    closed(tmp_path / "s")
    file = tmp_path / "s" / FIRST_FILE
    data = file.read_bytes()
    if how == "of an earlier close":
        with timerstore.open(tmp_path / "s") as store:
            store.put(b"x", delay_ms=DAY_MS)
        assert file.read_bytes() != data
        file.write_bytes(data)
    elif (wrong := changed(data, how)) is None:
        file.unlink()
    else:
        file.write_bytes(wrong)
    asked = list[int]()
    monkeypatch.setattr(FirstPages, "_ask", lambda *_: asked.append(1))
    with opened_alone(tmp_path / "s", monkeypatch) as engine:
        assert not asked and engine.pending_count() >= 4_000
    with opened_alone(tmp_path / "s", monkeypatch):
        assert asked  # that close wrote it again


def test_after_a_kill_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(tmp_path / "s")
    timerstore.open(tmp_path / "s").abandon()
    monkeypatch.setattr(FirstPages, "ask", lambda *_: pytest.fail("it asks"))
    with timerstore.open(tmp_path / "s") as store:
        assert store.count() == 4_000


PLACES = st.lists(
    st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-9, 1 << 23)] * 4),
    max_size=30,
)


@settings(max_examples=20)
@given(PLACES, st.integers(0, 40))
def test_whatever_it_says_is_only_asked_for(rows: list[tuple[int, ...]], now_slot: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        with timerstore.open(path, config=CONFIG, clock=timerstore.ManualClock(START_MS)) as store:
            ids = store.put_many([b"x"] * 50, delay_ms=range(1_000, 51_000, 1_000))
            engine, stamp = store.core.engine, Stamp(1, 2, 3)
            places = np.array(rows, np.int64).reshape(-1, PLACE_COLUMNS)
            write_derived(Disk(), path / FIRST_FILE, stamp, places)
            engine.first_pages.ask(engine.world.prefetch, stamp, now_slot)
            engine.first_pages.stop()
            assert engine.world.prefetch.is_asking == 0
            assert [timer.id for timer in store.pending()] == list(ids)


def test_a_full_disk_leaves_none(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.refuse(28, where="firstpages")
    closed(tmp_path / "s", disk)
    assert disk.refused and not (tmp_path / "s" / FIRST_FILE).exists()
    with timerstore.open(tmp_path / "s") as store:
        assert store.core.findings.clean and store.count() == 4_000


def test_the_timer_log_is_read_in_order_behind_them(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * 2_000, delay_ms=np.arange(2_000) * 20 + 3_000)
        clock.advance(0.5)
        engine = store.core.engine
        prefetcher, state = Prefetcher(engine), engine.world.prefetch
        with acting_as(PREFETCH):
            state.is_asking = 1
        for _ in range(3):
            assert prefetcher.looks()
            with engine.timerlog.reading():
                walk_ahead(engine.world, 1_000_000)
        assert state.units_stop == engine.timerlog.end
        with acting_as(PREFETCH):
            state.is_asking = 0
        with engine.timerlog.reading():
            walk_ahead(engine.world, 100_000_000)
        assert state.units_stop == 0
