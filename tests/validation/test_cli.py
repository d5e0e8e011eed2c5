"""`timerstore validate`: what it shows, what its exit status says."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, make_store
from timerstore.cli.commands import app
from timerstore.validation import RULES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


def run(*arguments: object, exits: int = 0, **env: str) -> Result:
    result = CliRunner().invoke(app, ["validate", *map(str, arguments)], env=env or None)
    assert result.exit_code == exits, result.output
    return result


def test_sound_store(path: Path) -> None:
    lines = run(path, "--all").stdout.splitlines()
    assert lines[0] == f"{path}: sound"
    shown = [line.split("\t")[1] for line in lines[1 : 1 + len(RULES)]]
    assert shown == [rule.name for rule in RULES]
    assert "pending\t21" in lines
    told = json.loads(run(path, "--json").stdout)
    assert told["ok"] and told["counts"]["timers"] == 68
    assert told["counts"]["pending"] == 21
    assert told["counts"]["in_levels"] == 1


def test_damage(path: Path) -> None:
    file, offset = FAULTS["unit_topic"].plant(Patient(path))
    told = json.loads(run(path, "--json", exits=1).stdout)
    assert not told["ok"]
    (failed,) = [each for each in told["rules"] if each["failed"]]
    assert failed["rule"] == "unit_topic"
    assert (failed["places"][0]["file"], failed["places"][0]["offset"]) == (file, offset)
    assert "DAMAGED: 1 rule fails, at 1 place" in run(path, exits=1).stdout
    assert "unit_topic" in run(path, exits=1, FORCE_COLOR="1").stdout


def test_a_warning_is_no_damage(path: Path) -> None:
    FAULTS["slot_count"].plant(Patient(path))
    assert "warning" in run(path).stdout


def test_no_store(tmp_path: Path) -> None:
    assert "Pass the folder of a store" in run(tmp_path, exits=3).stderr
    assert "upto" in run(tmp_path, "--upto", "noon", exits=2).stderr
