"""The groups' counters over a restart: written with a checkpoint, begun anew where damaged."""

import json
from pathlib import Path

import pytest

from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore.calls.consuming.grouptally import TALLY_FILE, GroupTally, TallyFile
from timerstore.timelog.files.disk import Disk


def file_of(path: Path) -> TallyFile:
    return TallyFile(Disk(), path / "config" / TALLY_FILE)


def counted(handled: int) -> GroupTally:
    tally = GroupTally()
    tally.counts.handled = handled
    return tally


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tallies = {("a@b", "g"): counted(3), ("t", "g"): counted(0)}
    tallies["a@b", "g"].full_ns = {"tenant ü": 4_999_999, "": 7_000_000}
    held = {("a@b", "g"): {(0, 7): (2, 5, 9, 4), (1, 3): (1, 5, 5, 0)}, ("t", "g"): {}}
    file_of(tmp_path).write(tallies, held, 4)
    file = file_of(tmp_path)
    found, found_held = file.read()
    assert found_held == {("a@b", "g"): held["a@b", "g"]}
    assert {pair: each.counters(4) for pair, each in found.items()} == {
        ("a@b", "g"): {"handled": 3, "failed": 0, "retried": 0, "dead": 0, "expired": 0}
        | {"turns": {"tenant ü": 4_999_999, "": 7_000_000}}
    }


def test_nothing_is_written_where_nothing_changed(tmp_path: Path) -> None:
    file, path = file_of(tmp_path), tmp_path / "config" / TALLY_FILE
    file.write({("t", "g"): counted(0)}, {}, 0)
    assert not path.exists()
    assert not file.is_due  # too soon, where nobody asks for it
    file.write({("t", "g"): counted(1)}, {}, 0)
    path.unlink()
    file.write({("t", "g"): counted(1)}, {}, 0)
    assert not path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"groups": 7}',
        b'{"groups": {"t@g": {"handled": -1}}}',
        b'{"groups": {"t@g": {"handled": "many"}}}',
        b'{"groups": {"t@g": {"handled": 1}}, "checksum": 5}',
        b'{"groups": {"t@g": {"turns": {"a": -1}}}}',
        b'{"groups": {"t@g": {"turns": {"a": 1.5}}}}',
        b'{"groups": {"t@g": {"turns": [7]}}}',
        b'{"groups": {"t@g": {"turns": 7}}}',
        b'{"heldBack": {"t@g": [[0, 1, 2, 3]]}}',
        b'{"heldBack": {"t@g": [[0, 1, 2, 3, 4, -1]]}}',
        b'{"heldBack": {"t@g": 5}}',
        b"\xff",
    ],
)
def test_a_damaged_file_is_begun_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / TALLY_FILE).write_bytes(content)
    file = file_of(tmp_path)
    assert file.read() == ({}, {}) and "start at 0 again" in caplog.text
    file.write({("t", "g"): counted(2)}, {}, 0)
    assert json.loads((folder / TALLY_FILE).read_bytes())["groups"]["t@g"]["handled"] == 2


def test_a_crash_costs_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    def handled(store: TimerStore) -> list[int]:
        return [row.handled_count for row in store.stats().groups]

    store = TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock())
    store.put_many([b"x"] * 5, topic="t")
    store.pull("t", group="g", max_count=3, timeout=0).ack()
    store.flush()
    store.pull("t", group="g", max_count=1, timeout=0).ack()
    assert handled(store) == [4]
    store.abandon()
    store = TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock())
    assert handled(store) == [3]
    store.pull("t", group="g", max_count=9, timeout=0).ack()  # the one comes again
    store.close()
    with TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock()) as store:
        assert handled(store) == [5]


def test_a_topic_that_is_no_text_can_be_counted(tmp_path: Path) -> None:
    # A broker's topic: what its groups have done is written like that of any other.
    with TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock()) as store:
        store.pull("a\udcff", group="g", timeout=0)
        store.consuming.group("a\udcff", "g").count_failed(1, 0, 0)
        store.core.offsets.set("a\udcff", "g", 0, 0)
    with TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock()) as store:
        (row,) = store.stats().groups
        assert (row.topic, row.failed_count) == ("a\udcff", 1)
        assert "a\\udcff" in str(store.stats())
