"""A reader of a store that somebody writes: what it lists goes together."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.small_store import SMALL
from timerstore import TimerStore
from timerstore.core import readonlycore
from timerstore.core.readonlycore import ReadOnlyCore
from timerstore.timelog.files import reader_end as reader_end_module
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.files.reader_end import Steady
from timerstore.timelog.files.smallfile import At, open_at
from timerstore.timelog.reading import reader as reader_module
from timerstore.timelog.reading.reader import ReadSegments, StoreReader


def open_as_it_seems(path: Path) -> Path:
    """A store that says it is open."""
    TimerStore(path, config=SMALL).close()
    (path / "abort").touch()
    return path


def first_bytes(path: Path) -> list[int]:
    """What a reader sees of two segments."""
    reader = StoreReader(path, np.zeros(0, np.int64))
    return [int(reader.commitlog.map(number)[0]) for number in (1, 2)]


def first_bytes_read_only(path: Path) -> list[int]:
    """The same of one that opens the store to look at it."""
    core = ReadOnlyCore(path, Disk(), None)
    core.lock(create=False)
    core._look()
    size = SMALL.commitlog_segment_bytes
    paths = [path / "commitlog" / segment_name(number * size) for number in (1, 2)]
    return [int(core._disk.map_existing(each, size).view[0]) for each in paths]


def numbers(path: Path) -> list[int]:
    """The commit log's segments that a reader sees."""
    return StoreReader(path, np.zeros(0, np.int64)).commitlog.numbers


def numbers_read_only(path: Path) -> list[int]:
    """The same of one that opens the store to look at it."""
    core = ReadOnlyCore(path, Disk(), None)
    core.lock(create=False)
    core._look()
    names = core._disk.names(path / "commitlog")
    return [int(name) // SMALL.commitlog_segment_bytes for name in names]


@pytest.mark.parametrize("look", [numbers, numbers_read_only])
@pytest.mark.whole
def test_segments_that_came_and_went_between_two_looks_are_looked_for_again(
    look: Callable[[Path], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint may need what was made, and removed, behind the first look."""
    path = open_as_it_seems(tmp_path / "s")
    log, size, made = path / "commitlog", SMALL.commitlog_segment_bytes, list[int]()
    last = max(int(each.name) for each in log.iterdir()) // size

    def steady(path: Path, at: At) -> Steady:
        found = Steady(path, at)
        if len(made) < 6:
            for each in log.iterdir():
                each.unlink()
            made.append(last + 2 * len(made) + 2)
            (log / segment_name(made[-1] * size)).write_bytes(bytes(size))
        return found

    monkeypatch.setattr(reader_end_module, "Steady", steady)
    assert look(path) == [last + 12]
    assert len(made) == 6


@pytest.mark.parametrize("look", [numbers, numbers_read_only])
@pytest.mark.whole
def test_segments_that_go_while_they_are_mapped_leave_no_gap(
    look: Callable[[Path], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes the first two, when only the first one is mapped."""
    path = open_as_it_seems(tmp_path / "s")
    log, size = path / "commitlog", SMALL.commitlog_segment_bytes
    paths = [log / segment_name(number * size) for number in range(5)]
    for each in paths:
        each.write_bytes(bytes(size))

    def open_and_remove(path: Path, at: At) -> int:
        fd = open_at(path, at)
        if path == paths[0]:
            for each in paths[:2]:
                each.unlink()
        return fd

    for module in (reader_module, readonlycore):
        monkeypatch.setattr(module, "open_at", open_and_remove)
    assert look(path) == [2, 3, 4]


@pytest.mark.parametrize("look", [first_bytes, first_bytes_read_only])
@pytest.mark.whole
def test_a_segment_that_was_made_again_between_two_looks_is_mapped_anew(
    look: Callable[[Path], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may be closed and opened again meanwhile, which removes what was used before."""
    path = open_as_it_seems(tmp_path / "s")
    size = SMALL.commitlog_segment_bytes
    for number in (1, 2):
        (path / "commitlog" / segment_name(number * size)).write_bytes(bytes(size))

    def steady(path: Path, at: At) -> Steady:
        last = path / "commitlog" / segment_name(2 * size)
        last.unlink()
        last.write_bytes(b"\7" * size)
        (path / "commitlog" / segment_name(size)).unlink()
        return Steady(path, at)

    monkeypatch.setattr(reader_end_module, "Steady", steady)
    assert look(path) == [0, 7], "what was removed is kept as it was"


@pytest.mark.whole
def test_a_gap_that_stays_is_a_fault(tmp_path: Path) -> None:
    path = open_as_it_seems(tmp_path / "s")
    size = SMALL.commitlog_segment_bytes
    (path / "commitlog" / segment_name(9 * size)).write_bytes(bytes(size))
    reader = StoreReader(path, np.zeros(0, np.int64))
    assert [fault.reason for fault in reader.commitlog.faults] == [
        "segments are missing from this offset on"
    ]


@pytest.mark.whole
def test_a_segment_that_was_being_made_when_it_was_listed_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = open_as_it_seems(tmp_path / "s")
    log, size = path / "timerlog", SMALL.timerlog_segment_bytes
    last = log / segment_name((max(int(each.name) for each in log.iterdir()) // size + 1) * size)
    last.touch()
    used_end = ReadSegments.used_end

    def filled_meanwhile(self: ReadSegments) -> int:
        if self.folder == log:
            last.write_bytes(b"\1" * size)
        return used_end(self)

    monkeypatch.setattr(ReadSegments, "used_end", filled_meanwhile)
    assert not StoreReader(path, np.zeros(0, np.int64)).timerlog.faults
    monkeypatch.undo()
    last.write_bytes(b"\1" * (size - 1))
    assert StoreReader(path, np.zeros(0, np.int64)).timerlog.faults
