"""Segmented files: crossing, the kernels' table, maps that outlive a drop, cutting, growing."""

import contextlib
import errno
import gc
import itertools
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.full_disks import data_end
from tests.interrupting import Interrupt, interrupted
from tests.kernels import kernel
from tests.watched import StoppedHereError, Watched
from timerstore.errors import CorruptStoreError, NotAStoreError, StoreFullError
from timerstore.jit import host
from timerstore.jit.intrinsics import get_u8
from timerstore.jit.locks import new_lock
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.jit.record import ALONE, acting_as
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.blocks import AHEAD_TICKS, step_bytes
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.folders import FolderShare
from timerstore.timelog.files.memory import MapShare
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import (
    ALL_ZEROED,
    TABLE_LENGTH,
    apron_bytes,
    can_write,
    segment_at,
)

pytestmark = pytest.mark.on_disk

SIZE = 1024

FILES = ("segments.py", "blocks.py", "blocks.py")


@kernel
def _is_allocated(table: Any, offset: int, stop: int) -> bool:
    return can_write(table, offset, stop)


def _byte(table: Any, offset: int) -> int:
    with acting_as(ALONE):
        return _byte_there(table, offset)


@kernel
def _byte_there(table: Any, offset: int) -> int:
    segment = segment_at(table, offset)
    if len(segment) == 0:
        return -1
    return get_u8(segment, offset % table.segment_bytes)


def new(folder: Path, count_max: int = 8, disk: Disk | None = None) -> SegmentedFile:
    return SegmentedFile(disk or Watched(), folder, SIZE, MapShare(count_max))


def filled(folder: Path, disk: Disk | None = None) -> SegmentedFile:
    """Five segments, each filled with its number + 1."""
    log = new(folder, disk=disk)
    for number in range(5):
        log.ensure(number).view[:] = number + 1
    log.end = 4 * SIZE + 10
    return log


@pytest.fixture
def log(tmp_path: Path) -> SegmentedFile:
    return filled(tmp_path / "log")


def test_names() -> None:
    assert segment_name(0) == "0" * 20
    assert segment_name(1 << 30) == "00000000001073741824"


def test_segments_are_listed(log: SegmentedFile) -> None:
    again = new(log.folder)
    assert again.numbers == [0, 1, 2, 3, 4]
    blocks_bytes = [min(SIZE, each.stat().st_blocks * 512) for each in log.folder.iterdir()]
    assert (again.start, again.files_end, again.disk_bytes) == (0, 5 * SIZE, sum(blocks_bytes))
    assert _byte(again.shared_table, 0) == -1  # none is mapped yet
    assert new(log.folder / "none").numbers == []


@pytest.mark.parametrize("name", ["x", "0" * 19, "0" * 21, "0" * 19 + "x", f"{SIZE + 1:020d}"])
def test_what_is_no_segment_is_refused(log: SegmentedFile, name: str) -> None:
    (log.folder / name).write_bytes(b"")
    with pytest.raises(NotAStoreError, match=r"(Move|Open) "):
        new(log.folder)


@given(offset=st.integers(0, 5 * SIZE - 1), count=st.integers(0, 3 * SIZE))
def test_reading_crosses_segments(offset: int, count: int) -> None:
    log = test_reading_crosses_segments.log  # type: ignore[attr-defined]
    count = min(count, 5 * SIZE - offset)
    whole = b"".join(bytes([number + 1]) * SIZE for number in range(5))
    assert log.read(offset, count) == whole[offset : offset + count]
    assert _byte(log.shared_table, offset) == whole[offset]
    view = log.view(offset)
    assert len(view) == SIZE - offset % SIZE
    assert view[0] == whole[offset]


@pytest.fixture(autouse=True, scope="module")
def _shared_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = new(tmp_path_factory.mktemp("shared") / "log")
    for number in range(5):
        log.ensure(number).view[:] = number + 1
    test_reading_crosses_segments.log = log  # type: ignore[attr-defined]


def test_the_table_tells_what_is_mapped(log: SegmentedFile) -> None:
    for offset in (-1, -SIZE, 5 * SIZE, TABLE_LENGTH * SIZE, (TABLE_LENGTH + 1) * SIZE, 1 << 61):
        assert _byte(log.shared_table, offset) == -1
    assert _byte(log.shared_table, 4 * SIZE) == 5
    log.close()
    assert _byte(log.shared_table, 4 * SIZE) == -1


def test_segments_far_apart_share_a_place_in_the_table(tmp_path: Path) -> None:
    log = new(tmp_path / "log")
    log.ensure(3).view[:] = 1
    log.ensure(TABLE_LENGTH + 3).view[:] = 2
    assert _byte(log.shared_table, 3 * SIZE) == -1
    assert _byte(log.shared_table, (TABLE_LENGTH + 3) * SIZE) == 2
    log.end = (TABLE_LENGTH + 3) * SIZE
    log.retire(3)  # the one that is dropped must leave the other's place alone
    assert _byte(log.shared_table, (TABLE_LENGTH + 3) * SIZE) == 2


def test_a_log_without_kernels_has_a_short_table(tmp_path: Path) -> None:
    log = SegmentedFile(Watched(), tmp_path / "q", SIZE, MapShare(2), for_kernels=False)
    for number in range(6):
        log.ensure(number).view[:] = number
        log.end = number * SIZE
        log.maps.keep()
    assert log.shared_table.number.nbytes == 8
    assert log.read(0, 6 * SIZE) == b"".join(bytes([number]) * SIZE for number in range(6))


def test_a_missing_segment_is_damage(log: SegmentedFile) -> None:
    with pytest.raises(CorruptStoreError, match="missing") as caught:
        log.read(4 * SIZE + 1000, 100)
    assert (caught.value.file, caught.value.offset) == ("log", 5 * SIZE)
    with pytest.raises(CorruptStoreError):
        log.existing(-1)
    with pytest.raises(CorruptStoreError):
        log.pin(4 * SIZE, 5 * SIZE + 1)


def test_a_pin_keeps_maps_alive_after_a_drop(log: SegmentedFile) -> None:
    pinned = log.pin(SIZE - 1, 2 * SIZE + 1)
    assert [file.view[0] for file in pinned] == [1, 2, 3]
    view = log.view(100)
    part = view[10:20]
    del view
    for number in range(5):
        log.retire(number)
    gc.collect()
    assert _byte(log.shared_table, 0) == -1
    assert _byte(log.shared_table, 4 * SIZE) == 5  # the one being appended to stays
    assert [file.view[SIZE - 1] for file in pinned] == [1, 2, 3]
    assert part.tolist() == [1] * 10
    assert log.read(0, 1) == b"\x01"  # mapped again
    log.detach_before(3 * SIZE)
    log.remove_detached()
    log.close()
    gc.collect()
    assert [file.view[5] for file in pinned] == [1, 2, 3]
    assert part.tolist() == [1] * 10


def test_pinning_nothing_maps_where_it_stands(log: SegmentedFile) -> None:
    assert len(log.pin(SIZE, SIZE)) == 1
    assert len(log.pin(SIZE, SIZE + 1)) == 1
    assert len(log.pin(SIZE, 2 * SIZE)) == 1
    assert len(log.pin(SIZE, 2 * SIZE + 1)) == 2


def test_readers_keep_what_is_dropped_meanwhile(log: SegmentedFile) -> None:
    address = int(log.shared_table.lent[0])
    with log.reading():
        with log.reading():
            log.detach_before(SIZE)
            log.remove_detached()
        gc.collect()
        raw = (np.ctypeslib.ctypes.c_uint8 * SIZE).from_address(address)  # type: ignore[attr-defined]
        assert bytes(raw) == b"\x01" * SIZE
        ended = log.seal()
        assert len(ended) == 1  # to be let go once no service's step is under way
        log.release(ended)
        assert bytes(raw) == b"\x01" * SIZE  # somebody reads
        held = weakref.ref(ended.pop().held[0].owner)  # type: ignore[attr-defined]
        assert held() is not None
    assert held() is None
    assert log.seal() == []
    assert log.start == SIZE


def test_those_used_last_stay_mapped(log: SegmentedFile) -> None:
    for number in (2, 0):
        log.existing(number)
    disk = log.disk
    assert isinstance(disk, Watched)
    disk.events.clear()
    log.maps.count_max = 2
    log.maps.keep()
    mapped = [number for number in range(5) if _byte(log.shared_table, number * SIZE) > 0]
    assert mapped == [0, 2, 4]
    # What was written must be durable before its descriptor goes.
    assert disk.events == [("sync", segment_name(SIZE)), ("sync", segment_name(3 * SIZE))]


@pytest.mark.parametrize("offset", [0, 1, SIZE - 1, SIZE, 3 * SIZE + 500, 5 * SIZE, 9 * SIZE])
def test_zeroing(log: SegmentedFile, offset: int) -> None:
    log.close()
    disk = log.disk
    assert isinstance(disk, Watched)
    disk.events.clear()
    log.zero_from(offset)
    whole = b"".join(bytes([number + 1]) * SIZE for number in range(5))
    on_disk = b"".join(log.path(number).read_bytes() for number in range(5))
    assert on_disk == whole[:offset].ljust(5 * SIZE, b"\0")
    touched = [segment_name(n * SIZE) for n in range(5) if (n + 1) * SIZE > offset]
    assert disk.events == [("sync", name) for name in touched]


def test_flushing(log: SegmentedFile) -> None:
    disk = log.disk
    assert isinstance(disk, Watched)
    disk.events.clear()
    log.flush(SIZE + 5, 3 * SIZE)
    names = [("sync", segment_name(number * SIZE)) for number in (1, 2)]
    assert disk.events == [*names, ("sync_folder", "log")]
    disk.events.clear()
    log.flush(SIZE, SIZE)
    log.flush(5, 6)
    assert disk.events == [("sync", segment_name(0))]


def test_the_next_segment_is_made_in_time(tmp_path: Path) -> None:
    log = new(tmp_path / "log")
    log.ensure(0)
    log.end = SIZE // 2 - 1
    log.prepare_next()
    assert log.numbers == [0]
    log.end = SIZE // 2
    log.prepare_next()
    log.prepare_next()
    assert log.numbers == [0, 1]


def test_removing(log: SegmentedFile) -> None:
    disk = log.disk
    assert isinstance(disk, Watched)
    disk.events.clear()
    log.detach_before(2 * SIZE + 100)
    log.remove_detached()
    assert log.numbers == [2, 3, 4]
    assert log.start == 2 * SIZE
    assert sorted(os.listdir(log.folder)) == [segment_name(n * SIZE) for n in (2, 3, 4)]
    removes = [name for kind, name in disk.events if kind == "remove"]
    assert removes == [segment_name(0), segment_name(SIZE)]
    assert disk.events[-1] == ("sync_folder", "log")
    with pytest.raises(CorruptStoreError):
        log.view(0)


# --- segments that are used again


def kinds(log: SegmentedFile) -> list[str]:
    disk = log.disk
    assert isinstance(disk, Watched)
    return [kind for kind, _ in disk.events]


@pytest.fixture
def used(log: SegmentedFile) -> SegmentedFile:
    """The five segments, all of this life, of which the first are wanted again."""
    log.reusable_from, log.ahead_max = 0, 9
    assert isinstance(log.disk, Watched)
    log.disk.events.clear()
    log.end = 4 * SIZE + 10
    return log


def forget(log: SegmentedFile, stop: int) -> None:
    log.detach_before(stop)
    log.release(log.seal())
    log.remove_detached()
    assert not log.detached_count


@pytest.mark.linux
def test_the_oldest_become_the_next(used: SegmentedFile) -> None:
    apron = apron_bytes(SIZE)
    content = [used.path(number).read_bytes() for number in (0, 1)]
    forget(used, 2 * SIZE)
    assert kinds(used) == ["allocate", "rename", "sync_folder"] * 2
    assert used.numbers == [2, 3, 4, 5, 6]
    assert sorted(os.listdir(used.folder)) == [segment_name(n * SIZE) for n in used.numbers]
    for number, before in zip((5, 6), content, strict=True):
        assert used.path(number).read_bytes() == bytes(apron) + before[apron:]
        assert _byte(used.shared_table, number * SIZE) == 0
        assert used.shared_table.zeroed[number] == number * SIZE + apron
        assert used.ensure(number).path == used.path(number)
    assert used.reused_count == 2


@pytest.mark.linux
def test_not_a_byte_is_written_before_the_name_is_durable(log: SegmentedFile) -> None:
    """Were the old name to come back, it would be found with what does not belong there."""
    before = log.path(0).read_bytes()
    log.detach_before(SIZE)
    log.release(log.seal())
    log.reusable_from, log.ahead_max = 0, 9
    for stop_at in (0, 1, 2):
        log.disk.events, log.disk.stop_at = [], stop_at  # type: ignore[attr-defined]
        with pytest.raises(StoppedHereError):
            log.remove_detached()
        kept = log.path(0) if stop_at < 2 else log.path(5)
        assert kept.read_bytes() == before
        assert 5 not in log.numbers
    log.disk.stop_at = -1  # type: ignore[attr-defined]
    log.remove_detached()  # what was interrupted is no segment of this log
    assert not log.ensure(5).view.any()


def test_what_is_not_used_again(used: SegmentedFile, tmp_path: Path) -> None:
    """Each for its own reason: the file goes, as it does where nothing is used again."""
    pinned = used.pin(0, 1)
    os.link(used.path(1), tmp_path / "copy")
    share = FolderShare(used.folder)
    forget(used, SIZE)
    del pinned, share
    forget(used, 2 * SIZE)
    used.reusable_from = 3
    forget(used, 3 * SIZE)
    used.ahead_max = 0
    forget(used, 4 * SIZE)
    assert used.numbers == [4] and used.reused_count == 0
    assert os.listdir(used.folder) == [segment_name(4 * SIZE)]


def test_a_map_that_was_dropped_may_still_be_read(used: SegmentedFile) -> None:
    pinned = used.pin(0, 1)
    used.retire(0)
    assert _byte(used.shared_table, 0) == -1
    forget(used, SIZE)
    assert used.numbers == [1, 2, 3, 4]
    assert set(pinned[0].view.tolist()) == {1}


@pytest.mark.linux
def test_a_name_that_is_there_is_not_replaced(used: SegmentedFile) -> None:
    used.path(5).write_bytes(b"foreign")
    forget(used, SIZE)
    assert used.path(5).read_bytes() == b"foreign"
    assert used.numbers == [1, 2, 3, 4]


@pytest.mark.linux
def test_nothing_old_is_left_by_a_clean_close(used: SegmentedFile) -> None:
    forget(used, 2 * SIZE)
    used.end = 5 * SIZE + 50
    used.view(5 * SIZE)[:50] = 9
    used.clear_behind()
    assert used.numbers == [2, 3, 4, 5]
    assert used.path(5).read_bytes() == b"\x09" * 50 + bytes(SIZE - 50)
    assert kinds(used)[-3:] == ["remove", "sync_folder", "sync"]


@pytest.mark.linux
def test_a_clean_close_leaves_no_gap(used: SegmentedFile) -> None:
    forget(used, 2 * SIZE)
    used.end = 5 * SIZE + 50
    used.ensure(7)  # zeros, behind one that was used before
    used.clear_behind()
    assert used.numbers == [2, 3, 4, 5]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


def test_no_room_leaves_the_log_as_it_was(
    log: SegmentedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(StoreFullError):
            log.ensure(5)
    assert log.numbers == [0, 1, 2, 3, 4]
    assert len(os.listdir(log.folder)) == 5
    assert _byte(log.shared_table, 5 * SIZE) == -1
    with monkeypatch.context() as patch:
        patch.setattr(host, "reserve", full)
        with pytest.raises(StoreFullError):
            log.reserve(5 * SIZE, 5 * SIZE + 1)
    assert _byte(log.shared_table, 5 * SIZE) == 0
    assert not _is_allocated(log.shared_table, 5 * SIZE, 5 * SIZE + 1)
    log.reserve(5 * SIZE, 5 * SIZE + 1)
    assert _is_allocated(log.shared_table, 5 * SIZE, 6 * SIZE)


def test_what_has_no_room_to_be_used_again_is_removed(
    used: SegmentedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may have made it sparse, and the disk may be full: going is what makes room."""
    with monkeypatch.context() as patch:
        patch.setattr(host, "reserve", full)
        forget(used, SIZE)
    assert kinds(used) == ["allocate", "remove", "sync_folder"]
    assert used.numbers == [1, 2, 3, 4] and used.reused_count == 0


# --- blocks are allocated ahead of who writes


def check_allocated(log: SegmentedFile, most_bytes: dict[int, int]) -> None:
    """The table says what the maps say, and no file has data behind that.

    `most_bytes`: what was allocated of each segment, also by an earlier life.
    """
    for number, file in log._mapped.items():
        most_bytes[number] = max(most_bytes.get(number, 0), file.allocated_bytes)
        start = number * log.segment_bytes
        assert log.shared_table.allocated[number] == start + file.allocated_bytes
        for stop in (start, start + file.allocated_bytes):
            assert _is_allocated(log.shared_table, start, stop)
        assert not _is_allocated(log.shared_table, start, start + file.allocated_bytes + 1)
        blocks_bytes = -(-most_bytes[number] // PAGE_BYTES) * PAGE_BYTES
        assert data_end(file.path) <= blocks_bytes


@given(
    segment_bytes=st.sampled_from([1_000, 1 << 15, 1 << 19]),
    acts=st.lists(
        st.tuples(st.sampled_from(["write", "write", "tick", "reopen"]), st.integers(1, 60_000)),
        max_size=20,
    ),
)
def test_allocated_ahead(
    tmp_path_factory: pytest.TempPathFactory, segment_bytes: int, acts: list[tuple[str, int]]
) -> None:
    """Who writes asks first; ahead of that little is allocated where little is written."""
    folder = tmp_path_factory.mktemp("ahead")

    def opened() -> SegmentedFile:
        return SegmentedFile(Watched(), folder, segment_bytes)

    log, end, ahead, seen = opened(), 0, step_bytes(segment_bytes), -1
    most_bytes: dict[int, int] = {}
    for act, count in acts:
        if act == "reopen":
            log.close()
            log = opened()
            log.end, ahead, seen = end, step_bytes(segment_bytes), -1
            log.reserve(end, min(end + 24, (end // segment_bytes + 1) * segment_bytes))
        elif act == "tick":
            log.prepare_next()
            written, seen = (end - seen if seen >= 0 else 0), end
            ahead = max(AHEAD_TICKS * written, ahead * 15 // 16, step_bytes(segment_bytes))
            ahead = min(ahead, segment_bytes)
            number = end // segment_bytes
            if _byte(log.shared_table, end) >= 0:
                stop = min(end + ahead // 2, (number + 1) * segment_bytes)
                assert log._room_end(end) >= stop
        else:
            stop = end + count
            needed = log._room_end(end) < stop
            log.make_room(stop)
            assert log._room_end(end) >= stop
            for number in range(end // segment_bytes, (stop - 1) // segment_bytes + 1):
                first = max(end, number * segment_bytes)
                last = min(stop, (number + 1) * segment_bytes)
                assert _is_allocated(log.shared_table, first, last)
                view = log.existing(number).view
                view[first - number * segment_bytes : last - number * segment_bytes] = 7
            room = max(stop, end + ahead) + PAGE_BYTES
            assert not needed or log._room_end(end) <= room
            if needed:
                ahead = min(2 * ahead, segment_bytes)
            end = log.end = stop
        check_allocated(log, most_bytes)
    log.close()


@pytest.mark.parametrize("length", [0, 100, SIZE - 1])
def test_a_flushed_file_is_never_finished(log: SegmentedFile, length: int) -> None:
    os.truncate(log.path(2), length)
    again = new(log.folder)
    assert again.find_lost() is None
    again.flushed_end = 2 * SIZE
    assert again.find_lost() is None
    again.flushed_end += 1
    for lost in (again.find_lost(), again.find_lost(whole=True)):
        assert lost is not None
        assert (lost.file, lost.offset) == ("log", 2 * SIZE + length)
        assert log.path(2).name in str(lost)
    with pytest.raises(CorruptStoreError, match="were flushed"):
        again.ensure(2)
    assert log.path(2).stat().st_size == length
    again.flushed_end, again.end = 0, 3 * SIZE  # what this life has written counts as well
    with pytest.raises(CorruptStoreError, match="were flushed"):
        again.ensure(2)


def test_lost_files_are_told(log: SegmentedFile) -> None:
    log.path(1).unlink()
    os.truncate(log.path(3), 5)
    again = new(log.folder)
    again.flushed_end = 5 * SIZE
    lost = again.find_lost()
    assert lost is not None and (lost.offset, lost.reason) == (SIZE, "this segment is missing")
    empty = new(log.folder / "none")
    assert empty.numbers == [] and empty.find_lost(whole=True) is None


def test_what_is_missing_reads_as_zeros(log: SegmentedFile) -> None:
    log.path(1).unlink()
    again = new(log.folder)
    assert not again.readable(1).view.any()
    with pytest.raises(CorruptStoreError, match="missing"):
        new(log.folder).existing(1)
    assert not log.path(1).exists()
    again.ensure(1).view[0] = 7  # now it is written to: a file
    assert log.path(1).read_bytes()[0] == 7
    again.gaps_are_zeros = True
    log.path(2).unlink()
    again.numbers.remove(2)
    assert not again.existing(2).view.any()


def _detach(log: SegmentedFile) -> None:
    log.detach_before(2 * SIZE)
    log.remove_detached()


ENDED = {
    "retire": lambda log: log.maps.keep(),
    "make": lambda log: log.ensure(7),
    "map again": lambda log: log.existing(1),
    "remove": _detach,
    "let go": lambda log: log.release(log.seal()),
    "drop the last": lambda log: log.drop_last(0, new_lock(), 0),
    "write ahead": lambda log: log.prepare_next(),
}


@pytest.mark.parametrize("act", ENDED)
@pytest.mark.parametrize("reuse", [False, True])
def test_a_signal_may_end_each_call_anywhere(act: str, reuse: bool, tmp_path: Path) -> None:
    """What was ended is done again; kernels then find each segment, and each file is known."""
    for at in itertools.count():
        log = filled(tmp_path / str(at), QuietDisk())
        log.maps.count_max, log.end = 1, 3 * SIZE + 10
        log.reusable_from, log.ahead_max = 0 if reuse else ALL_ZEROED, 9
        log.retire(1)
        with contextlib.suppress(Interrupt), interrupted(at, *FILES) as count:
            ENDED[act](log)
        ENDED[act](log)
        log.release(log.seal())
        log.remove_detached()
        _look_at(log, act)
        if not count.raised:
            break
    assert at > 2


def _look_at(log: SegmentedFile, act: str) -> None:
    """Whatever was ended: each file is known, kernels find each segment, with what stands there."""
    assert log.numbers == sorted(set(log.numbers)) and not log.detached_count
    left = set(os.listdir(log.folder)) - {segment_name(n * SIZE) for n in log.numbers}
    for name in left:  # one behind the last was not removed: it is made anew
        number = int(name) // SIZE
        assert act == "drop the last" and number == log.numbers[-1] + 1
        assert not log.ensure(number).view.any()
    for number in log.numbers[: len(log.numbers) - len(left)]:
        assert log.existing(number).path == log.path(number)
        expected = number + 1 if number < 5 else 0
        assert _byte(log.shared_table, number * SIZE + SIZE - 1) in (expected, 1, 2)
        assert _byte(log.shared_table, number * SIZE) == expected
    log.close()
