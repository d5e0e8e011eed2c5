"""What a stream appends: each row once, over kills between any two files."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import timerstore
from tests.pipeline.planted_stores import CONFIG, START_MS
from timerstore import InvalidArgumentError, pipeline
from timerstore.pipeline import following, tablefiles
from timerstore.pipeline.tablefiles import TableFiles

pytestmark = pytest.mark.slow
DAY = timedelta(days=1)


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    if not (out / table).exists():
        return []
    found: list[dict[str, Any]] = (
        ds.dataset(out / table, format="parquet", partitioning="hive").to_table().to_pylist()
    )
    return found


def check(out: Path, path: Path) -> int:
    """All that has fired is there once; its histogram says the same."""
    expected = timerstore.read(path, "fired").to_pylist()
    found = rows(out, "fired")
    assert sorted(row["offset"] for row in found) == [row["offset"] for row in expected]
    assert {row["store"] for row in found} <= {"shop"}
    assert all(str(row["day"]) == str(row["fired"].date()) for row in found)
    histogram = rows(out, "fired_lateness")
    assert sum(row["fired"] for row in histogram) == len(expected)
    late = sum(row["lateness_ms"] for row in expected)
    assert sum(row["fired"] * row["late_ms"] for row in histogram) == pytest.approx(late, rel=0.01)
    return len(expected)


def stream(spark: Any, path: Path, out: Path, **options: Any) -> None:
    query = pipeline.follow(spark, path, out, name="shop", until_now=True, **options)
    query.awaitTermination()


def test_it_goes_on_where_it_stopped(spark: Any, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "tables"
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        hours = [i * 3_600_000 for i in range(40)]
        store.put_many([b"x"] * 40, delay_ms=hours, topic="mail")
        for _ in range(2):
            clock.advance(18 * timedelta(hours=1))
            store.flush()
            stream(spark, path, out)
            assert check(out, path) in (19, 37)
    stream(spark, path, out)
    assert check(out, path) == 37
    assert len({row["day"] for row in rows(out, "fired")}) == 2


@pytest.mark.prove
def test_killed_between_any_two_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "store", tmp_path / "tables"
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * 60, delay_ms=[i * 3_600_000 for i in range(60)])
        clock.advance(3 * DAY)
    write = TableFiles.write_plainly
    for files_before in (0, 1, 3):
        left = files_before

        def stop(self: TableFiles, *arguments: Any) -> str:
            nonlocal left
            left -= 1
            if left < 0:
                raise RuntimeError("killed here")
            return write(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(TableFiles, "write_plainly", stop)
            with pytest.raises(Exception, match="killed here"):
                stream(spark, path, out, batch_bytes=5_000)
    stream(spark, path, out, batch_bytes=5_000)
    assert check(out, path) == 60
    assert len(list((out / "fired").rglob("*.parquet"))) > 3  # several batches, days
    stream(spark, path, out)
    assert check(out, path) == 60


def test_a_batch_that_is_written_again_leaves_nothing(tmp_path: Path) -> None:
    """Another day's file of the same batch goes: an earlier try could not have known better."""
    path = tmp_path / "store"
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * 2, delay_ms=[1_000, 90_000_000])
        clock.advance(2 * DAY)
    fired = timerstore.read(path, "fired")
    for count in (2, 1, 2, 2):
        following.write_batch(fired.slice(0, count), 7, str(tmp_path / "out"), "shop")
        assert len(rows(tmp_path / "out", "fired")) == count
    assert check(tmp_path / "out", path) == 2


def test_files_of_past_days_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last batch's, which may be written again; and none if that fails on the way."""
    path, out = tmp_path / "store", tmp_path / "out"
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * 60, delay_ms=[i * 3_600_000 for i in range(60)])
        clock.advance(3 * DAY)
    fired = timerstore.read(path, "fired")
    for number in range(9):
        following.write_batch(fired.slice(7 * number, 7), number, str(out), "shop")

    def stems(table: str) -> list[list[str]]:
        folders = sorted((out / table).glob("day=*/store=shop"))
        return [sorted(file.stem[-1] for file in folder.iterdir()) for folder in folders]

    before = stems("fired")
    assert len(before) == 3 and sum(map(len, before)) == 11, before
    now_ms = START_MS + 4 * 86_400_000

    def fail(*_: Any) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(tablefiles, "_exchange", fail)
        pipeline.expire(out, now_ms=now_ms)
    assert stems("fired") == before
    for batch in (8, 8, 9):
        pipeline.expire(out, now_ms=now_ms)
        for table in ("fired", "fired_lateness"):
            *joined, newest = stems(table)
            assert [len(each) for each in joined] == [1, 1]
            assert newest[-1] == "8" and len(newest) == 2
        assert not list((out / "_unfinished").iterdir())
        assert check(out, path) == 60
        following.write_batch(fired.slice(7 * batch, 7), batch, str(out), "shop")
        assert check(out, path) == 60


def test_a_batch_waits_while_files_are_joined(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        store.put(b"x", delay_ms=1)
        clock.advance(DAY)
    fired = timerstore.read(path, "fired")
    writing = threading.Thread(target=following.write_batch, args=(fired, 0, str(out), "shop"))
    with tablefiles.alone(out) as is_alone:
        assert is_alone
        writing.start()
        writing.join(0.3)
        assert writing.is_alive() and not rows(out, "fired")
    writing.join(60)
    assert check(out, path) == 1


COMMAND = [sys.executable, "-P", "-c", "from timerstore.cli import main; main()", "pipeline"]


def ends(command: list[str], how: int) -> None:
    """Start a command, with a process group of its own; end it when some rows are there."""
    out = Path(command[command.index("follow") + 1])
    before = set((out / "fired").rglob("*.parquet"))
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        for _ in range(2_000):
            if process.poll() is not None or set((out / "fired").rglob("*.parquet")) - before:
                break
            time.sleep(0.05)
        assert process.poll() is None
        if how == signal.SIGKILL:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        assert process.wait(100) == (-how if how == signal.SIGKILL else 0)
    finally:
        with suppress(ProcessLookupError):  # what the command left, Java say
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_the_command_is_killed_and_started_again(tmp_path: Path) -> None:
    path, out = tmp_path / "shop", tmp_path / "tables"
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        for how in (signal.SIGKILL, signal.SIGTERM):
            store.put_many([b"x"] * 300, delay_ms=[i * 3_600_000 for i in range(300)])
            clock.advance(13 * DAY)
            store.flush()
            ends([*COMMAND, "follow", str(out), str(path), "--every", "0"], how)
    again = [*COMMAND, "follow", str(out), str(path), "--until-now"]
    assert subprocess.run(again, stderr=subprocess.DEVNULL, timeout=250).returncode == 0
    assert check(out, path) == 600


def test_refusals(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="Pass the folder of a store"):
        pipeline.follow(spark, tmp_path, tmp_path / "out")
