"""`config/delayOffset.json`: as we write it, as a broker does, damaged."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.errors import CorruptStoreError
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import LevelOffsetFile, TimerCheckpoint
from timerstore.timelog.files.disk import Disk


def checkpoint(offsets: list[int]) -> TimerCheckpoint:
    """A checkpoint of these offsets."""
    return TimerCheckpoint(level_offsets=offsets, sequence=3, state_timestamp=4)


class CountingDisk(QuietDisk):
    """Counts the files that are replaced."""

    count = 0

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a file."""
        self.count += 1
        super().replace(path, data)


@given(
    st.lists(st.integers(0, 1 << 60), min_size=fmt.LEVEL_COUNT_MAX, max_size=fmt.LEVEL_COUNT_MAX)
)
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, offsets: list[int]) -> (
    None
):  # fmt: skip
    path = tmp_path_factory.mktemp("file") / "delayOffset.json"
    LevelOffsetFile(path).write(QuietDisk(), checkpoint(offsets))
    assert LevelOffsetFile(path).read() == offsets


def test_it_is_written_where_an_offset_has_changed(tmp_path: Path) -> None:
    disk, file = CountingDisk(), LevelOffsetFile(tmp_path / "delayOffset.json")
    zeros = [0] * fmt.LEVEL_COUNT_MAX
    file.write(disk, checkpoint(zeros))
    assert disk.count == 0 and file.read() == zeros  # a store without levels has no such file
    moved = [0, 5, *zeros[2:]]
    for _ in range(2):
        file.write(disk, checkpoint(moved))
        assert disk.count == 1
    file.write(disk, checkpoint(zeros))
    assert disk.count == 2 and file.read() == zeros


def test_a_brokers_file_is_read(tmp_path: Path) -> None:
    """Its writer leaves keys unquoted; levels that we cannot have are left out."""
    path = tmp_path / "delayOffset.json"
    path.write_text('{"dataVersion":{"counter":1},"offsetTable":{3:1200,1:7\n,99:4,0:8}}')
    assert LevelOffsetFile(path).read()[:4] == [7, 0, 1200, 0]


@pytest.mark.parametrize("table", [[1], {"a": 1}, {"1": "x"}, {"1": None}, 5])
def test_a_damaged_table_is_told(tmp_path: Path, table: object) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text(json.dumps({"offsetTable": table}))
    with pytest.raises(CorruptStoreError, match=r"delayOffset\.json"):
        LevelOffsetFile(path).read()


def test_a_changed_digit_is_told(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    LevelOffsetFile(path).write(Disk(), checkpoint([1200] + [0] * (fmt.LEVEL_COUNT_MAX - 1)))
    path.write_text(path.read_text().replace("1200", "1201"))
    with pytest.raises(CorruptStoreError, match=r"delayOffset\.json"):
        LevelOffsetFile(path).read()
