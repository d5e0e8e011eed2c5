"""Readers beside a process that writes as fast as it can: none fails, none says "damaged".

TIMERSTORE_LIVE_RUNS=1000 looks a thousand times in each way.
"""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import timerstore
from tests.tiers import how_many
from timerstore.cli.commands import app
from timerstore.offline.export import export
from timerstore.tables import read_split, read_table
from timerstore.tables.schema import TABLES, default_columns
from timerstore.tables.splits import log_end, plan_log
from timerstore.tables.view import cut_store
from timerstore.validation import validate

RUNS = how_many("TIMERSTORE_LIVE_RUNS", 2, 20)
ROOT = Path(__file__).parent.parent
LEVELS = {"full": "1s 2s", "slow": timerstore.Config().delay_levels}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 20 * RUNS), pytest.mark.on_disk]


@pytest.fixture(scope="module", params=["full", "slow"])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A store that another process writes to, with its delay levels."""
    path = str(tmp_path_factory.mktemp("live") / "store")
    writer = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.rigs.busy_writer", path, request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert writer.stdin is not None and writer.stdout is not None
    lines = []
    for line in writer.stdout:
        lines.append(line)
        if line == "ready\n":
            break
    try:
        yield path, LEVELS[request.param]
        assert writer.poll() is None, "the writer has ended"
    finally:
        out, _ = writer.communicate("")
    assert writer.returncode == 0, "".join(lines) + out


@pytest.mark.tier("promise", only=("full",))
@pytest.mark.tier("prove", but=("full",))
def test_openings(live: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2 * RUNS):
        with timerstore.open(live[0], read_only=True) as store:
            timers = list(store.pending())
            assert len(timers) == store.count()
            assert store.horizon(1_000).count.sum() == len(timers)
            assert all(store.get(timer.id) == timer for timer in timers[:20])
    assert "damaged" not in caplog.text, "an index was made anew"


@pytest.mark.prove
def test_validations(live: tuple[str, str]) -> None:
    path, levels = live
    for _ in range(RUNS):
        found = validate(path, delay_levels=levels)
        assert found.ok, str(found)


@pytest.mark.tier("prove", but=("full",))
def test_verifying(live: tuple[str, str]) -> None:
    path, levels = live
    for _ in range(RUNS):
        report = timerstore.verify(path, config=timerstore.Config(delay_levels=levels))
        assert report.ok, str(report)


@pytest.mark.tier("prove", but=("full-messages", "full-slots"))
@pytest.mark.parametrize("table", sorted(TABLES))
def test_tables(live: tuple[str, str], table: str) -> None:
    path, levels = live
    for _ in range(max(1, RUNS // 3)):
        rows = read_table(path, table, failfast=True, delay_levels=levels)
        assert table != "problems" or rows.num_rows == 0, rows.to_pylist()[:3]


@pytest.mark.tier("prove", but=("full",))
def test_a_stream(live: tuple[str, str]) -> None:
    """What Spark's stream does for each of its batches."""
    path, levels = live
    offset, seen, looks = 0, 0, []
    for _ in range(4 * RUNS):
        view = cut_store(path, delay_levels=levels)
        stop = log_end(view, max(offset, view.reader.commitlog.start))
        splits = plan_log(cut_store(path, delay_levels=levels), "messages", offset, stop, 1 << 20)
        columns = default_columns("messages", several=False, body=True)
        for split in splits:
            for batch in read_split(split, columns, failfast=True):
                places = batch.column("offset").to_pylist()
                assert places == sorted(places) and places[0] >= offset and places[-1] < stop
                seen += len(places)
        looks.append((view.reader.commitlog.start, view.log_stop, offset, stop, len(splits)))
        offset = max(offset, stop)
    assert seen > 0, looks


@pytest.mark.prove
def test_commands(live: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator types beside the writer, which it has no more trouble with."""
    path, levels = live
    monkeypatch.setenv("TIMERSTORE_DELAY_LEVELS", levels)
    for _ in range(max(1, RUNS // 6)):
        for command in ("info", "pending", "count", "horizon", "groups", "verify", "validate"):
            done = CliRunner().invoke(app, [command, path])
            assert (done.exit_code, done.exception) == (0, None), done.output
            assert (
                "What follows is as of " in done.stderr
                and "is open in another process (pid" in done.stderr
            )
        done = CliRunner().invoke(app, ["export", path, "-"])
        assert done.exit_code == 0, done.stderr


@pytest.mark.prove
def test_exports(live: tuple[str, str]) -> None:
    for _ in range(max(1, RUNS // 3)):
        assert export(live[0], "messages", io.BytesIO(), "jsonl") > 0
        export(live[0], "pending", io.BytesIO(), "jsonl")
