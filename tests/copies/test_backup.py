"""Backups: what is refused, what is checked, what an interruption leaves."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.copies.kept import AHEAD_MS, Kept
from tests.markdown import ROOT
from tests.models.ledger import read_messages
from tests.sparse_copy import copy_tree
from timerstore import (
    Config,
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    StoreFullError,
    StoreLockedError,
    Tuning,
)
from timerstore.copies.backup import take_point
from timerstore.copies.backup_content import NewLog, read_new
from timerstore.copies.destination import find_destination
from timerstore.copies.fetching import built_beside
from timerstore.copies.report import BackupLock
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import FailingDisk
from timerstore.timelog.files.disk import Disk
from timerstore.validation.rounds import validate


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """With one point."""
    kept = Kept(tmp_path, tmp_path / "backup")
    kept.put(20)
    kept.report = kept.back_up()
    return kept


def content(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def test_what_is_restored_is_told(kept: Kept) -> None:
    for delivery in kept.store.consume("t", group="g", timeout=0):
        delivery.ack()
    kept.clock.advance(timedelta(milliseconds=AHEAD_MS + 4))
    deliveries = list(kept.store.consume("t", group="g", timeout=0))
    assert len(deliveries) == 7
    deliveries[0].ack()
    point = kept.back_up().point
    kept.store.close()
    report = kept.restore()
    assert (report.pending_count, report.group_count, report.message_count) == (13, 1, 27)
    assert (report.point, report.as_of_ms, report.log_end) == (2, point.time_ms, point.log_end)
    assert report.ok and report.to_dict()["pending_count"] == 13
    assert str(report) == (
        f"{kept.restored} is the store as of 2023-11-14T22:14:20.006Z: 13 timers pending, "
        "27 messages, 1 groups. "
        "What was fired or consumed after that time is handed out again.\n"
        "  WARNING: the last point was taken just now, so the store may still be running. "
        "If it is, 13 timers fire in both: stop it before you open this one."
    )
    assert report.twice_count == 13
    assert not list(kept.restored.parent.glob(".*"))
    with timerstore.open(kept.restored, clock=kept.clock) as store:
        assert len(list(store.consume("t", group="g", timeout=0))) == 7  # one has just fired


def test_a_backup_is_a_store_to_look_at(kept: Kept) -> None:
    with timerstore.open(kept.dest, read_only=True, clock=kept.clock) as view:
        assert view.count() == 20
    before = content(kept.dest)
    with pytest.raises(NotAStoreError, match="timerstore restore"):
        timerstore.open(kept.dest)
    assert content(kept.dest) == before


def test_another_folder_is_refused(kept: Kept, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter").write_text("dear")
    for dest, message in (
        (other, "files that belong to no backup"),
        (kept.path, "lies inside the other"),
        (kept.path / "backup", "lies inside the other"),
        (tmp_path, "lies inside the other"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            timerstore.backup(kept.path, dest)
    assert [each.name for each in other.iterdir()] == ["letter"]
    (other / "log").mkdir()
    (other / "log" / "letter.tmp").touch()
    with pytest.raises(InvalidArgumentError, match="holds files that belong to no backup"):
        timerstore.backup(kept.path, other)
    (other / "log" / "letter.tmp").unlink()  # still there
    (other / "log").rmdir()
    with pytest.raises(NotAStoreError):
        timerstore.backup(kept.dest, tmp_path / "third")
    for dest in (other, kept.path):
        with pytest.raises(InvalidArgumentError, match=r"exists and is not empty|lies inside"):
            timerstore.restore(kept.dest, dest)
    with pytest.raises(NotAStoreError, match="no backup"):
        timerstore.restore(other, tmp_path / "new")
    with pytest.raises(InvalidArgumentError, match="time zone"):
        kept.restore(at=datetime.fromisoformat("2026-01-01"))
    with pytest.raises(InvalidArgumentError, match=r"at is '5'\. Pass an aware"):
        kept.restore(at="5")
    with pytest.raises(InvalidArgumentError, match="at and at_ms exclude each other"):
        kept.restore(at=datetime.now(UTC), at_ms=5)
    assert not kept.restored.exists()


def test_a_forked_child_leaves_what_was_laid_down(kept: Kept) -> None:
    kept.store.close()
    store = timerstore.open(kept.dest, read_only=True)
    laid = Path(store.core.path)
    child = multiprocessing.get_context("fork").Process(target=store.close)
    child.start()
    child.join(30)
    assert child.exitcode == 0 and laid.is_dir() and store.count() == 20
    store.close()
    assert not laid.exists()


def test_two_at_once_are_refused(kept: Kept) -> None:
    lock = BackupLock(kept.dest)
    with pytest.raises(StoreLockedError, match="Another backup"):
        kept.store.backup(kept.dest)
    lock.release()
    assert kept.back_up().point_count == 2


def test_a_run_is_alone_from_its_first_look_to_its_end(kept: Kept) -> None:
    seen = list[bool]()

    def look(done: int, total: int | None) -> None:
        with pytest.raises(StoreLockedError, match="Another backup"):
            timerstore.backup(kept.path, kept.dest)
        seen.append(True)

    kept.put(5)
    kept.store.backup(kept.dest, progress=look)
    assert seen and kept.back_up().point_count == 3


def test_what_a_killed_run_wrote_halfway_is_removed_by_the_next(kept: Kept) -> None:
    parents = [next((kept.dest / each).rglob("*.zst")).parent for each in ("log", "points")]
    left = [each / "a.zst.12-ab.tmp" for each in (*parents, kept.dest / "chains")]
    for each in left:
        each.write_bytes(b"half")
    kept.back_up()
    assert not any(each.exists() for each in left)


def test_two_that_write_one_object_share_no_file(kept: Kept) -> None:
    class Killed(BaseException):
        pass

    class Second(Disk):
        def event(self, kind: str, path: Path) -> None:
            if kind == "write":  # it has opened and emptied its file
                find_destination(kept.dest).put("log/x.zst", b"whole")
                raise Killed

    dest = find_destination(kept.dest)
    dest.disk = Second()
    with pytest.raises(Killed):
        dest.put("log/x.zst", b"whole")
    assert dest.get("log/x.zst") == b"whole"
    assert not list(kept.dest.rglob("*.tmp"))


def test_a_store_that_was_restored_to_an_earlier_point_is_refused(kept: Kept) -> None:
    kept.put(5)
    kept.back_up()
    kept.restore(at_ms=kept.report.point.time_ms)
    last = kept.restored.with_name("last")
    timerstore.restore(kept.dest, last, clock=kept.clock)
    with timerstore.open(kept.restored, clock=kept.clock) as store:
        with pytest.raises(InvalidArgumentError, match="Pass a new folder"):
            store.backup(kept.dest)
        store.put_many([b"x" * 50] * 400, topic="t")  # also where none of the log is the same
        for delivery in store.consume("t", timeout=0):
            delivery.ack()
        store.flush()
        with pytest.raises(InvalidArgumentError, match="Pass a new folder"):
            store.backup(kept.dest)
        assert store.backup(kept.restored.with_name("another")).ok
    with timerstore.open(last, clock=kept.clock) as store:  # it goes on where the backup ends
        store.put(b"more", topic="t")
        report = store.backup(kept.dest)
        assert report.point_count == 3 and report.message_count >= 1
    kept.put(1)
    with pytest.raises(StoreLockedError, match="taken over"):  # the original is another
        kept.back_up()
    assert timerstore.verify(kept.dest).ok


@pytest.mark.parametrize("kind", ["write", "sync", "replace"])
def test_a_full_disk_leaves_the_earlier_points(kept: Kept, kind: str) -> None:
    disk = FailingDisk()
    kept.put(40)
    expected = timerstore.backup_points(kept.dest)
    disk.refuse(errno.ENOSPC, kind, where="backup")
    dest = find_destination(kept.dest)
    dest.disk = disk
    with pytest.raises((StoreFullError, timerstore.FlushFailedError)):
        take_point(kept.path, dest)
    assert timerstore.backup_points(kept.dest) == expected
    assert kept.restore().pending_count == 20
    disk.heal()
    take_point(kept.path, dest, clock=kept.clock)
    kept.restored.rename(kept.restored.with_name("first"))
    assert kept.restore().pending_count == 60


def test_a_point_is_of_a_time_by_which_all_of_it_was_stored(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large log, what is put while it is read may be minutes younger."""
    began_ms = kept.clock.now_ms

    def put_meanwhile(*given: Any) -> NewLog:
        kept.clock.advance(timedelta(seconds=1))
        kept.put(3)
        kept.clock.advance(timedelta(seconds=1))
        return read_new(*given)

    monkeypatch.setattr("timerstore.copies.backup.read_new", put_meanwhile)
    report = take_point(kept.path, find_destination(kept.dest), clock=kept.clock)
    assert report.point.time_ms == began_ms + 1_000
    for at_ms, count in ((began_ms, 20), (began_ms + 999, 20), (began_ms + 1_000, 23)):
        assert kept.restore(at_ms=at_ms).pending_count == count
        kept.restored.rename(kept.restored.with_name(str(at_ms)))


def test_a_point_is_not_of_a_time_to_come(kept: Kept) -> None:
    """The clock was ahead when something was stored."""
    kept.clock.advance(timedelta(days=300))
    kept.put(1)
    clock = timerstore.ManualClock(kept.report.point.time_ms + 5)
    report = take_point(kept.path, find_destination(kept.dest), clock=clock)
    assert report.point.time_ms == clock.now_ms and kept.restore().pending_count == 1


def test_damage_of_a_backup_is_found(kept: Kept, tmp_path: Path) -> None:
    kept.put(40)
    kept.back_up()
    kept.store.close()
    names = sorted(f"log/{each}" for each in find_destination(kept.dest).names("log"))
    names += sorted(f"points/{each}" for each in find_destination(kept.dest).names("points"))
    for name in names:
        copy = copy_tree(kept.dest, tmp_path / "copy")
        flip_bit(copy / name, (copy / name).stat().st_size // 2, 2)
        report = timerstore.verify(copy)
        assert not report.ok and name in {each.file for each in report.problems}
        points = timerstore.backup_points(copy)
        at_ms = points[0].time_ms if name == names[-2] else None
        with pytest.raises(CorruptStoreError):
            timerstore.restore(copy, tmp_path / "new", at_ms=at_ms)
        assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".*"))
        subprocess.run(["rm", "-r", copy], check=True)
    (kept.dest / names[0]).unlink()
    with pytest.raises(CorruptStoreError):
        kept.restore()
    assert not timerstore.verify(kept.dest).ok


def test_damage_of_a_store_is_told_and_kept(kept: Kept) -> None:
    kept.put(40)
    kept.put(100)
    kept.store.close()
    with (kept.path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(kept.report.point.log_end + 90)
        file.write(b"?")
    report = timerstore.backup(kept.path, kept.dest)
    assert [each.offset for each in report.problems] == [kept.report.point.log_end]
    assert not report.ok and "DAMAGED" in str(report) and report.to_dict()["problems"]
    done = kept.restore()
    assert not done.ok and done.pending_count == 159 and "DAMAGED" in str(done)
    (kept.path / "commitlog" / f"{8_192:020d}").unlink()
    with pytest.raises(CorruptStoreError, match="missing"):
        timerstore.backup(kept.path, kept.dest)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pending", "crashed", "fired"])
def test_a_broker_s_store(
    tmp_path: Path,
    name: str,
    golden_unpacked: Callable[[str], Path],
) -> None:
    path = golden_unpacked(name)
    with timerstore.open(path, read_only=True) as view:
        expected = {(timer.topic, timer.body, timer.due_ms) for timer in view.pending()}
    report = timerstore.backup(path, tmp_path / "backup")
    assert report.ok
    assert timerstore.backup(path, tmp_path / "backup").copied_bytes == 0
    done = timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    with timerstore.open(tmp_path / "restored", read_only=True) as view:
        found = {(timer.topic, timer.body, timer.due_ms) for timer in view.pending()}
        assert found == expected and done.pending_count == len(expected)


# --- beside a live owner


@pytest.mark.slow
def test_beside_threads_that_put(tmp_path: Path) -> None:
    """What was acknowledged before a backup is in it; nothing that it holds was not put."""
    stop, acked, put = threading.Event(), list[bytes](), set[bytes]()
    config = Config(
        durability="process",
        flush_interval_ms=20,
        tuning=Tuning(commitlog_segment_bytes=1 << 18, timerlog_segment_bytes=1 << 16),
    )
    with timerstore.open(tmp_path / "store", config=config) as store:

        def work(number: int) -> None:
            i = 0
            while not stop.is_set():
                body = b"%d %d" % (number, i)
                put.add(body)
                store.put(body, topic="t", delay=timedelta(hours=1))
                acked.append(body)
                i += 1
                if i % 100 == 0:
                    time.sleep(0.005)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        before = []
        try:
            for i in range(6):
                time.sleep(0.1)
                before.append(set(acked))
                report = (
                    store.backup(tmp_path / "backup")
                    if i % 2
                    else timerstore.backup(store.path, tmp_path / "backup")
                )
                assert report.ok
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    points = timerstore.backup_points(tmp_path / "backup")
    assert len(points) == 6 and timerstore.verify(tmp_path / "backup").ok
    for point in (points[0], points[3], points[5]):
        dest = tmp_path / f"restored{point.number}"
        report = timerstore.restore(tmp_path / "backup", dest, at_ms=point.time_ms)
        with timerstore.open(dest, read_only=True) as view:
            found = [timer.body for timer in view.pending()]
        assert report.ok and len(found) == len(set(found)) == report.pending_count
        assert before[point.number - 1] <= set(found) <= put


BACKING_UP = """
import sys, timerstore
print("ready", flush=True)
for _ in range(1000):
    timerstore.backup(sys.argv[1], sys.argv[2], keep=5)
    print("point", flush=True)
"""


@pytest.mark.prove
@pytest.mark.slow
def test_killed_in_the_middle_beside_a_busy_owner(tmp_path: Path) -> None:
    """The owner is another process whose segments come and go; each point stays whole."""
    path, dest = tmp_path / "store", tmp_path / "backup"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    writer = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.rigs.busy_writer", path, "full"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        cwd=ROOT,
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        for i in range(3):
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", BACKING_UP, path, dest],
                stdout=subprocess.PIPE,
                env=env,
                text=True,
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert process.stdout.readline() == "point\n"
            time.sleep(0.05 + 0.037 * i)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
            process.stdout.close()
            points = timerstore.backup_points(dest)
            assert points
            if i % 2:
                report = timerstore.restore(dest, tmp_path / f"restored{i}")
                assert report.ok and report.point == points[-1].number
        assert timerstore.verify(dest).ok
    finally:
        assert writer.stdin is not None
        writer.stdin.close()
        writer.stdout.close()
        assert writer.wait(timeout=60) == 0


@pytest.mark.tier("prove", but=("0-size", "8-magic", "22-header", "25-body"))
@pytest.mark.parametrize("at", [2, 5, 40, 90], ids=["size", "magic", "header", "body"])
@pytest.mark.parametrize("number", [0, 8, 22, 25])
def test_one_damaged_message_of_a_restored_store_is_all_that_is_named(
    kept: Kept, number: int, at: int
) -> None:
    """What fired since the point's cursors waits in the first slot, which only copies explain."""
    kept.clock.advance(timedelta(milliseconds=AHEAD_MS + 6))
    assert len(list(kept.store.consume("t", group="g", timeout=0))) == 9
    at_ms = kept.clock.now_ms
    kept.tick()
    kept.put(1)
    kept.back_up()
    kept.store.close()
    assert kept.restore(at_ms=at_ms).ok
    assert timerstore.verify(kept.restored).ok and validate(kept.restored).ok
    offset = [each.offset for each in read_messages(kept.restored)][number]
    file = kept.restored / "commitlog" / f"{offset // 8_192 * 8_192:020d}"
    flip_bit(file, offset % 8_192 + at, 2)
    named = {(each.file, each.offset) for each in timerstore.verify(kept.restored).problems}
    assert ("commitlog", offset) in named
    # Besides it, what points to it: its entry, its unit.
    assert len(named) <= 3, named
    assert not validate(kept.restored).ok


@pytest.mark.parametrize(
    "error", [StoreFullError, lambda text: OSError(errno.EIO, "broken", text.split()[-1])]
)
def test_an_error_names_the_folder_that_was_asked_for(
    tmp_path: Path, error: Callable[[str], Exception]
) -> None:
    """The one in which it is built is gone by then."""
    target = tmp_path / "new"

    def build() -> None:
        with built_beside(Disk(), target) as inside:
            built.append(inside)
            raise error(f"no space left for {inside / 'commitlog' / '0'}")

    built: list[Path] = []
    with pytest.raises((StoreFullError, OSError), match="new/commitlog/0") as found:
        build()
    assert built[0].name not in str(found.value) and not built[0].exists()
