"""Mappings without a descriptor: what they show, how long they live, how they are made durable."""

import contextlib
import errno
import gc
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests.small_store import SMALL
from tests.tiers import how_many
from timerstore import StoreFullError
from timerstore.core.readonlycore import PrivateFile
from timerstore.jit import mapping
from timerstore.jit.mapping import map_bytes, sync_mapping
from timerstore.timelog.files.disk import Disk, MappedFile, Zeros

pytestmark = pytest.mark.long


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


LOOKS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda a: a[100:200],
    "plain": lambda a: a.view(np.ndarray),
    "asarray": np.asarray,
    "numbers": lambda a: a[: len(a) // 8 * 8].view(np.int64),
    "rows": lambda a: a[: len(a) // 4 * 4].reshape(-1, 4),
    "memory": memoryview,
    "buffer": lambda a: np.frombuffer(memoryview(a).cast("B"), np.uint8),
    "bytes of": lambda a: a.data,
    "rest": lambda a: a[1:],
}


def opened(file: Path, kind: str) -> MappedFile:
    if kind == "zeros":
        return Zeros(file, 10_000)
    fd = os.open(file, os.O_RDWR)
    try:
        return PrivateFile(file, 10_000, fd) if kind == "private" else MappedFile(file, fd, 10_000)
    finally:
        os.close(fd)


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["mapped", "private", "zeros"])
@settings(max_examples=how_many("MAPPINGS", 8, 20))  # the collector runs in each
@given(looks=st.lists(st.sampled_from(sorted(LOOKS)), min_size=1, max_size=4))
def test_each_array_over_a_map_keeps_it(kind: str, looks: list[str]) -> None:
    """However it was made, NumPy's chain of bases ends at the object that owns the map."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a")
        file.write_bytes(bytes(range(250)) * 40)
        mapped = opened(file, kind)
        owner, look = weakref.ref(mapped.owner), mapped.view
        for each in looks:
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # not each after each
                look = LOOKS[each](look)
        expected = bytes(look)
        del mapped
        assert bytes(look) == expected
        if kind != "zeros":  # whose memory NumPy itself owns
            assert maps_of(file) == 1
        if kind == "mapped":
            assert owner() is not None
        del look
        assert maps_of(file) == 0 and owner() is None


def test_a_disk_s_maps_are_such(tmp_path: Path) -> None:
    path = tmp_path / "b"
    look = Disk().create_mapped(path, 8_192).view[5:].view(np.ndarray)
    assert maps_of(path) == 1
    del look
    assert maps_of(path) == 0


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
    sync_mapping(view)
    with pytest.raises(OSError, match="Invalid") as caught:
        sync_mapping(view[1:])  # not the start of a page
    assert caught.value.errno == errno.EINVAL
    codes = [errno.EINTR, errno.EINTR, 0]

    class Interrupted:
        """Is interrupted twice."""

        @staticmethod
        def msync(address: int, length: int, flags: int) -> int:
            mapping.ctypes.set_errno(codes[0])
            return -1 if codes.pop(0) else 0

    monkeypatch.setattr(mapping, "_LIBC", Interrupted)
    sync_mapping(view)
    assert codes == []


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN])
def test_a_call_that_gets_no_memory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A thread's first call asks for memory; it fails whole, and the next one has it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with timerstore.open(tmp_path, config=SMALL) as store:
        ids = [store.put(b"x", delay=60) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr("timerstore.jit.mapping.mmap.mmap", refuse)
            with pytest.raises(StoreFullError, match="no memory left for a call"):
                store.cancel(ids[0])
        assert store.cancel(ids[0]) and store.count() == 1
