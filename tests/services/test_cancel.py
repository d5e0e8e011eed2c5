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


def test_deletes_cross_segments_of_every_log(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "store", config=SMALL, clock=clock) as store:
        ids = store.put_many([b"%d" % i for i in range(300)], topic="t", delay_ms=60_000)
        assert store.cancel_many(ids[::2]).all()
        assert store.cancel_many(ids[::2]).all()  # asked again: still True, nothing is appended
        assert store.count("t") == 150
        clock.advance(timedelta(minutes=2))
        assert drain(store) == {b"%d" % i for i in range(1, 300, 2)}
        assert not store.cancel_many(ids).any()


@pytest.mark.slow
def test_what_may_have_been_taken_is_looked_for(tmp_path: Path) -> None:
    """Among timers that lie ahead are some that are due now, and one that was fired."""
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path / "store", clock=clock) as store:
        fired = store.put(b"fired", topic="t", delay=timedelta(seconds=1))
        clock.advance(timedelta(seconds=2))
        ahead = store.put_many([b"a", b"b", b"c"], topic="t", delay_ms=[5_000, 6_000, 7_000])
        other = store.put(b"d", topic="u", delay=timedelta(days=9))
        clock.advance(timedelta(seconds=1))
        found = store.cancel_many([ahead[0], fired, other, ahead[2], ahead[0]])
        assert found.tolist() == [True, False, True, True, True]
        clock.advance(timedelta(days=10))
        assert drain(store) == {b"fired", b"b"}
        assert store.count() == 0


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
