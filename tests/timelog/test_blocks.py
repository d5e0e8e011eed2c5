"""Blocks are allocated ahead, fewer where there is less room; the page cache has the next ones."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.full_disks import MeteredDisk
from timerstore.errors import StoreFullError
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.timelog.files.blocks import CACHED_BYTES_MAX, step_bytes
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.segments import SegmentedFile


@pytest.mark.parametrize("ticks", [False, True])
def test_a_nearly_full_disk_is_used_up(tmp_path: Path, ticks: bool) -> None:
    """Where there is no room for what is asked for ahead, less is: up to the last page."""
    disk = MeteredDisk(room_bytes=300_000)
    log = SegmentedFile(disk, tmp_path / "log", 1 << 20)
    log._ahead_bytes = 1 << 20  # as after a burst

    def put_until_full() -> None:
        for i in range(1, 1_000):
            log.make_room(1_000 * i)
            log.end = 1_000 * i
            if ticks and i % 10 == 0 and disk.room_bytes > step_bytes(1 << 20):
                log.prepare_next()

    with pytest.raises(StoreFullError):
        put_until_full()
    assert disk.room_bytes < PAGE_BYTES
    assert log.end > 300_000 - 2 * PAGE_BYTES


SEGMENT_BYTES = 8 << 20


class Reading(Disk):
    """Keeps what it was asked to read ahead: file, from, to."""

    def __init__(self) -> None:
        super().__init__()
        self.read = list[tuple[MappedFile, int, int]]()

    def read_ahead(self, file: MappedFile, start: int, stop: int) -> None:
        super().read_ahead(file, start, stop)
        self.read.append((file, start, stop))


@given(st.lists(st.integers(0, CACHED_BYTES_MAX) | st.just(5 << 20), min_size=1, max_size=25))
def test_what_is_written_next_is_read_ahead(writes: list[int]) -> None:
    """Each byte once, in the order of the log, as far as there are blocks, so much in a tick.

    The writer comes to no page that was not read before, unless a tick's write was longer; a
    segment that nothing made yet has no blocks.
    """
    with tempfile.TemporaryDirectory() as folder:
        disk = Reading()
        log = SegmentedFile(disk, Path(folder) / "log", SEGMENT_BYTES)
        seen = 0
        for count in writes:
            log.prepare_next()
            assert len(disk.read) <= 1
            for file, start, stop in disk.read:
                first = int(file.path.name)
                assert 0 < stop - start <= CACHED_BYTES_MAX and stop <= file.allocated_bytes
                assert first + start == max(seen, log.end)
                seen = first + stop
            disk.read.clear()
            assert seen > log.end or 0 in (seen % SEGMENT_BYTES, log.end % SEGMENT_BYTES)
            log.make_room(log.end + count)
            log.end += count
        log.close()
