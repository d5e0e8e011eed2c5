"""Opening to look at: every answer is that of a real opening, while no byte changes."""

import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.rigs.tablerows import rows_in
from tests.small_store import few_maps
from tests.sparse_copy import copy_tree
from timerstore.core.readonlycore import PrivateDisk
from timerstore.errors import NotAStoreError
from timerstore.timelog.files import reader_end as reader_end_module
from timerstore.timelog.files.checkpoint import Sizes
from timerstore.timelog.files.reader_end import Steady
from timerstore.timelog.files.smallfile import At
from timerstore.timelog.reading.reader import StoreReader

START_MS = 1_700_000_000_000
SMALL = timerstore.Config(
    retention_ms=3_600_000,
    tuning=timerstore.Tuning(
        commitlog_segment_bytes=8_192, consumequeue_segment_bytes=400, timerlog_segment_bytes=1_040
    ),
)


def filled(path: Path) -> tuple[timerstore.TimerStore, timerstore.ManualClock]:
    clock = timerstore.ManualClock(START_MS)
    store = timerstore.open(path, config=SMALL, clock=clock)
    ids = store.put_many(
        [b"%d" % i for i in range(60)], topic="t", delay_ms=range(0, 60_000, 1_000)
    )
    store.put(b"far", topic="u", delay=timedelta(days=30), key="k")
    clock.advance(timedelta(seconds=20))
    store.flush()
    store.cancel_many(ids[30:35])
    store.put(b"behind the checkpoint", topic="t", delay=timedelta(minutes=9))
    return store, clock


def content(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def answers(store: timerstore.TimerStore) -> object:
    timers = list(store.pending())
    assert all(store.get(timer.id) == timer for timer in timers)
    horizon = store.horizon(5_000)
    return (
        timers,
        store.count(),
        store.count("t"),
        horizon.start_ms.tolist(),
        horizon.count.tolist(),
    )


@pytest.mark.parametrize("end", ["closed", "killed", "in use"])
def test_it_answers_as_a_real_opening_and_changes_nothing(tmp_path: Path, end: str) -> None:
    store, clock = filled(tmp_path / "store")
    if end == "closed":
        store.close()
    elif end == "killed":
        store.abandon()
    before = content(tmp_path / "store")
    copy = copy_tree(tmp_path / "store", tmp_path / "copy")
    (copy / "lock").unlink()
    with timerstore.open(tmp_path / "store", read_only=True, config=SMALL, clock=clock) as looking:
        seen = answers(looking)
        assert looking.stats().pending_count == looking.count()
    assert content(tmp_path / "store") == before
    with timerstore.open(copy, config=SMALL, clock=clock) as real:
        assert answers(real) == seen
    if end == "in use":
        assert answers(store) == seen
        store.close()


def test_what_is_overdue_is_pending(tmp_path: Path) -> None:
    store, clock = filled(tmp_path / "store")
    store.close()
    clock.advance(timedelta(days=60))
    with timerstore.open(tmp_path / "store", read_only=True, clock=clock) as looking:
        assert looking.count("u") == 1
        assert {timer.body for timer in looking.pending(topic="u")} == {b"far"}


def test_a_folder_without_write_permission_is_enough(tmp_path: Path) -> None:
    store, clock = filled(tmp_path / "store")
    store.close()
    every = [tmp_path / "store", *(tmp_path / "store").rglob("*")]
    for each in every:
        os.chmod(each, 0o500 if each.is_dir() else 0o400)
    with timerstore.open(tmp_path / "store", read_only=True, clock=clock) as looking:
        assert looking.count() > 0
    for each in every:
        os.chmod(each, 0o700 if each.is_dir() else 0o600)


def test_there_must_be_a_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAStoreError, match="folder of a store"):
            timerstore.open(path, read_only=True)
        assert list(tmp_path.iterdir()) == []


def test_more_segments_than_stay_mapped_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What recovery changes in a private map must not go when the map does."""
    few_maps(monkeypatch)
    config = timerstore.Config(
        durability="process",
        retention_ms=3_600_000,
        tuning=timerstore.Tuning(
            commitlog_segment_bytes=8_192,
            consumequeue_segment_bytes=400,
            timerlog_segment_bytes=1_040,
        ),
    )
    clock = timerstore.ManualClock(START_MS)
    store = timerstore.open(tmp_path / "store", config=config, clock=clock)
    store.put_many([b"early" * 9] * 300, topic="t", delay_ms=range(0, 300_000, 1_000))
    store.flush()
    ids = store.put_many([b"late" * 9] * 300, topic="u", delay_ms=range(0, 300_000, 1_000))
    clock.advance(timedelta(seconds=100))  # units, copies behind the checkpoint
    store.cancel_many(ids[150:200])
    expected = answers(store)
    with timerstore.open(
        tmp_path / "store",
        read_only=True,
        config=config,
        clock=timerstore.ManualClock(clock.now_ms),
    ) as view:
        assert view.core.findings.relinked_count > 0 and not view.core.findings.rebuilt
        assert answers(view) == expected
    store.close()


def test_it_answers_though_all_files_are_removed_meanwhile(tmp_path: Path) -> None:
    store, clock = filled(tmp_path / "store")
    expected = answers(store)
    now = timerstore.ManualClock(clock.now_ms)
    with timerstore.open(tmp_path / "store", read_only=True, config=SMALL, clock=now) as view:
        reader = StoreReader(tmp_path / "store", np.array([1_000], np.int64))
        before = [rows_in(rows) for rows in reader.scan()]
        reader.commitlog.unmap()
        copy_tree(tmp_path / "store", tmp_path / "copy")
        for file in (tmp_path / "store").rglob("*"):
            if file.is_file() and file.name != "lock":
                file.unlink()
        assert answers(view) == expected
        after = [rows_in(rows) for rows in reader.scan()]
        assert after == before
        assert reader.commitlog.used_end() == store.core.engine.commitlog.end
    store.abandon()


def test_checkpoints_between_do_not_confuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer goes on, and makes a checkpoint, after each step of an opening."""
    store, clock = filled(tmp_path / "store")
    keep, pending = PrivateDisk.keep, list[set[str]]()

    def busy(disk: PrivateDisk, path: Path, sizes: Sizes) -> bool:
        none_between = keep(disk, path, sizes)
        pending.append({timer.id for timer in store.pending()})
        store.put_many([b"more" * 20] * 30, topic="t", delay_ms=range(500, 30_500, 1_000))
        clock.advance(timedelta(seconds=5))
        store.flush()
        return none_between

    monkeypatch.setattr(PrivateDisk, "keep", busy)
    now = timerstore.ManualClock(clock.now_ms)
    with timerstore.open(tmp_path / "store", read_only=True, config=SMALL, clock=now) as view:
        assert len(pending) == 2 and not view.core.findings.rebuilt
        timers = {timer.id for timer in view.pending()}
        assert len(timers) == view.count()
        assert pending[1] <= timers, "what was put before the end was fixed"
    store.close()


def test_cleaning_beside_an_opening_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of the timer log is removed between two looks, and what was made behind the first."""
    clock = timerstore.ManualClock(START_MS)
    store = timerstore.open(tmp_path / "store", config=SMALL, clock=clock)
    log, looks = store.core.engine.timerlog, list[int]()

    def go_on() -> None:
        store.put_many([b"more" * 20] * 30, topic="t", delay_ms=range(500, 30_500, 1_000))
        clock.advance(timedelta(seconds=20))
        store.flush()

    def steady(path: Path, at: At) -> Steady:
        found, last = Steady(path, at), log.numbers[-1]
        looks.append(last)
        for _ in range(20 if len(looks) < 3 else 0):
            go_on()
        assert log.numbers[0] > last + 1 or len(looks) == 3
        return found

    go_on()
    monkeypatch.setattr(reader_end_module, "Steady", steady)
    now = timerstore.ManualClock(clock.now_ms)
    with timerstore.open(tmp_path / "store", read_only=True, config=SMALL, clock=now) as view:
        assert len(looks) == 3 and not view.core.findings.rebuilt and "damaged" not in caplog.text
        assert {timer.id for timer in view.pending()} == {timer.id for timer in store.pending()}
    store.close()
