"""Trimming: which maps are dropped while a log is written to."""

from pathlib import Path

import pytest

from tests.timelog.test_segments import SIZE, filled
from tests.watched import Watched
from timerstore.timelog.files.segments import SegmentedFile


@pytest.fixture
def log(tmp_path: Path) -> SegmentedFile:
    return filled(tmp_path / "log")


def test_what_an_append_may_reach_takes_no_room_from_what_is_read(log: SegmentedFile) -> None:
    log.end, log.reach_bytes, log.open_count_max = 3 * SIZE, 9 * SIZE, 4
    for number in (*range(4, 9), 2, 0, 1):
        log.ensure(number)
    log.trim()
    mapped = [number for number in range(9) if number in log._mapped]
    assert mapped == [0, 1, 3, 4, 5, 6, 7, 8]


def test_trimming_lets_an_append_go_on_beside_it(log: SegmentedFile) -> None:
    """While one segment is synced the log's end comes to others: they are not forgotten."""
    log.end, log.open_count_max = SIZE, 1
    for number in range(9):
        log.ensure(number)
    disk = log.disk
    assert isinstance(disk, Watched)
    event, written = disk.event, []

    def append(kind: str, path: Path) -> None:
        event(kind, path)
        if kind == "sync" and len(written) < 8:
            written.append(log.end // SIZE)
            log.end += SIZE

    disk.event = append  # type: ignore[method-assign]
    log.trim()
    for number in (*written, log.end // SIZE):
        assert number in log._mapped, f"what was written to {number} is taken for durable"
