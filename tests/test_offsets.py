"""Committed offsets: their file, when several threads write it at once, or a write fails."""

import re
import threading
from pathlib import Path

import pytest

import timerstore
from tests.rigs.together import together
from tests.small_store import SMALL
from tests.watched import StoppedHereError, Watched
from timerstore import CorruptStoreError, ManualClock, verify
from timerstore.core.offsets import AHEAD, ConsumerOffsets
from timerstore.timelog.files.disk import Disk
from timerstore.validation import validate


class Slow(Disk):
    """A disk that lets another thread in before each file is replaced."""

    def event(self, kind: str, path: Path) -> None:
        if kind == "sync":
            threading.Event().wait(0.001)


def test_threads_that_write_at_once_do_not_replace_each_others_file(tmp_path: Path) -> None:
    # Two flushes at once took each other's temporary file away.
    offsets = ConsumerOffsets(Slow(), tmp_path / "consumerOffset.json")

    def work(queue_id: int) -> None:
        for index in range(1, 30):
            offsets.set("topic", "group", queue_id, index)
            offsets.write()

    together(work, range(3))
    again = ConsumerOffsets(Disk(), tmp_path / "consumerOffset.json")
    assert again.table == {"topic@group": {"0": 29, "1": 29, "2": 29}}


def test_a_write_that_failed_is_made_up_for(tmp_path: Path) -> None:
    disk = Watched(stop_at=0)
    offsets = ConsumerOffsets(disk, tmp_path / "consumerOffset.json")
    offsets.set("topic", "group", 0, 7)
    with pytest.raises(StoppedHereError):
        offsets.write()
    disk.stop_at = -1
    offsets.write()
    again = ConsumerOffsets(Disk(), tmp_path / "consumerOffset.json")
    assert again.get("topic", "group", 0) == 7


def test_what_is_ahead_is_kept_until_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    offsets = ConsumerOffsets(Disk(), path)
    assert offsets.is_new("t", "g")
    offsets.add_ahead("t", "g", 0, [(3, 5)])
    offsets.add_ahead("t", "g", 0, [(9, 12), (5, 6)])
    offsets.add_ahead("t@u", "g", 1, [(1, 2)])
    assert not offsets.is_new("t", "g")
    offsets.write()
    again = ConsumerOffsets(Disk(), path)
    assert again.get_ahead("t", "g", 0) == [(3, 6), (9, 12)]
    assert again.get_ahead("t@u", "g", 1) == [(1, 2)] and again.get_ahead("t", "g", 7) == []
    again.set("t", "g", 0, 6)
    again.write()
    again = ConsumerOffsets(Disk(), path)
    assert again.get_ahead("t", "g", 0) == [(9, 12)]
    again.set("t", "g", 0, 12)
    again.set("t@u", "g", 1, 2)
    again.write()
    assert AHEAD not in path.read_text()


def test_another_file_in_its_place_does_not_say_that_nothing_was_done(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    assert not ConsumerOffsets(Disk(), path).table
    for text in ("{}", '{"groups": {}}'):
        path.write_text(text)
        with pytest.raises(CorruptStoreError, match="offsetTable"):
            ConsumerOffsets(Disk(), path)


@pytest.fixture
def read(tmp_path: Path) -> Path:
    """A closed store of which a group has read all."""
    path = tmp_path / "s"
    with timerstore.open(path, config=SMALL, clock=ManualClock()) as store:
        store.put_many([b"x"] * 20, topic="t")
        store.pull("t", group="g", timeout=0).ack()
    return path


def say(path: Path, index: str) -> None:
    """Have the file say another index."""
    file = path / "config" / "consumerOffset.json"
    file.write_text(re.sub(r'("t@g": {\s*"0": )20', rf"\g<1>{index}", file.read_text()))


@pytest.mark.parametrize(
    ("index", "left"), [("-5", 20), ("-1", 20), (str(-(1 << 62)), 20), ("21", 0), ("99", 0)]
)
def test_an_index_outside_of_its_queue_is_corrected_and_named(
    read: Path, index: str, left: int
) -> None:
    say(read, index)
    for report in verify(read), validate(read):
        assert report.ok and f"t@g has committed {index} of queue 0" in str(report)
    with timerstore.open(read, clock=ManualClock(), read_only=True) as store:
        assert store.health()
    with timerstore.open(read, clock=ManualClock()) as store:
        assert store.stats().recovery["corrected_groups"] == ["t@g"]
        assert len(store.pull("t", group="g", timeout=0)) == left
    with timerstore.open(read, clock=ManualClock()) as store:
        assert store.stats().recovery["corrected_groups"] == []
    assert "committed" not in str(verify(read))


@pytest.mark.parametrize(
    "index", [str(1 << 63), str(-(1 << 63)), "true", "1.0", '"3"', "NaN", "null", "[]", "1e400"]
)
def test_what_is_no_index_is_damage(read: Path, index: str) -> None:
    say(read, index)
    for report in verify(read), validate(read):
        assert not report.ok and "no whole number" in str(report)
    for read_only in (True, False):
        with pytest.raises(CorruptStoreError, match=r"consumerOffset.json.*no whole number"):
            timerstore.open(read, clock=ManualClock(), read_only=read_only)
