"""Old runs go, and a run's own numbers are told."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from tests.pipeline.planted_stores import START_MS, Case
from timerstore import InvalidArgumentError, pipeline
from timerstore.cli.commands import app
from timerstore.pipeline import DISTRIBUTION_RULES, TABLES

pytestmark = pytest.mark.slow
DAY_MS, HOUR_MS = 86_400_000, 3_600_000


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = Case(tmp_path)
    made.put([300 + i for i in range(20)], topic="mail")
    return made


def test_of_a_day_the_last_run_stays_for_a_while(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs on each of five days; as of the fourth day the first one is too old.

    Two runs find a store: one goes, the other stays. All find one that is gone.
    """
    gone, there = {"gone": str(case.folder / "gone")}, {"a/b": str(case.path)}
    for day in range(5):
        for hour in (1, 5):
            now_ms = START_MS // DAY_MS * DAY_MS + day * DAY_MS + hour * HOUR_MS
            monkeypatch.setattr("time.time_ns", lambda ms=now_ms: ms * 1_000_000)
            stores = gone | (there if (day, hour) in ((1, 1), (1, 5)) else {})
            pipeline.run(stores, case.out, run=f"r{day}-{hour}", now_ms=now_ms)
    monkeypatch.undo()
    old = case.out / "fired" / "day=2027-01-01" / "store=x"
    old.mkdir(parents=True)
    (old / "0000000001.parquet").touch()
    options: dict[str, Any] = {"keep_days": 3, "daily_after_days": 1, "now_ms": now_ms}
    expired = pipeline.expire(case.out, **options)
    assert expired == ["r0-1", "r0-5", "r1-1", "r2-1"]
    assert pipeline.expire(case.out, **options) == []
    left = {"r1-5", "r2-5", "r3-1", "r3-5", "r4-1", "r4-5"}
    for table in TABLES:
        assert set(pipeline.read(case.out, table)["run"].to_pylist()) <= left
        assert {path.stem for path in (case.out / table).rglob("*.parquet")} <= left
    assert not old.exists() and len(list((case.out / "stores").glob("day=*"))) == 4
    with pytest.raises(InvalidArgumentError, match="keep_days is 0"):
        pipeline.expire(case.out, keep_days=0)
    result = CliRunner().invoke(app, ["pipeline", "expire", str(case.out), "--keep-days", "9999"])
    assert result.exit_code == 0 and "runs removed" in result.stdout


def test_what_a_run_took(case: Case) -> None:
    found = pipeline.run({"s": str(case.path)}, case.out, run="one")
    rows = pipeline.read(case.out, "metrics").to_pylist()
    assert all(row["seconds"] >= 0 and row["run"] == "one" for row in rows)
    (store,) = [row for row in rows if row["part"] == "store"]
    assert (store["name"], store["rows"]) == ("s", 60)
    assert store["bytes"] > 1_000
    assert [row["name"] for row in rows if row["part"] == "rule"] == [
        each.name for each in DISTRIBUTION_RULES
    ]
    assert {"chains", "fates", "rules", "due"} <= {row["name"] for row in rows}
    assert sum(row["seconds"] for row in rows if row["part"] == "store") < found.seconds


def test_numbers_for_prometheus(case: Case, tmp_path: Path) -> None:
    """The file is as its library reads it, also with an odd name, and says what the tables say."""
    name = 'a"b\\c\nd'
    rows = tmp_path / "stores.csv"
    rows.write_text(f'name,path\n"a""b\\c",{case.path}\ngone,{tmp_path / "no"}\n')
    file = tmp_path / "timers.prom"
    command = ["pipeline", "run", str(case.out), "--list", str(rows), "--prometheus", str(file)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    assert [path.name for path in tmp_path.glob("timers.prom*")] == ["timers.prom"]
    told = {
        (sample.name.removeprefix("timerstore_pipeline_"), *sorted(sample.labels.items())): sample
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }
    assert told["verdict", ("store", "gone")].value == 2
    assert told["pending", ("store", 'a"b\\c')].value == 20
    (row,) = [
        row
        for row in pipeline.read(case.out, "findings").to_pylist()
        if row["rule"] == "chains_depth"
    ]
    assert told["rule_value", ("rule", "chains_depth"), ("store", 'a"b\\c')].value == row["value"]
    ended = told[("run_end_seconds",)].value
    assert abs(ended - datetime.now(UTC).timestamp()) < 600
    assert ("part_seconds", ("name", "late_fired"), ("part", "rule")) in told
    assert "verdict" in pipeline.run({name: str(case.path)}).to_prometheus()
