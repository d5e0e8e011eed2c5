"""Cutting a log: what a crash has undone does not come back."""

from pathlib import Path

import pytest

from tests.timelog.test_segments import SIZE, filled
from tests.watched import Watched
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import ALL_ZEROED


@pytest.fixture
def log(tmp_path: Path) -> SegmentedFile:
    return filled(tmp_path / "log")


def test_cutting_removes_what_lies_behind(log: SegmentedFile) -> None:
    log.ensure(5)  # zeros, as one that was made ahead; alone it would lie behind a gap
    log.cut_from(2 * SIZE + 10)
    assert log.numbers == [0, 1, 2]
    assert log.path(2).read_bytes() == b"\x03" * 10 + bytes(SIZE - 10)
    log.distrust(2 * SIZE + 10)
    assert log.shared_table.zeroed[[1, 2]].tolist() == [ALL_ZEROED, 2 * SIZE + 10]


def test_cutting_leaves_what_was_made_ahead(log: SegmentedFile) -> None:
    log.ensure(5)
    disk = log.disk
    assert isinstance(disk, Watched)
    disk.events.clear()
    log.cut_from(4 * SIZE + 10)
    synced = [name for event, name in disk.events if event == "sync"]
    assert synced == [segment_name(4 * SIZE)]  # and not the one that was never written
    assert log.numbers == [0, 1, 2, 3, 4, 5]
    log.distrust(4 * SIZE + 10)
    assert log.shared_table.zeroed[[4, 5]].tolist() == [4 * SIZE + 10, 5 * SIZE]
