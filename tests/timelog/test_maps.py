"""Which maps are dropped, and when: beyond a store's share those that were unused the longest."""

import threading
from pathlib import Path

import pytest

from tests.timelog.test_segments import SIZE, filled
from tests.watched import Watched
from timerstore.timelog.files.segments import SegmentedFile


@pytest.fixture
def log(tmp_path: Path) -> SegmentedFile:
    return filled(tmp_path / "log")


def mapped(log: SegmentedFile) -> list[int]:
    return [number for number in range(9) if number in log._mapped]


def test_what_an_append_may_reach_takes_no_room_from_what_is_read(log: SegmentedFile) -> None:
    log.end, log.maps.count_max = 3 * SIZE, 2
    for number in (*range(4, 9), 2, 0, 1):
        log.ensure(number)
        log.maps.keep()
    assert mapped(log) == [0, 1, 3, 4, 5, 6, 7, 8]
    log.end = 6 * SIZE
    log.existing(2)
    log.maps.keep()
    assert mapped(log) == [1, 2, 6, 7, 8]


def test_an_append_goes_on_beside_what_is_dropped(log: SegmentedFile) -> None:
    """While one segment is synced the log's end comes to others: they are not forgotten."""
    for number in range(9):
        log.ensure(number)
    log.end, log.maps.count_max = SIZE, 0
    disk = log.disk
    assert isinstance(disk, Watched)
    event, written = disk.event, []

    def append(kind: str, path: Path) -> None:
        event(kind, path)
        if kind == "sync" and len(written) < 8:
            written.append(log.end // SIZE)
            log.end += SIZE

    disk.event = append  # type: ignore[method-assign]
    log.maps.keep()
    assert written
    for number in (*written, log.end // SIZE):
        assert number in log._mapped, f"what was written to {number} is taken for durable"


@pytest.mark.timeout(60)
def test_nobody_waits_for_a_log_that_another_thread_is_at_work_in(log: SegmentedFile) -> None:
    """Two threads with a log each would wait for each other's. The next call drops what is left."""
    log.maps.count_max = 2
    with log.lock.guard():
        other = threading.Thread(target=log.maps.keep)
        other.start()
        other.join()
    assert mapped(log) == [0, 1, 2, 3, 4]
    log.maps.keep()
    assert mapped(log) == [2, 3, 4]
