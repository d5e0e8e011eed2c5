"""Mappings without a descriptor: what they show, how long they live, how they are made durable."""

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from timerstore.timelog import mapping
from timerstore.timelog.mapping import map_bytes, sync_mapping


def maps_of(path: Path) -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(250)) * 40)
    return path


@pytest.mark.parametrize("private", [False, True])
def test_a_mapping_lives_as_long_as_a_view_of_it(file: Path, private: bool) -> None:
    fd = os.open(file, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    view = map_bytes(fd, 9_000, private=private)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    assert view.tobytes() == file.read_bytes()[:9_000]
    assert view.flags.writeable == private
    part = view[5_000:5_010].view(np.ndarray)
    del view
    assert maps_of(file) == 1
    assert part.tolist() == [(5_000 + i) % 250 for i in range(10)]
    del part
    assert maps_of(file) == 0


def test_private_changes_stay_in_memory(file: Path) -> None:
    before, fd = file.read_bytes(), os.open(file, os.O_RDONLY)
    view = map_bytes(fd, 10_000, private=True)
    view[:] = 7
    os.close(fd)
    assert file.read_bytes() == before
    assert view.all()


def test_zeros_without_a_file() -> None:
    view = map_bytes(-1, 5_000, private=True)
    assert not view.any()
    view[4_999] = 1


def test_what_cannot_be_mapped(file: Path) -> None:
    with pytest.raises(OSError, match="Bad file") as caught:
        map_bytes(10_000, 4_096, private=False)
    assert caught.value.errno == errno.EBADF


def test_syncing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(file, os.O_RDONLY)
    view = map_bytes(fd, 10_000, private=False)
    os.close(fd)
    address = view.ctypes.data
    sync_mapping(address, 10_000)
    with pytest.raises(OSError, match="Invalid") as caught:
        sync_mapping(address + 1, 10_000)  # not the start of a page
    assert caught.value.errno == errno.EINVAL
    codes = [errno.EINTR, errno.EINTR, 0]

    class Interrupted:
        """Is interrupted twice."""

        @staticmethod
        def msync(address: int, length: int, flags: int) -> int:
            mapping.ctypes.set_errno(codes[0])
            return -1 if codes.pop(0) else 0

    monkeypatch.setattr(mapping, "_LIBC", Interrupted)
    sync_mapping(address, 10_000)
    assert codes == []
