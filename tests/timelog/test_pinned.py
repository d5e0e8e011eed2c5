"""Pinned segments: kernels find what was asked for, whatever others drop meanwhile."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels import kernel
from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import get_u8
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.segments import PinnedLog, SegmentedFile
from timerstore.timelog.files.segmenttable import segment_at

SIZE = 1024


@kernel
def _byte(table: Any, offset: int) -> int:
    segment = segment_at(table, offset)
    if len(segment) == 0:
        return -1
    return get_u8(segment, offset % table.segment_bytes)


@pytest.fixture
def log(tmp_path: Path) -> SegmentedFile:
    """Five segments, each filled with its number + 1."""
    log = SegmentedFile(Disk(), tmp_path / "log", SIZE)
    for number in range(5):
        log.reserve(number * SIZE, (number + 1) * SIZE)
        log.existing(number).view[:] = number + 1
    log.end = 5 * SIZE
    return log


def found(pinned: PinnedLog) -> list[int]:
    """Which segments its table has."""
    return [number for number in range(5) if _byte(pinned.table, number * SIZE) == number + 1]


def test_what_is_pinned_stays_in_the_table(log: SegmentedFile) -> None:
    pinned = PinnedLog(log)
    pinned.pin(np.array([SIZE, 3 * SIZE + 5]))
    assert found(pinned) == [1, 2, 3]
    for number in range(5):
        log.retire(number)
    log.detach_before(3 * SIZE)
    log.remove_detached()
    log.release(log.seal())
    assert found(pinned) == [1, 2, 3]
    pinned.pin(np.array([4 * SIZE]))
    assert found(pinned) == [4]
    assert pinned.map_from(3 * SIZE) and found(pinned) == [3, 4]
    assert pinned.map_from(4 * SIZE) and found(pinned) == [4]
    assert not pinned.map_from(0) and found(pinned) == []  # it was removed


def test_what_is_missing_is_told(log: SegmentedFile) -> None:
    log.retire(1)
    log.path(1).unlink()
    log.numbers.remove(1)
    with pytest.raises(CorruptStoreError):
        PinnedLog(log).map_from(SIZE)


def test_many_far_apart_map_no_more_than_they_need(log: SegmentedFile) -> None:
    pinned = PinnedLog(log)
    pinned.pin(np.array([0, 4 * SIZE]))
    assert found(pinned) == [0, 4]
