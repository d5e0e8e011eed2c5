"""Prefetch: whose pages are asked for before they are due."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests.small_store import few_maps
from timerstore import Tuning
from timerstore.jit.mapping import PAGE_BYTES, is_resident, release_pages
from timerstore.jit.record import acting_as
from timerstore.services.engine.engine import Engine
from timerstore.services.running import prefetch
from timerstore.services.running.prefetch import Prefetcher, walk_ahead
from timerstore.services.world.state import AHEAD_SLOTS_MIN, PREFETCH
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segments import SegmentedFile

pytestmark = pytest.mark.on_disk

START_MS = 1_700_000_000_000
CONFIG = timerstore.Config(durability="process")


def due_soon(engine: Engine) -> set[int]:
    """The messages of all units in the next slots that are no rolls, by a plain look at the log."""
    log, first = engine.timerlog, engine.world.dequeue_get.claimed_slot
    units = np.frombuffer(log.view(0)[: log.end].tobytes(), fmt.UNIT)
    slots = (units["write_ms"] + units["delta_ms"]) // engine.precision_ms
    near = (slots >= first) & (slots < first + engine.world.prefetch.slot_count)
    plain = units["magic"] & fmt.UNIT_ROLL == 0
    return set(units["message_offset"][near & plain].tolist())


@settings(max_examples=20)
@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=60), st.integers(0, 5_000))
def test_it_meets_what_is_due_soon(
    tmp_path_factory: pytest.TempPathFactory, delays_ms: list[int], pass_ms: int
) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path_factory.mktemp("s"), config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * len(delays_ms), delay_ms=delays_ms)
        clock.advance(pass_ms / 1_000)
        engine = store.core.engine
        with engine.timerlog.reading():
            assert not walk_ahead(engine.world, 1_000_000)
            count = engine.world.prefetch.batch_count
            met = engine.world.prefetch.message[:count].tolist()
            assert len(met) == len(set(met))
            assert set(met) == due_soon(engine)
            walk_ahead(engine.world, 1_000_000)  # nothing is walked twice
            assert engine.world.prefetch.batch_count == 0


def test_it_looks_as_far_ahead_as_the_disk_needs(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * 2_000, delay_ms=np.arange(2_000) * 20 + 2_000)
        engine, counts = store.core.engine, []
        state = engine.world.prefetch
        for bytes_max in (
            PAGE_BYTES,
            1 << 30,
        ):  # first each chain is claimed when it is half walked
            for _ in range(15):
                with acting_as(PREFETCH):
                    state.bytes_max = bytes_max
                with engine.timerlog.reading():
                    walk_ahead(engine.world, 1_000_000)
                clock.advance(1)
                counts.append(int(state.slot_count))
        assert counts[14] > counts[0] > counts[-1] == AHEAD_SLOTS_MIN


def test_it_asks_for_no_more_than_the_memory_holds(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        store.put_many([bytes(PAGE_BYTES)] * 100, delay_ms=np.arange(100) * 20 + 3_000)
        clock.advance(0.5)
        engine = store.core.engine
        with acting_as(PREFETCH):
            engine.world.prefetch.bytes_max = 20 * PAGE_BYTES
        with engine.timerlog.reading():
            assert not walk_ahead(engine.world, 1_000_000)
        assert 5 <= engine.world.prefetch.batch_count <= 20


def forget(log: SegmentedFile) -> None:
    """Have no page of a log in memory."""
    for number in log.numbers:
        file = log.existing(number)
        file.sync()
        release_pages(file.view)
        fd = os.open(file.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def test_it_brings_the_pages(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        store.put_many([bytes(3_000)] * 200, delay_ms=np.arange(200) * 50 + 3_000)
        engine = store.core.engine
        forget(engine.timerlog)
        forget(engine.commitlog)
        places = sorted(due_soon(engine))
        view = engine.commitlog.view(0)
        prefetcher, until_s = Prefetcher(engine), time.monotonic() + 30
        while not all(is_resident(view, at, 3_000) for at in places):
            assert time.monotonic() < until_s
            prefetcher.step()
        clock.advance(20)
        assert len(store.pull("default", group="g", max_count=1_000)) == 200


def test_it_goes_on_in_segments_that_nobody_has_mapped(tmp_path: Path) -> None:
    """Directly after opening, that is all of them."""
    sizes = Tuning(timerlog_segment_bytes=10 * PAGE_BYTES, commitlog_segment_bytes=1 << 20)
    config = timerstore.Config(durability="process", tuning=sizes)
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=config, clock=clock) as store:
        store.put_many([bytes(1_000)] * 4_000, delay_ms=np.arange(4_000) % 3_000 + 2_000)
    with timerstore.open(tmp_path / "s", config=config, clock=clock) as store:
        engine = store.core.engine
        mapped, logs = engine.commitlog.shared_table.number, (engine.timerlog, engine.commitlog)
        for log in logs:  # nothing else is in memory after the machine has begun anew
            for number in log.numbers[:-1]:
                log.retire(number)
        state, prefetcher, messages = engine.world.prefetch, Prefetcher(engine), set[int]()
        for _ in range(30):
            prefetcher.step()
            messages.update(state.message[: state.batch_count].tolist())
        assert len(messages) == 4_000
        last = max(messages) // engine.commitlog.segment_bytes
        assert set(range(last + 1)) <= set(mapped[mapped >= 0].tolist())


@pytest.mark.parametrize("fits", [True, False])
def test_all_units_are_read_once_if_they_fit_into_half_of_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    config = timerstore.Config(durability="process", tuning=Tuning(timerlog_segment_bytes=1 << 16))
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=config, clock=clock) as store:
        count = 8_000
        store.put_many([b"x"] * count, delay_ms=np.arange(count) * 100 + 100_000)
        clock.advance(1)  # then they have their units
        log = store.core.engine.timerlog
        forget(log)
        assert not is_resident(log.existing(1).view, 0, PAGE_BYTES)
        bytes_used = log.end - log.start
        monkeypatch.setattr(prefetch, "available_bytes", lambda: 2 * bytes_used - (not fits))
        prefetcher, until_s = Prefetcher(store.core.engine), time.monotonic() + 30
        views = [log.existing(number).view for number in range(log.end // log.segment_bytes)]
        assert len(views) > 4
        steps = 0
        while steps < 20 or (fits and not all(is_resident(each, 0, len(each)) for each in views)):
            prefetcher.step()
            steps += 1
            assert time.monotonic() < until_s
        assert fits or not any(is_resident(each, 0, len(each)) for each in views)


def test_it_takes_no_map_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_maps(monkeypatch)
    sizes = Tuning(timerlog_segment_bytes=PAGE_BYTES)
    config = timerstore.Config(durability="process", tuning=sizes)
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=config, clock=clock) as store:
        store.put_many([b"x"] * 2_000, delay_ms=np.arange(2_000) + 1_000)
    with timerstore.open(tmp_path / "s", config=config, clock=clock) as store:
        engine = store.core.engine
        mapped, prefetcher = engine.timerlog.shared_table.number, Prefetcher(engine)
        engine.maps.keep()
        count = np.count_nonzero(mapped >= 0)
        while prefetcher.step():  # each chain ends where no map is to be had
            pass
        assert engine.maps.is_used_up
        assert np.count_nonzero(mapped >= 0) == count < len(engine.timerlog.numbers)
        clock.advance(10)
        assert len(store.pull("default", group="g", max_count=2_000)) == 2_000


def test_it_sleeps_while_nothing_is_missing(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        prefetcher = Prefetcher(store.core.engine)
        assert prefetcher.looks()  # nobody knows what is in memory
        state = store.core.engine.world.prefetch
        with acting_as(PREFETCH):
            state.walked_count = 1 << 20
        assert not prefetcher.looks() and state.is_active == 0
        with acting_as(PREFETCH):
            state.missing_count = 1
        assert prefetcher.looks() and state.is_active == 1


def test_what_waits_to_be_fired_says_whether_pages_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for messages side by side at once: a call for each would cost a third of a life."""
    monkeypatch.setattr(prefetch, "_major_faults", lambda: 0)  # a fresh page of the log is one
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", config=CONFIG, clock=clock) as store:
        engine = store.core.engine
        prefetcher, put = Prefetcher(engine), engine.world.dequeue_put
        store.put_many([bytes(100)] * 3_000, delay_ms=1_000)
        assert prefetcher.looks()
        clock.advance(1)
        assert (put.asked_count, put.missing_count) == (3_000, 0)
        assert not prefetcher.looks()
        store.put_many([bytes(100)] * 200, delay_ms=np.arange(200) % 2 + 999)
        forget(engine.commitlog)
        with acting_as(PREFETCH):
            engine.world.prefetch.is_active = 1
        clock.advance(1)
        assert put.asked_count == 3_200
        assert 1 <= put.missing_count < 20
        assert prefetcher.looks()
        assert len(store.pull("default", group="g", max_count=4_000)) == 3_200
