"""The disk's calls: what they leave, which events they show, what an interrupt leaves."""

import errno
import gc
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timerstore
from tests.watched import StoppedHereError, Watched
from timerstore.errors import FlushFailedError, NotAStoreError, StoreFullError
from timerstore.jit import host
from timerstore.jit.mapping import pages_in_memory
from timerstore.timelog.files import disk as disk_module

pytestmark = pytest.mark.on_disk


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


def test_a_new_segment(tmp_path: Path) -> None:
    disk = Watched()
    file = disk.create_mapped(tmp_path / "a", 10_000)
    assert disk.events == [("create", "a")]
    assert not file.view.any()
    assert len(file.view) == file.length == 10_000
    status = (tmp_path / "a").stat()
    assert status.st_size == 10_000
    assert status.st_blocks == file.allocated_bytes == 0
    assert stat.S_IMODE(status.st_mode) == 0o600
    disk.allocate(file, 4_096)
    disk.allocate(file, 4_000)  # it has that
    assert (tmp_path / "a").stat().st_blocks * 512 == file.allocated_bytes == 4_096
    file.view[:3] = (1, 2, 3)
    disk.sync(file, file.path)
    disk.allocate(file, 10_000)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 10_000 == file.allocated_bytes
    assert (tmp_path / "a").read_bytes() == b"\x01\x02\x03" + bytes(9_997)
    assert disk.events[1:] == [("allocate", "a"), ("sync", "a"), ("allocate", "a")]


def test_a_new_file_takes_nothing_from_who_has_mapped_what_was_there(tmp_path: Path) -> None:
    disk = Watched()
    data = bytes(range(1, 201)) * 50
    (tmp_path / "a").write_bytes(data)
    old = disk.map_existing(tmp_path / "a", 10_000)
    new = disk.create_mapped(tmp_path / "a", 20_000)
    assert old.view.tobytes() == data and not new.view.any()
    assert (tmp_path / "a").stat().st_size == len(new.view) == 20_000


def test_no_room_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Watched()
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(StoreFullError, match="Free some"):
            disk.create_mapped(tmp_path / "a", 4096)
    assert list(tmp_path.iterdir()) == []
    assert open_files() == before


def test_no_room_leaves_a_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Watched()
    file = disk.create_mapped(tmp_path / "a", 1 << 20)
    disk.allocate(file, 8_192)
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(host, "reserve", full)
        with pytest.raises(StoreFullError, match="Free some"):
            disk.allocate(file, 16_384)
    tried: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(host, "reserve", lambda *args: tried.append(args))
        patch.setattr(disk_module, "_free_bytes", lambda fd: 8_191)
        with pytest.raises(StoreFullError, match="Free some"):
            disk.allocate(file, 16_384)
    assert tried == [], "it would have taken what is left"
    assert open_files() == before
    assert (tmp_path / "a").stat().st_blocks * 512 == file.allocated_bytes == 8_192
    disk.allocate(file, 16_384)
    assert (tmp_path / "a").stat().st_blocks * 512 == file.allocated_bytes == 16_384


def test_what_cannot_be_mapped_keeps_no_descriptor(tmp_path: Path) -> None:
    disk, before = Watched(), open_files()
    for _ in range(3):
        with pytest.raises((OSError, ValueError)):
            disk.create_mapped(tmp_path / "a", -1)
    gc.collect()
    assert open_files() == before
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file(tmp_path: Path) -> None:
    disk = Watched()
    data = bytes(range(200)) * 50
    (tmp_path / "a").write_bytes(data)
    file = disk.map_existing(tmp_path / "a", 10_000)
    assert file.view.tobytes() == data
    for wrong in (9_999, 10_001):
        with pytest.raises(NotAStoreError, match="segment sizes"):
            disk.map_existing(tmp_path / "a", wrong)
    with pytest.raises(FileNotFoundError):
        disk.map_existing(tmp_path / "b", 10)


def test_a_hole_is_filled_before_it_is_written_to(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.write(b"head")
        file.truncate(1 << 20)
    mapped = Watched().map_existing(tmp_path / "a", 1 << 20)
    assert mapped.allocated_bytes == 0  # a copy may have made it sparse anywhere
    Watched().allocate(mapped, 1 << 20)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20
    assert mapped.view[:5].tobytes() == b"head\0"


@pytest.mark.parametrize("length", [0, 1, 4096, 9_999])
def test_a_file_that_was_about_to_be_made_is_finished(tmp_path: Path, length: int) -> None:
    (tmp_path / "a").write_bytes(bytes(length))
    file = Watched().map_existing(tmp_path / "a", 10_000)
    assert file.length == (tmp_path / "a").stat().st_size == 10_000
    assert not file.view.any()


def test_a_mapping_keeps_no_descriptor(tmp_path: Path) -> None:
    before = open_files()
    file = Watched().create_mapped(tmp_path / "a", 4096)
    file.view[0] = 7
    other = Watched().map_existing(tmp_path / "a", 4096)
    assert open_files() == before
    Watched().sync(other, other.path)
    assert (tmp_path / "a").read_bytes()[0] == other.view[0] == 7


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_no_descriptor_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    (tmp_path / "a").write_bytes(bytes(4096))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, "too many")

    monkeypatch.setattr(os, "open", refuse)
    for call in (Watched().map_existing, Watched().create_mapped):
        with pytest.raises(StoreFullError, match="ulimit"):
            call(tmp_path / "a", 4096)


@pytest.mark.linux
def test_no_mapping_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(4096))

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Memory mapping file failed: Cannot allocate memory")

    monkeypatch.setattr(pa, "memory_map", refuse)
    before = open_files()
    with pytest.raises(StoreFullError, match="max_map_count"):
        Watched().map_existing(tmp_path / "a", 4096)
    with pytest.raises(StoreFullError, match="max_map_count"):
        Watched().create_mapped(tmp_path / "b", 4096)
    assert open_files() <= before
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.on_disk
def test_mapping_reads_one_page_at_most(tmp_path: Path) -> None:
    """Else after opening what is due first waits for megabytes of each segment."""
    with open(tmp_path / "a", "wb") as written:
        written.write(bytes([1]) * (1 << 20))
        written.flush()
        os.fsync(written.fileno())
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file = Watched().map_existing(tmp_path / "a", 1 << 20)
    time.sleep(0.1)  # a disk has brought by then what it was asked for
    assert pages_in_memory(file.view).sum() <= 1


def test_folders(tmp_path: Path) -> None:
    disk = Watched()
    disk.make_folder(tmp_path / "a" / "b" / "c")
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o700
    assert disk.events[0] == ("mkdir", "c")
    synced = [name for kind, name in disk.events if kind == "sync_folder"]
    assert synced == [tmp_path.name, "a", "b"]
    disk.events.clear()
    disk.make_folder(tmp_path / "a")
    assert disk.events == []
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(NotAStoreError, match="symbolic link"):
        disk.make_folder(tmp_path / "link")


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    disk = Watched()
    with pytest.raises(NotAStoreError, match="symbolic link"):
        disk.open_file(tmp_path / "link")
    with pytest.raises(NotAStoreError):
        disk.create_mapped(tmp_path / "link", 4096)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_bytes() == b"x"


def test_replacing_is_atomic_under_an_interrupt_at_each_event(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    watched = Watched()
    watched.replace(path, b"old" * 100)
    assert [kind for kind, _ in watched.events] == ["replace", "write", "sync", "sync_folder"]
    for stop_at in range(len(watched.events)):
        before = open_files()
        with pytest.raises(StoppedHereError):
            Watched(stop_at).replace(path, b"new!" * 50)
        content = path.read_bytes()
        assert content == (b"new!" * 50 if stop_at == 3 else b"old" * 100)
        assert open_files() == before
        Watched().replace(path, b"old" * 100)  # what was left over is in nobody's way
        assert path.read_bytes() == b"old" * 100
    Watched().replace(path, b"s")
    assert path.read_bytes() == b"s"
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_writing_goes_on_after_a_short_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Watched()
    fd = disk.open_file(tmp_path / "a", create=True)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:7], at))
    data = bytes(range(100))
    disk.write_at(fd, data, 5, tmp_path / "a")
    disk.write_at(fd, np.frombuffer(data, np.uint8), 200, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == bytes(5) + data + bytes(95) + data
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFullError):
        disk.write_at(fd, data, 0, tmp_path / "a")
    os.close(fd)


def test_a_failed_sync_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Watched()
    file = disk.create_mapped(tmp_path / "a", 4096)

    def fails(_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(disk_module, "sync_mapping", fails)
    monkeypatch.setattr(host, "sync_data", fails)
    monkeypatch.setattr(os, "fsync", fails)
    before = open_files()
    with pytest.raises(FlushFailedError, match="open the store again"):
        disk.sync(file, file.path)
    with pytest.raises(FlushFailedError, match="open the store again"):
        disk.sync(0, file.path)
    with pytest.raises(FlushFailedError, match="open the store again"):
        disk.sync_folder(tmp_path)
    assert open_files() == before


def test_removing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    disk = Watched()
    disk.remove(tmp_path / "a")
    disk.remove(tmp_path / "a")
    assert disk.events == [("remove", "a")] * 2
    assert list(tmp_path.iterdir()) == []


def test_where_no_rename_keeps_what_is_there_nothing_gets_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "RENAME", None)
    (tmp_path / "a").touch()
    assert not Watched().rename(tmp_path / "a", tmp_path / "b")
    assert not Watched().take_over(tmp_path / "a", tmp_path / "b")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.whole
@pytest.mark.parametrize("call", ["status_at", "os.unlink", "os.rename", "os.mkdir", "os.open"])
def test_whichever_call_of_a_life_fails_it_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    owner, name = (os, call[3:]) if call.startswith("os.") else (disk_module, call)
    ask, left, number = getattr(owner, name), 0, 0

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))
        return ask(*args, **kwargs)

    while left <= 0:
        number = left = number + 1
        with monkeypatch.context() as patch, suppress(timerstore.TimerStoreError):
            patch.setattr(owner, name, fail)
            with timerstore.open(tmp_path / str(number)) as store:
                store.put(b"body", topic="t")
    assert number > 1, "a life asks for that"
