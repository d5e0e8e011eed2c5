"""Blocks are allocated ahead; fewer where there is less room."""

from pathlib import Path

import pytest

from tests.faulty_disk import MeteredDisk
from timerstore.errors import StoreFullError
from timerstore.timelog.files.blocks import step_bytes
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.jit.mapping import PAGE_BYTES


@pytest.mark.parametrize("ticks", [False, True])
def test_a_nearly_full_disk_is_used_up(tmp_path: Path, ticks: bool) -> None:
    """Where there is no room for what is asked for ahead, less is: up to the last page."""
    disk = MeteredDisk(room_bytes=300_000)
    log = SegmentedFile(disk, tmp_path / "log", 1 << 20, open_count_max=9)
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
