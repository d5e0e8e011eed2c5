"""Copying by itself: what is found, what is staged, where it stops for want of a segment."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests import naive
from tests.kernels import kernel
from tests.small_store import SMALL, small
from tests.tiers import how_many
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.locks import lock_if_free, lock_release
from timerstore.jit.record import acting_as
from timerstore.services.cleaning import cleaning
from timerstore.services.pipeline import deliver_levels, dequeue_put
from timerstore.services.pipeline.copying import (
    SOURCE_FOUND,
    SOURCE_UNREADABLE,
    SOURCE_WAIT,
    Counted,
    append_staged,
    count_fired,
    find_destination,
    find_source,
    read_source,
    stage_copy,
    stage_is_full,
    touch_message,
)
from timerstore.services.running.runner import provide
from timerstore.services.world import needs
from timerstore.services.world.state import DEQUEUE_PUT
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.writing.append import STAGE_BYTES
from timerstore.timelog.writing.frame import COPY_EXTRA_BYTES, FIRED, CopySays

START_MS = 1_700_000_000_000
NO_DESTINATION = -9


@kernel
def _stage_one(world: Any, message: int, size: int, cut: int, i: int, at: int) -> int:
    """Stage a timer's copy as dequeue-put does; `cut`: bytes that its topic is read without."""
    thread = world.dequeue_put.thread
    buf = segment_at(world.commitlog, message)
    outcome = find_source(world, thread, buf, message)
    if outcome != 0:
        return outcome
    if not read_source(world, buf, thread.found, message, size):
        return -2
    thread.found.real_topic_bytes -= cut
    row = find_destination(world, thread, buf, message)
    if row < 0:
        return NO_DESTINATION
    says, counts = CopySays(FIRED, message, 20, 30), Counted(row, row, 10, 10)
    return stage_copy(world, buf, thread.found, says, counts, i, at)


@kernel
def _append(world: Any, staged: int, now_ms: int) -> int:
    appended = append_staged(world, world.dequeue_put.thread, staged, now_ms)
    for i in range(appended):
        count_fired(world, world.dequeue_put.counts, i)
    return appended


@kernel
def _is_full(staged: int, staged_bytes: int, size: int) -> bool:
    return stage_is_full(staged, staged_bytes, size)


def scanned(store: timerstore.TimerStore) -> list[naive.Message]:
    store.flush()
    files = (Path(store.path) / "commitlog").iterdir()
    return naive.scan_commit_log({int(path.name): path.read_bytes() for path in files}).messages


@pytest.mark.long
@settings(max_examples=how_many("COPIES", 3, 40))
@given(
    lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=20),
    batch=st.integers(1, 8),
    wrong=st.sampled_from([-1, 1, 53]),
)
def test_copies_are_their_twins_over_all_segments(
    lengths: list[int], batch: int, wrong: int
) -> None:
    clock = timerstore.ManualClock(START_MS)
    with (
        tempfile.TemporaryDirectory() as folder,
        timerstore.open(Path(folder) / "store", config=SMALL, clock=clock) as store,
    ):
        engine, world = store.core.engine, store.core.engine.world
        thread = world.dequeue_put.thread
        for i, length in enumerate(lengths):
            store.put(b"%d" % i * length, topic="topic", delay=timedelta(hours=1))
        sources = scanned(store)
        done = 0
        while done < len(sources):
            at = staged = 0
            for source in sources[done : done + batch]:
                where = source.offset, source.size_bytes
                with acting_as(DEQUEUE_PUT), engine.commitlog.reading():
                    engine.commitlog.readable(source.offset // engine.commitlog.segment_bytes)
                    assert (
                        _stage_one(world, where[0] + wrong, where[1], 0, 0, at) == SOURCE_UNREADABLE
                    )
                    assert (
                        _stage_one(world, where[0], where[1] + wrong, 0, 0, at) == SOURCE_UNREADABLE
                    )
                    assert _stage_one(world, *where, 1, 0, at) == NO_DESTINATION
                    assert (thread.need, thread.need_offset) == (needs.TOPIC, where[0])
                    thread.need = needs.NOTHING
                    assert _stage_one(world, *where, 0, staged, at) == FIRED
                at += int(world.stage.size[staged])
                staged += 1
            with acting_as(DEQUEUE_PUT), engine.commitlog.reading():
                appended = _append(world, staged, START_MS)
            assert (appended < staged) == (thread.need != needs.NOTHING)
            if thread.need:
                assert thread.need in (needs.COMMITLOG_SEGMENT, needs.QUEUE_SEGMENT)
                provide(engine, DEQUEUE_PUT)
            done += appended
        copies = scanned(store)[len(sources) :]
        for source, copy in zip(sources, copies, strict=True):
            twin = naive.fired_copy(source, 20, 30)
            assert (copy.topic, copy.body, copy.queue_id) == (twin.topic, twin.body, twin.queue_id)
            assert copy.properties == twin.properties
        assert store.count() == 0
        assert world.dequeue_put.counts.fired_count == len(sources) == world.lateness.sum()
        assert world.dequeue_put.counts.lateness_max_ms == START_MS - 10


def test_what_is_nowhere(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path, config=SMALL, clock=clock) as store:
        store.put_many([b"x" * 1_000] * 80, topic="t", delay_ms=60_000)
        engine, thread = store.core.engine, store.core.engine.world.dequeue_put.thread
        with acting_as(DEQUEUE_PUT), engine.commitlog.reading():
            for offset in (-1, engine.commitlog.end, 1 << 60):
                assert _stage_one(engine.world, offset, 100, 0, 0, 0) == SOURCE_UNREADABLE
            assert thread.need == needs.NOTHING
            engine.commitlog._unmap(0)
            assert _stage_one(engine.world, 0, 100, 0, 0, 0) == SOURCE_WAIT != SOURCE_FOUND
            assert (thread.need, thread.need_offset) == (needs.COMMITLOG_READ, 0)
        provide(engine, DEQUEUE_PUT)
        size = scanned(store)[0].size_bytes
        with acting_as(DEQUEUE_PUT), engine.commitlog.reading():
            assert _stage_one(engine.world, 0, size, 0, 0, 0) == FIRED


@given(
    staged=st.integers(0, 3),
    staged_bytes=st.integers(0, STAGE_BYTES),
    size=st.integers(0, STAGE_BYTES),
)
def test_a_stage_takes_one_and_then_what_fits(staged: int, staged_bytes: int, size: int) -> None:
    left = STAGE_BYTES - staged_bytes - size - 256 - COPY_EXTRA_BYTES
    assert bool(_is_full(staged, staged_bytes, size)) == (staged != 0 and left < 0)


@pytest.mark.skipif(not INTERPRETED, reason="it counts what the kernel looks at")
def test_pages_are_waited_for_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all who copy: what is read under fire was touched before, while nobody had to wait."""
    touched, read = set[int](), list[tuple[str, int]]()

    def play(name: str, module: Any) -> None:
        def touch(log: Any, message: int, size: int) -> int:
            assert lock_if_free(store.core.engine.world.fire_lock)
            lock_release(store.core.engine.world.fire_lock)
            touched.add(message)
            return touch_message(log, message, size)

        def look(world: Any, buf: Any, found: Any, message: int, size: int) -> bool:
            read.append((name, message))
            assert message in touched
            return read_source(world, buf, found, message, size)

        monkeypatch.setattr(module, "touch_message", touch)
        monkeypatch.setattr(module, "read_source", look)

    for name, module in [("fire", dequeue_put), ("level", deliver_levels), ("clean", cleaning)]:
        play(name, module)
    clock = timerstore.ManualClock(START_MS, force=True)
    config = small(4_096, 200, 520, roll_window_slots=60, wheel_slot_count=1_024)
    with timerstore.TimerStore(tmp_path, config=config, clock=clock, disk=QuietDisk()) as store:
        ids = [store.put(b"%d" % i, delay=timedelta(seconds=500 + i)) for i in range(60)]
        store.cancel_many(ids[::3])
        for i in range(30):
            store.put(b"%d" % i, topic="t", delay_level=1 + i % 2)
        clock.advance(timedelta(seconds=20))
        store.flush()
        touched.clear()  # what was touched long ago may be gone
        while store.core.upkeep.cleaner.step():
            touched.clear()
        assert store.core.engine.world.cleaning.copied_count > 0
        clock.advance(timedelta(seconds=600))
        assert store.count() == 0
    assert {name for name, _ in read} == {"fire", "level", "clean"}
    assert len(read) >= 30 + 40 + 40
