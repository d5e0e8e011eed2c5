"""What stands in for a call that only one system has does the same."""

import os
from pathlib import Path

import pytest

from timerstore.jit import host


@pytest.mark.parametrize("start", [0, 1, 5_000])
@pytest.mark.parametrize("length", [1, 4_096, 100_000])
@pytest.mark.parametrize("size", [0, 20_000, 200_000])
def test_reserving_takes_all_blocks_and_changes_no_byte(
    tmp_path: Path, start: int, length: int, size: int
) -> None:
    path = tmp_path / "file"
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(10_001)
        file.write(b"content" if size else b"")
    before = path.read_bytes()
    fd = os.open(path, os.O_RDWR)
    try:
        host.reserve(fd, start, length)
        if os.fstat(fd).st_size > start + length:
            os.ftruncate(fd, start + length)
        os.fsync(fd)
        status = os.fstat(fd)
        assert status.st_blocks * 512 >= length
        after = path.read_bytes()
    finally:
        os.close(fd)
    assert len(after) == start + length
    assert after == before[: start + length].ljust(start + length, b"\0")
