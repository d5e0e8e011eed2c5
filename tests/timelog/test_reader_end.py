"""What a reader sees of a store that changes while it looks."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.files import reader_end
from timerstore.timelog.files.reader_end import Steady, WheelCopy, list_segments
from timerstore.timelog.files.smallfile import At, by_path

pytestmark = pytest.mark.on_disk


def small_store(path: Path) -> Path:
    (path / "config").mkdir(parents=True)
    (path / "config" / "timercheck").write_bytes(b"first" * 800)
    (path / "timerstore.json").write_text("{}")
    (path / "abort").write_text("1")
    (path / "timerwheel").write_bytes(b"\1" * 4_096)
    return path


def test_what_was_read_stays_though_the_files_change(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store")
    found = Steady(path, by_path)
    assert found.is_open and found.holds()
    (path / "config" / "timercheck").write_bytes(b"other" * 800)
    (path / "config" / "new.json").write_text("{}")
    (path / "timerstore.json").unlink()
    assert not found.holds()
    assert found.read(path / "config" / "timercheck") == b"first" * 800
    assert found.read(path / "timerstore.json") == b"{}"
    assert found.read(path / "config" / "new.json") is None
    assert os.pread(found.wheel.fd, 5_000, 0) == b"\1" * 4_096


def test_the_lock_is_never_opened(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store")
    (path / "lock").touch(mode=0)  # whoever closes it in its process lets the lock go
    assert path / "lock" not in Steady(path, by_path)._files


def test_a_checkpoint_that_comes_meanwhile_is_looked_at_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copied = small_store(tmp_path / "store"), []

    class Slow(WheelCopy):
        def __init__(self, wheel: Path, at: At) -> None:
            super().__init__(wheel, at)
            copied.append(wheel)
            if len(copied) < 3:  # the writer is done with its next checkpoint
                wheel.write_bytes(bytes([len(copied) + 1]) * 4_096)
                (path / "config" / "timercheck").write_bytes(b"%d" % len(copied) * 4_096)

    monkeypatch.setattr(reader_end, "WheelCopy", Slow)
    found = Steady(path, by_path)
    assert len(copied) == 3 and found.holds()
    assert found.checkpoint_data == b"2" * 4_096
    assert os.pread(found.wheel.fd, 1, 0) == b"\3"


def test_a_copy_of_the_wheel_keeps_its_holes(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    with open(path, "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"used")
    copy = WheelCopy(path, by_path)
    assert copy.length == 1 << 20
    assert os.pread(copy.fd, 1 << 20, 0) == path.read_bytes()
    assert os.fstat(copy.fd).st_blocks * 512 < 1 << 18
    assert WheelCopy(tmp_path / "none", by_path).fd == -1


@given(
    st.integers(0, 5),
    st.integers(0, 12),
    st.lists(st.sampled_from(["make", "remove", "list"]), max_size=40),
    st.randoms(use_true_random=False),
)
def test_a_folder_that_changes_while_it_is_listed_shows_no_gap(
    start: int, count: int, steps: list[str], chance: object
) -> None:
    """Names are listed in any order, while segments are made at the end, removed at the start."""
    there = list(range(start, start + count))
    before, steps = set(there), [*steps]

    def list_now() -> list[int]:
        seen = []
        for number in chance.sample(range(30), 30):  # type: ignore[attr-defined]
            if number in there:
                seen.append(number)
            if steps:
                step = steps.pop()
                if step == "make" and there and there[-1] < 29:
                    there.append(there[-1] + 1)
                elif step == "remove" and len(there) > 1:
                    there.pop(0)
        return seen

    found = list_segments(list_now, lambda number: number in there)
    assert found == list(range(found[0], found[0] + len(found))) if found else True
    assert before.intersection(there).issubset(found), "what was there all the time"


def test_a_gap_that_stays_is_one() -> None:
    there = {1, 2, 5, 6}
    assert list_segments(lambda: list(there), there.__contains__) == [1, 2, 5, 6]
