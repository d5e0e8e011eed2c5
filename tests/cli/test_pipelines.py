"""`timerstore pipeline run`: what it shows, what its exit status says."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.pipeline.planted_stores import CONFIG, START_MS
from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, make_store
from timerstore import ManualClock, TimerStore, pipeline
from timerstore.cli.commands import app

pytestmark = pytest.mark.slow


def run(*arguments: object, exits: int = 0) -> Result:
    result = CliRunner().invoke(app, ["pipeline", "run", *map(str, arguments)])
    assert result.exit_code == exits, result.output
    return result


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        clock = ManualClock(START_MS)
        with TimerStore(tmp_path / "stores" / name, config=CONFIG, clock=clock) as store:
            store.put_many([b"x"] * 12, delay_ms=[60_000] * 12, topic="mail")
            clock.advance(timedelta(0))
    return tmp_path / "stores"


def test_all_is_well(stores: Path, tmp_path: Path) -> None:
    lines = run(tmp_path / "tables", stores, "--run", "one").stdout.splitlines()
    assert lines[0].startswith("one: ok, 2 stores in ")
    assert [line.split("\t")[0] for line in lines[1:]] == ["a", "b"]
    (row,) = pipeline.read(tmp_path / "tables", "runs").to_pylist()
    assert (row["run"], row["stores"], row["verdict"]) == ("one", 2, "ok")


def test_a_warning_and_a_failure(stores: Path, tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("[skew_neighbours]\nwarn = 5\nleast = 10\n")
    out = tmp_path / "tables"
    shown = run(out, stores / "a", "--thresholds", limits, exits=5).stdout
    assert "12 timers; 12 units of topic mail; 12 deviations above" in shown
    limits.write_text("[skew_neighbours]\nwarn = 5\nfail = 6\nleast = 10\n")
    told = json.loads(run(out, stores / "a", "--thresholds", limits, "--json", exits=1).stdout)
    assert told["verdict"] == "fail"
    (finding,) = told["stores"][0]["findings"]
    assert (finding["rule"], finding["value"], finding["fail"]) == ("skew_neighbours", 12.0, 6.0)
    told = json.loads(run(out, stores, "--fire-rate", "0.1", "--json", exits=1).stdout)
    assert {each["rule"] for each in told["stores"][1]["findings"]} >= {"load_second"}


def test_stores_from_a_file(stores: Path, tmp_path: Path) -> None:
    make_store(stores / "c")
    FAULTS["unit_topic"].plant(Patient(stores / "c"))
    rows = tmp_path / "stores.csv"
    rows.write_text(f"name,path\none,{stores / 'a'}\ntwo,{stores / 'gone'}\nthree,{stores / 'c'}\n")
    told = json.loads(run(tmp_path / "tables", "--list", rows, "--json", exits=1).stdout)
    states = {each["name"]: each["state"] for each in told["stores"]}
    assert states == {"one": "sound", "two": "unreadable", "three": "damaged"}
    shown = run(tmp_path / "tables", "--list", rows, exits=1).stdout
    assert "NotAStoreError" in shown and "unit_topic" in shown


def test_wrong_usage(stores: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    rows = tmp_path / "stores.csv"
    rows.write_text("a,b\n1,2\n")
    assert "Pass either" in run(out, exits=2).stderr
    assert "Pass either" in run(out, stores, "--list", rows, exits=2).stderr
    assert "has no rows" in run(out, "--list", rows, exits=2).stderr
    rows.write_text("name,path\nx,y\nother,z\nx,z\n")
    told = " ".join(run(out, "--list", rows, exits=2).stderr.split())
    assert "Lines 2 and 4" in told and "stores.csv" in told and "name two stores 'x'" in told
    assert "Pass a CSV file" in run(out, "--list", tmp_path / "gone", exits=2).stderr
    assert "Pass one." in run(out, stores, "--measure", "--fire-rate", "1", exits=2).stderr
    assert "above 0" in run(out, stores, "--fire-rate", "0", exits=2).stderr
    assert "roll_window_slots is 0" in run(out, stores, "--roll-window", "0", exits=2).stderr
    assert not out.exists()
    expired = CliRunner().invoke(app, ["pipeline", "expire", str(out)])
    assert expired.exit_code == 2 and "has no result tables" in expired.output
    assert "run is" in run(out, stores, "--run", "a/b", exits=2).stderr
    assert "Pass the folder of a store" in run(out, str(stores / "no*"), exits=3).stderr
