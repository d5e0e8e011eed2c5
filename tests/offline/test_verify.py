"""Verifying: sound stores are sound, also RocketMQ's; what a kill tears is a warning."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests import table_stores
from tests.sparse_copy import copy_tree
from tests.table_stores import SECOND, eventful
from timerstore import ManualClock, verify
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import validate

pytestmark = pytest.mark.on_disk

SMALL = replace(table_stores.SMALL, retention_ms=5_000)
TIMER_QUEUE = "consumequeue/rmq_sys_wheel_timer/0"


def live(path: Path) -> tuple[timerstore.TimerStore, ManualClock]:
    """A store that much happened to, which retention has gone over."""
    last = {"body": b"other", "key": "k", "topic": "second"}
    store, clock = eventful(path, SMALL, delay=2 * SECOND, **last)
    store.pull("default", timeout=0, max_count=5).ack()
    return store, clock


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "closed"
    live(path)[0].close()
    return path


@pytest.fixture
def store_path(closed: Path, tmp_path: Path) -> Path:
    return copy_tree(closed, tmp_path / "s")


class Bytes:
    """All bytes of one folder of segments, to look at and to change."""

    def __init__(self, path: Path, folder: str) -> None:
        self.files = sorted((path / folder).iterdir())
        self.size = self.files[0].stat().st_size
        self.start = int(self.files[0].name)
        self.data = b"".join(file.read_bytes() for file in self.files)

    def write(self, offset: int, data: bytes) -> None:
        number, position = divmod(offset - self.start, self.size)
        with open(self.files[number], "r+b") as file:
            file.seek(position)
            file.write(data)

    def flip(self, offset: int, bit: int = 1) -> None:
        self.write(offset, bytes([self.data[offset - self.start] ^ bit]))


def messages(path: Path) -> list[int]:
    """Offsets of the messages, read without the code under test."""
    log = Bytes(path, "commitlog")
    found, at = [], 0
    while at < len(log.data):
        size, magic = (int.from_bytes(log.data[at + i : at + i + 4], "big") for i in (0, 4))
        if magic == fmt.BLANK_MAGIC:
            at += size
        elif magic == fmt.MESSAGE_MAGIC:
            found.append(log.start + at)
            at += size
        else:
            break
    return found


# --- what is sound


def test_closed_store_is_sound(closed: Path) -> None:
    report = verify(closed)
    assert report.ok and not report.warnings, str(report)
    assert report.message_count == len(messages(closed))
    assert report.entry_count == report.message_count
    assert report.unit_count > 30
    assert report.slot_count > 5
    assert not report.was_open and not report.by_broker
    assert report.bytes_count > 10_000
    assert "no damage" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True
    with timerstore.open(closed, config=SMALL, clock=ManualClock(1_800_000_006_000)) as store:
        assert report.pending_count == store.count()


@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden_stores_are_sound(name: str, golden_unpacked: Callable[[str], Path]) -> None:
    report = verify(golden_unpacked(name))
    assert report.ok and not report.warnings, str(report)
    assert report.by_broker
    assert report.was_open == (name == "crashed")


def test_nothing_is_changed(closed: Path, tmp_path: Path) -> None:
    path = copy_tree(closed, tmp_path / "s")
    before = {file: (file.read_bytes(), file.stat()) for file in path.rglob("*") if file.is_file()}
    verify(path)
    after = {file: (file.read_bytes(), file.stat()) for file in path.rglob("*") if file.is_file()}
    assert {file: content for file, (content, _) in after.items()} == {
        file: content for file, (content, _) in before.items()
    }
    for file, (_, status) in before.items():
        assert after[file][1].st_mtime_ns == status.st_mtime_ns
        assert after[file][1].st_blocks == status.st_blocks, "a hole was filled"


def test_read_only_files_do(closed: Path, tmp_path: Path) -> None:
    path = copy_tree(closed, tmp_path / "s")
    for file in path.rglob("*"):
        os.chmod(file, 0o500 if file.is_dir() else 0o400)
    assert verify(path).ok
    for file in path.rglob("*"):
        os.chmod(file, 0o700 if file.is_dir() else 0o600)


@pytest.mark.parametrize("flushed", [False, True])
def test_killed_store_is_sound(tmp_path: Path, flushed: bool) -> None:
    store, clock = live(tmp_path / "s")
    if flushed:
        store.flush()
        store.put_many([b"behind"] * 20, delay_ms=list(range(0, 10_000, 500)))
        clock.advance(3 * SECOND)
    expected = store.count()
    store.abandon()
    report = verify(tmp_path / "s")
    assert report.ok and report.was_open, str(report)
    assert report.pending_count == expected
    assert "abort exists" in str(report)


def test_open_store_is_flagged(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    with store:
        assert verify(tmp_path / "s").was_open
    assert not verify(tmp_path / "s").was_open


def test_store_without_its_start_is_sound(tmp_path: Path) -> None:
    store, clock = live(tmp_path / "s")
    clock.advance(60 * SECOND)
    for topic in ("default", "second"):
        while len(batch := store.pull(topic, timeout=0)):
            batch.ack()
    store.put(b"pending", delay=50 * SECOND)
    clock.advance(10 * SECOND)
    store.put(b"pending too", delay=50 * SECOND)
    store.flush()
    store.flush()  # its checkpoint says that the timer log may begin later
    assert store.core.engine.commitlog.start > 0
    assert store.core.engine.timerlog.start > 0
    store.close()
    report = verify(tmp_path / "s")
    assert report.ok and not report.warnings, str(report)
    assert report.pending_count == 2


def test_torn_tail_is_a_warning(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    store.flush()
    store.put(b"torn", delay=SECOND)
    store.abandon()
    last = messages(tmp_path / "s")[-1]
    Bytes(tmp_path / "s", "commitlog").flip(last + 90)
    report = verify(tmp_path / "s")
    assert report.ok, str(report)
    assert any((w.file, w.offset) == ("commitlog", last) for w in report.warnings)
    found = validate(tmp_path / "s", upto="end")
    assert found.ok and not found.failures and found["message_sound"].mended == 1
    assert "1 place that the next opening mends" in str(found)
    assert validate(tmp_path / "s")["message_sound"].mended == 0  # up to its checkpoint
    with timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock(1_800_000_006_000)):
        pass
    assert verify(tmp_path / "s").ok


def test_the_same_damage_is_torn_behind_what_was_flushed_and_wrong_before(tmp_path: Path) -> None:
    store, clock = live(tmp_path / "s")
    store.flush()
    before = (messages(tmp_path / "s")[-1], units(tmp_path / "s")[-1])
    store.put_many([b"behind"] * 20, delay_ms=list(range(0, 10_000, 500)))
    clock.advance(2 * SECOND)
    store.abandon()
    behind = (messages(tmp_path / "s")[-1], units(tmp_path / "s")[-1])
    assert behind[0] > before[0] and behind[1] > before[1]
    queue = Bytes(tmp_path / "s", TIMER_QUEUE)
    offsets = np.frombuffer(queue.data, fmt.QUEUE_ENTRY)["offset"]
    for places, is_ok in ((behind, True), (before, False)):
        earlier = np.flatnonzero((offsets > 0) & (offsets < places[0]))[-1]
        entry = queue.start + int(earlier) * fmt.ENTRY_BYTES
        path = copy_tree(tmp_path / "s", tmp_path / str(is_ok))
        Bytes(path, "commitlog").flip(places[0] + 90)
        Bytes(path, "timerlog").flip(places[1] + 9)
        Bytes(path, TIMER_QUEUE).flip(entry + 9)
        report, found = verify(path), validate(path, upto="end")
        assert report.ok == found.ok == is_ok, str(report)
        named = {(each.file, each.offset) for each in report.warnings if is_ok}
        named |= {(each.file, each.offset) for each in report.problems if not is_ok}
        expected = {("commitlog", places[0]), ("timerlog", places[1])}
        assert named >= expected | {(TIMER_QUEUE, entry)}, str(report)
        for rule in ("message_sound", "unit_sound", "entry"):
            assert (found[rule].mended > 0, found[rule].failed > 0) == (is_ok, not is_ok), rule


def test_cursors_that_are_gone_are_damage_unless_nothing_was_put(tmp_path: Path) -> None:
    for count in (0, 5):
        path = tmp_path / str(count)
        store = timerstore.open(path, config=SMALL, clock=ManualClock())
        store.put_many([b"x"] * count, delay_ms=1_000)
        store.abandon()
        (path / "config" / "timercheck").unlink()
        report = verify(path)
        places = report.problems if count else report.warnings
        assert report.ok == (count == 0), str(report)
        assert ("config/timercheck", 0) in [(each.file, each.offset) for each in places]


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(timerstore.NotAStoreError, match="Pass the folder of a store"):
        verify(tmp_path)


# --- faults: single ones are in `tests/validation/test_rules.py`


def test_all_damaged_messages_are_found(store_path: Path) -> None:
    damaged = messages(store_path)[3:40:6]
    for offset in damaged:
        Bytes(store_path, "commitlog").flip(offset + 95)
    report = verify(store_path)
    found = [problem.offset for problem in report.problems if problem.file == "commitlog"]
    assert found == damaged, str(report)


def units(path: Path) -> list[int]:
    log = Bytes(path, "timerlog")
    size = fmt.UNIT_BYTES.to_bytes(4, "big")
    return [
        log.start + at
        for base in range(0, len(log.data), log.size)
        for at in range(base, base + log.size - 67, fmt.UNIT_BYTES)
        if log.data[at : at + 4] == size
    ]


def test_hops_behind_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    """A kill forgets them; no message was appended for them."""
    config = replace(SMALL, wheel_slot_count=128, roll_window_slots=6, flush_interval_ms=1_000_000)
    clock = ManualClock()
    store = timerstore.open(tmp_path / "s", config=config, clock=clock)
    store.put_many([b"far"] * 10, delay_ms=30_000)
    store.flush()
    clock.advance(14 * SECOND)
    store.abandon()
    with timerstore.open(tmp_path / "s", config=config, clock=ManualClock(clock.now_ms)) as again:
        assert again.core.findings.copies_count == 0
        again.core.play_now()
        assert again.stats().rolled_count > 0
    report = verify(tmp_path / "s")
    assert report.ok and not report.warnings, str(report)
    assert report.pending_count == 10


# --- faults in RocketMQ's stores


@pytest.mark.parametrize("name", ["pending", "crashed"])
def test_faults_in_a_golden_store(name: str, golden: Callable[[str], Path]) -> None:
    path = golden(name)
    offset = messages(path)[1_000]
    body_at = offset + 88
    Bytes(path, "commitlog").flip(body_at)
    Bytes(path, TIMER_QUEUE).flip(100 * fmt.ENTRY_BYTES + 7)
    Bytes(path, "timerlog").flip(units(path)[300] + 8)
    report = verify(path)
    assert ("commitlog", offset) in {(each.file, each.offset) for each in report.problems}
    # Of a broker that was killed nobody knows what it had flushed: it rebuilds its indexes.
    found = {(each.file, each.offset) for each in (*report.problems, *report.warnings)}
    assert (TIMER_QUEUE, 100 * fmt.ENTRY_BYTES) in found
    assert ("timerlog", units(path)[300]) in found
    assert {problem.file for problem in report.problems} >= (
        {"commitlog"} if name == "crashed" else {"commitlog", TIMER_QUEUE, "timerlog"}
    )


def test_random_flips_are_found(store_path: Path) -> None:
    """One bit anywhere in the logs, the wheel's used slots or the cursors: never overlooked."""
    rng = np.random.default_rng(7)
    folders = ["commitlog", "timerlog", TIMER_QUEUE, "consumequeue/default/0"]
    for _ in range(30):
        folder = Bytes(store_path, folders[int(rng.integers(len(folders)))])
        at = int(rng.integers(len(folder.data)))
        folder.flip(at, 1 << int(rng.integers(8)))
        report = verify(store_path)
        assert not report.ok, f"{folder.files[0].parent} at {at}"
        folder.write(at, folder.data[at : at + 1])
    assert verify(store_path).ok
