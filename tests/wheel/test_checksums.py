"""The checksums of the wheel's pages, as a clean close left them."""

import zlib
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.checkpoint import WHEEL_FILE, Stamp
from timerstore.wheel.timerwheel import PAGE_BYTES, TimerWheel, page_sums

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


STAMP = Stamp(7, 3, 4_096)


def closed(path: Path) -> TimerWheel:
    """A wheel with slots in two of its four pages, as a clean close leaves it."""
    (path / "config").mkdir()
    wheel = TimerWheel(QuietDisk(), path / "timerwheel", SLOTS)
    for page in (1, 2):
        wheel.array.slots[page * PAGE_BYTES + 7] = page
        wheel.array.dirty[page] = 1
    wheel.write()
    wheel.leave(STAMP)
    return wheel


def damaged(path: Path, stamp: Stamp = STAMP) -> int | None:
    return TimerWheel(QuietDisk(), path / "timerwheel", SLOTS).find_damaged(stamp)


def change(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_every_page_is_watched(tmp_path: Path) -> None:
    pages = len(closed(tmp_path).array.dirty)
    assert pages == 4 and damaged(tmp_path) == -1
    for page in range(pages):
        change(tmp_path / "timerwheel", page * PAGE_BYTES + 100)
        assert damaged(tmp_path) == page * PAGE_BYTES
        change(tmp_path / "timerwheel", page * PAGE_BYTES + 100)


def test_nobody_knows_without_the_sums_of_that_close(tmp_path: Path) -> None:
    wheel, sums = closed(tmp_path), tmp_path / WHEEL_FILE
    assert damaged(tmp_path, STAMP._replace(sequence=4)) is None
    wheel.close()
    (tmp_path / "other" / "config").mkdir(parents=True)
    other = TimerWheel(QuietDisk(), tmp_path / "other" / "timerwheel", 2 * SLOTS)
    (tmp_path / "other" / WHEEL_FILE).write_bytes(sums.read_bytes())
    assert other.find_damaged(STAMP) is None  # as many pages as it has not
    change(sums, len(sums.read_bytes()) - 1)
    assert damaged(tmp_path) is None
    sums.write_bytes(b"TMSUMS01" + bytes(100))  # as it was written before
    assert damaged(tmp_path) is None
    sums.unlink()
    assert damaged(tmp_path) is None


def test_slots_are_emptied(tmp_path: Path) -> None:
    wheel = closed(tmp_path)
    wheel.clear()
    assert not wheel.array.slots.any() and not wheel.array.latest.any()
    assert np.flatnonzero(wheel.array.dirty).tolist() == [1, 2]
    wheel.write()
    assert not any((tmp_path / "timerwheel").read_bytes())
