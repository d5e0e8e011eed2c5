"""Verifying: sound stores are sound, also RocketMQ's; each planted fault is found at its offset."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests import table_stores
from tests.sparse_copy import copy_tree
from tests.table_stores import SECOND, eventful
from timerstore import ManualClock, Report, verify
from timerstore.timelog.format import (
    BLANK_MAGIC,
    ENTRY_BYTES,
    MESSAGE_MAGIC,
    SLOT,
    SLOT_BYTES,
    UNIT,
    UNIT_BYTES,
)

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
        if magic == BLANK_MAGIC:
            at += size
        elif magic == MESSAGE_MAGIC:
            found.append(log.start + at)
            at += size
        else:
            break
    return found


def expect(report: Report, file: str, offset: int, words: str = "") -> None:
    __tracebackhide__ = True
    assert not report.ok
    found = [p for p in report.problems if (p.file, p.offset) == (file, offset)]
    assert found, str(report)
    assert any(words in problem.reason for problem in found), str(report)


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
    with timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock(1_800_000_006_000)):
        pass
    assert verify(tmp_path / "s").ok


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(timerstore.NotAStoreError, match="Pass a store's directory"):
        verify(tmp_path)


# --- faults in the commit log


@pytest.mark.parametrize("field_at", [0, 4, 8, 12, 20, 28, 40, 56, 84, 88, 92])
@pytest.mark.parametrize("which", [0, 20, -1])
def test_fault_in_a_message(store_path: Path, field_at: int, which: int) -> None:
    offset = messages(store_path)[which]
    log = Bytes(store_path, "commitlog")
    log.flip(offset + field_at, 0x10)
    expect(verify(store_path), "commitlog", offset)


def test_all_damaged_messages_are_found(store_path: Path) -> None:
    damaged = messages(store_path)[3:40:6]
    for offset in damaged:
        Bytes(store_path, "commitlog").flip(offset + 95)
    report = verify(store_path)
    found = [problem.offset for problem in report.problems if problem.file == "commitlog"]
    assert found == damaged, str(report)


def test_lost_checksum(store_path: Path) -> None:
    first, second = messages(store_path)[7:9]
    Bytes(store_path, "commitlog").flip(second - 19)
    expect(verify(store_path), "commitlog", first, "checksum")


def test_zeroed_page(store_path: Path) -> None:
    offsets = messages(store_path)
    Bytes(store_path, "commitlog").write(offsets[5], bytes(offsets[8] - offsets[5]))
    lost = f"{offsets[8] - offsets[5]} bytes"
    expect(verify(store_path), "commitlog", offsets[5], lost)


def test_byte_behind_a_blank(store_path: Path) -> None:
    Bytes(store_path, "commitlog").flip(4_096 - 3)
    expect(verify(store_path), "commitlog", 4_096 - 3, "not empty")


def test_byte_behind_the_end(store_path: Path) -> None:
    log = Bytes(store_path, "commitlog")
    at = len(log.data) - 5
    log.flip(at)
    expect(verify(store_path), "commitlog", at)


def test_cut_end(store_path: Path) -> None:
    offset = messages(store_path)[-1]
    log = Bytes(store_path, "commitlog")
    log.write(offset, bytes(len(log.data) - offset))
    expect(verify(store_path), "commitlog", offset, "was flushed")


def test_missing_segment(store_path: Path) -> None:
    (store_path / "commitlog" / f"{4_096:020d}").unlink()
    expect(verify(store_path), "commitlog", 4_096, "missing")


def test_short_segment(store_path: Path) -> None:
    os.truncate(store_path / "commitlog" / f"{4_096:020d}", 3_000)
    expect(verify(store_path), "commitlog", 4_096 + 3_000, "3000 bytes")


def test_foreign_file(store_path: Path) -> None:
    (store_path / "timerlog" / "notes.txt").write_text("hello")
    expect(verify(store_path), "timerlog", 0, "notes.txt")


# --- faults in the consume queues


@pytest.mark.parametrize("index", [0, 13, 30])
@pytest.mark.parametrize("at", [3, 9, 15])
def test_fault_in_an_entry(store_path: Path, index: int, at: int) -> None:
    offset = index * ENTRY_BYTES
    Bytes(store_path, TIMER_QUEUE).flip(offset + at)
    expect(verify(store_path), TIMER_QUEUE, offset)


def test_entry_behind_the_end(store_path: Path) -> None:
    queue = Bytes(store_path, TIMER_QUEUE)
    at = len(queue.data.rstrip(b"\0")) // ENTRY_BYTES * ENTRY_BYTES + 2 * ENTRY_BYTES + 7
    assert at < len(queue.data)
    queue.flip(at)
    expect(verify(store_path), TIMER_QUEUE, at, "no message")


def test_missing_queue(store_path: Path) -> None:
    shutil.rmtree(store_path / "consumequeue" / "second")
    expect(verify(store_path), "consumequeue/second/0", 0)


# --- faults in the timer log


def units(path: Path) -> list[int]:
    log = Bytes(path, "timerlog")
    size = UNIT_BYTES.to_bytes(4, "big")
    return [
        log.start + at
        for base in range(0, len(log.data), log.size)
        for at in range(base, base + log.size - 67, UNIT_BYTES)
        if log.data[at : at + 4] == size
    ]


@pytest.mark.parametrize("name", UNIT.names or ())
@pytest.mark.parametrize("which", [0, 25, -1])
def test_fault_in_a_unit(store_path: Path, name: str, which: int) -> None:
    offset = units(store_path)[which]
    fields = UNIT.fields
    assert fields is not None
    kind, at = fields[name][:2]
    Bytes(store_path, "timerlog").flip(offset + int(at) + kind.itemsize - 1)
    expect(verify(store_path), "timerlog", offset)


def test_fault_in_a_timerlog_blank(store_path: Path) -> None:
    Bytes(store_path, "timerlog").flip(520 - 40)
    expect(verify(store_path), "timerlog", 520 - 40, "not closed")


def test_unit_that_no_slot_leads_to(store_path: Path) -> None:
    wheel = np.memmap(store_path / "timerwheel", SLOT, "r+")
    index = int(np.argmax(wheel["time"]))  # a slot that lies ahead
    last = int(wheel[index]["last"])
    wheel[index] = np.zeros(1, SLOT)[0]
    wheel.flush()
    expect(verify(store_path), "timerlog", last, "would not fire")


# --- faults in the wheel


@pytest.mark.parametrize("name", ["time", "first", "last", "magic"])
def test_fault_in_a_slot(store_path: Path, name: str) -> None:
    wheel = np.memmap(store_path / "timerwheel", SLOT, "r+")
    index = int(np.argmax(wheel["time"]))
    wheel[index][name] ^= 1
    wheel.flush()
    report = verify(store_path)
    assert not report.ok
    places = {p.offset // SLOT_BYTES for p in report.problems if p.file == "timerwheel"}
    assert places == {index}, str(report)


def test_slots_count_is_an_estimate(store_path: Path) -> None:
    wheel = np.memmap(store_path / "timerwheel", SLOT, "r+")
    index = int(np.argmax(wheel["time"]))
    wheel[index]["count"] += 1
    wheel.flush()
    report = verify(store_path)
    assert report.ok
    (warning,) = report.warnings
    assert (warning.file, warning.offset) == ("timerwheel", index * SLOT_BYTES)


def test_rolls_that_recovery_passes_over_are_sound(tmp_path: Path) -> None:
    """Copied before a kill, behind the checkpoint: their units wait in R's slot, and are done."""
    config = replace(SMALL, wheel_slot_count=128, roll_window_slots=6, flush_interval_ms=1_000_000)
    clock = ManualClock()
    store = timerstore.open(tmp_path / "s", config=config, clock=clock)
    store.put_many([b"far"] * 10, delay_ms=30_000)
    store.flush()
    clock.advance(14 * SECOND)
    store.abandon()
    with timerstore.open(tmp_path / "s", config=config, clock=ManualClock(clock.now_ms)) as again:
        assert again.core.findings.copies_count == 40
    report = verify(tmp_path / "s")
    assert report.ok and not report.warnings, str(report)
    assert report.pending_count == 10


# --- faults in the small files


@pytest.mark.parametrize("at", [7, 15, 23, 31, 60, 150, 400, 600, 2_048 + 7, 2_048 + 100, 4_000])
def test_fault_in_the_cursors(store_path: Path, at: int) -> None:
    file = store_path / "config" / "timercheck"
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    report = verify(store_path)
    assert not report.ok
    assert any(problem.file == "config/timercheck" for problem in report.problems), str(report)


@pytest.mark.parametrize("at", [3, 12, 20, 28, 39, 50, 4_000])
def test_fault_in_the_flush_times(store_path: Path, at: int) -> None:
    file = store_path / "checkpoint"
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    report = verify(store_path)
    assert any(problem.file == "checkpoint" for problem in report.problems), str(report)


@pytest.mark.parametrize(
    "name", ["timerstore.json", "config/timermetrics", "config/consumerOffset.json"]
)
def test_fault_in_json(store_path: Path, name: str) -> None:
    file = store_path / name
    file.write_text(file.read_text().replace(":", ";", 1))
    report = verify(store_path)
    assert any(problem.file == name for problem in report.problems), str(report)


def test_wrong_pending_count(store_path: Path) -> None:
    file = store_path / "config" / "timermetrics"
    metrics = json.loads(file.read_text())
    metrics["timingCount"]["default"]["count"] += 1
    file.write_text(json.dumps(metrics))
    expect(verify(store_path), "config/timermetrics", 0, "pending")


def test_group_past_the_end_is_a_warning(store_path: Path) -> None:
    file = store_path / "config" / "consumerOffset.json"
    offsets = json.loads(file.read_text())
    offsets["offsetTable"]["default@default"]["0"] = 1_000_000
    file.write_text(json.dumps(offsets))
    report = verify(store_path)
    assert report.ok
    assert [warning.file for warning in report.warnings] == ["config/consumerOffset.json"]


# --- faults in RocketMQ's stores


@pytest.mark.parametrize("name", ["pending", "crashed"])
def test_faults_in_a_golden_store(name: str, golden: Callable[[str], Path]) -> None:
    path = golden(name)
    offset = messages(path)[1_000]
    body_at = offset + 88
    Bytes(path, "commitlog").flip(body_at)
    Bytes(path, TIMER_QUEUE).flip(100 * ENTRY_BYTES + 7)
    Bytes(path, "timerlog").flip(units(path)[300] + 8)
    report = verify(path)
    expect(report, "commitlog", offset)
    # Of a broker that was killed nobody knows what it had flushed: it rebuilds its indexes.
    found = {(each.file, each.offset) for each in (*report.problems, *report.warnings)}
    assert (TIMER_QUEUE, 100 * ENTRY_BYTES) in found
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
