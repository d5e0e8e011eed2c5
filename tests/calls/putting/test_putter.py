"""Putting: a `put_many` that fails half-way says what it put."""

import pickle
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from timerstore import Config, FlushFailedError, ManualClock, StoreFullError, TimerStore, Tuning
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import MappedFile

START_MS = 1_800_000_000_000
MINUTE = timedelta(minutes=1)
CONFIG = Config(
    delay_levels="1s 1m",
    tuning=Tuning(
        commitlog_segment_bytes=4 << 10,
        consumequeue_segment_bytes=2_000,
        wheel_slot_count=128,
        roll_window_slots=40,
    ),
)


class SmallDisk(QuietDisk):
    """Has room for so many more segments of the commit log."""

    room = 1 << 30
    broken = False

    def create_mapped(self, path: Path, length: int) -> MappedFile:
        if path.parent.name == "commitlog":
            self.room -= 1
            if self.room < 0:
                raise StoreFullError("The disk is full. Make room.")
        return super().create_mapped(path, length)

    def sync(self, file: MappedFile | int, path: Path) -> None:
        if self.broken:
            raise FlushFailedError(f"{path}: the disk is broken.")
        super().sync(file, path)


WAYS: list[Any] = [{"delay_ms": 60_000}, {"delay_level": 2}, {"delay_ms": 0}]


@pytest.mark.parametrize("how", WAYS, ids=["ahead", "level", "now"])
@pytest.mark.parametrize("room", [0, 1, 3])
def test_what_was_put_before_the_disk_was_full_is_named(
    tmp_path: Path, how: dict[str, Any], room: int
) -> None:
    disk, clock = SmallDisk(), ManualClock(START_MS)
    bodies = [b"%06d" % i + bytes(900) for i in range(40)]
    with TimerStore(tmp_path / "s", clock=clock, config=CONFIG, disk=disk) as store:
        disk.room = room
        with pytest.raises(StoreFullError) as failed:
            store.put_many(bodies, topic="t", **how)
        disk.room = 1 << 30
        ids = failed.value.ids
        assert 0 < len(ids) < len(bodies)
        assert list(pickle.loads(pickle.dumps(failed.value)).ids) == list(ids)
        if how != WAYS[2]:
            assert sorted(timer.id for timer in store.pending()) == sorted(ids)
            assert [store.get(id).body for id in ids] == bodies[: len(ids)]  # type: ignore[union-attr]
            assert store.cancel(ids[0]) and store.cancel_many(ids[1:3]).all()
        rest = store.put_many(bodies[len(ids) :], topic="t", **how)
        clock.advance(MINUTE)
        got = {d.id: d.body for d in store.consume("t", timeout=0)}
        wanted = dict(zip([*ids, *rest], bodies, strict=True))
        if how != WAYS[2]:
            for id in ids[:3]:
                del wanted[id]
        assert got == wanted


def test_nothing_that_was_not_put_is_named(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", clock=ManualClock(START_MS)) as store:
        engine = store.core.engine
        engine.config = replace(engine.config, max_bytes=1)
        with pytest.raises(StoreFullError) as failed:
            store.put_many([b"a", b"b"])
        assert list(failed.value.ids) == [] and store.count() == 0


def test_a_failed_flush_names_what_is_in_the_log(tmp_path: Path) -> None:
    """And each error names what its own call put, though it is one failure that ends the store."""
    disk, clock = SmallDisk(), ManualClock(START_MS)
    store = TimerStore(tmp_path / "s", clock=clock, config=CONFIG, disk=disk)
    disk.broken = True
    with pytest.raises(FlushFailedError) as failed:
        store.put_many([b"a", b"b"], delay_ms=np.array([5_000, 6_000]))
    ids = failed.value.ids
    assert len(ids) == 2
    with pytest.raises(FlushFailedError) as again:
        store.put_many([b"c"], delay_ms=5_000)
    assert list(again.value.ids) == []
    with pytest.raises(FlushFailedError):
        store.close()
    with timerstore.open(tmp_path / "s", clock=clock, config=CONFIG) as store:
        assert [timer.id for timer in store.pending()] == list(ids)
