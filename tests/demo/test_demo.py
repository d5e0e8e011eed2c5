"""The demonstration, run small; its judgement, where a promise was broken."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import timerstore
from timerstore.cli.commands import app
from timerstore.cli.ledger import (
    CANCEL_ASKED,
    CANCEL_REFUSED,
    CANCELLED,
    PUT,
    Fired,
    Ledger,
    LedgerWriter,
    judge,
    lateness,
    offsets_of_ids,
    read_ledger,
)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def written(path: Path) -> Ledger:
    with closing(LedgerWriter(path)) as ledger:
        ledger.write(PUT, ints(1, 2, 3, 4), ints(10, 20, 30, 40))
        ledger.write(CANCEL_ASKED, ints(2, 3))
        ledger.write(CANCELLED, ints(2))
        ledger.write(CANCEL_REFUSED, ints(3))
        ledger.write(CANCEL_ASKED, ints(4))
    return read_ledger(path)


def test_ledger_reads_what_was_written(tmp_path: Path) -> None:
    ledger = written(tmp_path / "ledger")
    assert ledger.put.tolist() == [1, 2, 3, 4]
    assert ledger.put_due_ms.tolist() == [10, 20, 30, 40]
    assert ledger.cancelled.tolist() == [2]
    assert ledger.expected.tolist() == [1, 3]  # of 4 nobody knows: its cancel was cut short


def test_ledger_leaves_out_a_torn_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    written(path)
    whole = path.read_bytes()
    for length in range(len(whole) - 24, len(whole)):
        path.write_bytes(whole[:length])
        ledger = read_ledger(path)
        assert ledger.asked.tolist() == [2, 3]
        assert ledger.refused.tolist() == [3]


def test_judgement(tmp_path: Path) -> None:
    ledger = written(tmp_path / "ledger")
    good = judge(ledger, Fired(ints(3, 1, 9), ints(30, 10, 90), ints(30, 11, 95)))
    assert good.ok
    assert (good.expected_count, good.fired_count, good.unacknowledged_count) == (2, 3, 1)

    for fired, broken in [
        (Fired(ints(1), ints(10), ints(10)), "lost_count"),
        (Fired(ints(1, 3, 3), ints(10, 30, 30), ints(10, 30, 31)), "twice_count"),
        (Fired(ints(1, 3), ints(10, 30), ints(10, 29)), "early_count"),
        (Fired(ints(1, 2, 3), ints(10, 20, 30), ints(10, 20, 30)), "cancelled_but_fired_count"),
        (Fired(ints(1, 3), ints(11, 30), ints(11, 30)), "wrong_due_count"),
    ]:
        judged = judge(ledger, fired)
        assert not judged.ok
        assert getattr(judged, broken) == 1, broken
        assert judge(ledger, fired).fired_count == len(fired.offsets)


def test_lateness_quantiles() -> None:
    late = lateness(np.arange(1, 101, dtype=np.int64))
    assert (late.count, late.p50_ms, late.p99_ms, late.max_ms) == (100, 50, 99, 100)
    assert lateness(ints()).count == 0


def test_offsets_of_ids(tmp_path: Path) -> None:
    clock = timerstore.ManualClock()
    config = timerstore.Config(tuning=timerstore.Tuning(commitlog_segment_bytes=1 << 20))
    with timerstore.open(tmp_path / "store", config=config, clock=clock) as store:
        ids = store.put_many([b"x"] * 40, delay_ms=1_000)
    assert offsets_of_ids(pa.array(list(ids))).tolist() == ids.offsets.tolist()
    assert offsets_of_ids(pa.array([], pa.string())).tolist() == []


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    path = tmp_path / "store"
    options = ["--timers", "4000", "--seconds", "3"]
    result = CliRunner().invoke(app, ["demo", str(path), *options, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    told = json.loads(result.stdout)
    assert told["ok"] is True
    assert told["acknowledged_count"] > 1_000
    assert told["cancelled_count"] > 0
    assert 0 < told["fired_before_count"] < told["judgement"]["fired_count"]
    assert told["while_down"]["count"] + told["after"]["count"] > 0
    assert "SIGKILL" in result.stderr

    with timerstore.open(path) as store:  # it was kept, and everything in it is done
        assert store.count() == 0
        assert len(store.pull("demo", timeout=0.2)) == 0
    again = CliRunner().invoke(app, ["demo", str(path), *options])
    assert again.exit_code == 2
    assert "is not empty" in again.stderr


@pytest.mark.slow
def test_demo_on_a_pipe_is_plain(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--timers", "1600", "--seconds", "2"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "\x1b" not in result.stdout
    assert result.stdout.endswith("Every promise was kept.\n")
