"""The checksums of the wheel's pages: at any moment each page has one of two."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.quiet_disk import QuietDisk
from timerstore import CorruptStoreError
from timerstore.wheel.checksums import PAGE_BYTES, SUMS_FILE, page_sums
from timerstore.wheel.timerwheel import TimerWheel

SLOTS = 64 * 4  # 4 pages


@given(data=st.binary(min_size=1, max_size=3 * PAGE_BYTES))
def test_sums_are_those_of_zlib(data: bytes) -> None:
    sums = page_sums(np.frombuffer(data, np.uint8).copy())
    pages = [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
    assert sums.tolist() == [zlib.crc32(page) for page in pages]


@given(
    spans=st.lists(st.tuples(st.integers(0, 3 * PAGE_BYTES), st.integers(1, 5_000)), max_size=4),
    length=st.integers(1, 3 * PAGE_BYTES),
)
def test_sums_of_what_is_used_are_those_of_all(spans: list[tuple[int, int]], length: int) -> None:
    data, used = np.zeros(length, np.uint8), []
    for start, count in spans:
        data[start : start + count] = 7
        used.append((start, start + count))
    assert page_sums(data, used).tolist() == page_sums(data).tolist()


def opened(path: Path, checkpointed: int = 0) -> TimerWheel:
    wheel = TimerWheel(QuietDisk(), path / "timerwheel", SLOTS)
    wheel.check(is_unknown=False, checkpointed=checkpointed)
    return wheel


def write(wheel: TimerWheel, page: int, byte: int) -> int:
    wheel.array.slots[page * PAGE_BYTES + 7] = byte
    wheel.array.dirty[page] = 1
    return wheel.write(wheel.capture())


def change(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_every_page_is_watched(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    write(wheel, 1, 5)
    write(wheel, 2, 6)
    opened(tmp_path)
    for page in range(len(wheel.array.dirty)):
        change(tmp_path / "timerwheel", page * PAGE_BYTES + 100)
        with pytest.raises(CorruptStoreError, match="checksum") as caught:
            opened(tmp_path)
        assert (caught.value.file, caught.value.offset) == ("timerwheel", page * PAGE_BYTES)
        change(tmp_path / "timerwheel", page * PAGE_BYTES + 100)
    TimerWheel(QuietDisk(), tmp_path / "timerwheel", SLOTS).check(is_unknown=True)


def test_a_write_may_be_cut_off_anywhere(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    write(wheel, 0, 1)
    before, sums_before = (tmp_path / "timerwheel").read_bytes(), wheel.sums.path.read_bytes()
    wheel.array.slots[[7, PAGE_BYTES + 7]] = 9
    wheel.array.dirty[:2] = 1
    wheel.write(wheel.capture())
    after, sums_after = (tmp_path / "timerwheel").read_bytes(), wheel.sums.path.read_bytes()
    mixed = after[:PAGE_BYTES] + before[PAGE_BYTES:]
    torn = sums_after[: len(sums_after) // 3] + sums_before[len(sums_after) // 3 :]
    for content, sums in (
        *((before, sums_after), (mixed, sums_after), (after, sums_after)),
        *((before, sums_before), (before, torn), (before, sums_after[:-5] + sums_before[-5:])),
    ):
        (tmp_path / "timerwheel").write_bytes(content)
        wheel.sums.path.write_bytes(sums)
        opened(tmp_path)


def test_behind_a_checkpoint_no_page_is_as_it_was_before(tmp_path: Path) -> None:
    """A write that a checkpoint followed has ended: an older page, or zeros, is damage."""
    wheel, file = opened(tmp_path), tmp_path / "timerwheel"
    for byte in (1, 2):  # before the first write there were zeros
        before = file.read_bytes()
        number = write(wheel, 1, byte)
        after = file.read_bytes()
        opened(tmp_path, number)
        file.write_bytes(before)
        opened(tmp_path, number - 1)  # a kill may have come in the midst of it
        with pytest.raises(CorruptStoreError, match="checksum"):
            opened(tmp_path, number)
        file.write_bytes(after)
    # Numbers go on from the checkpoint's, which may have been one without a write.
    later = write(opened(tmp_path, number + 5), 2, 3)
    assert later == number + 6
    (file.write_bytes(after), opened(tmp_path, later - 1))
    with pytest.raises(CorruptStoreError, match="checksum"):
        opened(tmp_path, later)


def test_without_sums_the_pages_are_taken_as_they_are(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    write(wheel, 1, 5)
    assert wheel.sums.path == tmp_path / "config" / SUMS_FILE
    wheel.sums.path.unlink()
    change(tmp_path / "timerwheel", 100)
    again = opened(tmp_path)
    write(again, 3, 1)
    opened(tmp_path)


def test_sums_of_which_none_can_be_read_are_damage(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    write(wheel, 1, 5)
    change(wheel.sums.path, wheel.sums.path.stat().st_size - 1)  # the only copy so far
    with pytest.raises(CorruptStoreError, match="checksum"):
        opened(tmp_path)


def test_what_a_broker_changed_is_noted_by_the_next_write(tmp_path: Path) -> None:
    write(opened(tmp_path), 1, 5)
    change(tmp_path / "timerwheel", 3 * PAGE_BYTES + 100)
    wheel = TimerWheel(QuietDisk(), tmp_path / "timerwheel", SLOTS)
    wheel.check(is_unknown=True)
    wheel.write(wheel.capture())  # nothing has changed since
    opened(tmp_path)
    sums = (tmp_path / "config" / SUMS_FILE).read_bytes()
    wheel.write(wheel.capture())
    assert (tmp_path / "config" / SUMS_FILE).read_bytes() == sums
