"""Cancelling what lies ahead: over segments, with a full disk, beside what may have been taken."""

from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.full_disks import FullDisk
from timerstore.errors import StoreFullError

START_MS = 1_700_000_000_000
SMALL = timerstore.Config(
    tuning=timerstore.Tuning(
        commitlog_segment_bytes=4_096, consumequeue_segment_bytes=200, timerlog_segment_bytes=520
    )
)


def drain(store: timerstore.TimerStore) -> set[bytes]:
    return {delivery.body for delivery in store.consume("t", timeout=0)}


def test_a_full_disk_leaves_a_prefix_cancelled_and_the_rest_pending(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    store = timerstore.open(tmp_path / "store", config=SMALL, clock=clock)
    disk = FullDisk()
    for file in (store.core.engine.commitlog, *store.core.engine.queues.files):
        file.disk = disk
    ids = store.put_many([b"%d" % i for i in range(44)], topic="t", delay_ms=60_000)
    disk.full = True
    with pytest.raises(StoreFullError):
        store.cancel_many(ids)
    left = store.count("t")
    assert 0 < left < 44
    disk.full = False
    clock.advance(timedelta(minutes=2))
    assert drain(store) == {b"%d" % i for i in range(44 - left, 44)}
    store.close()
