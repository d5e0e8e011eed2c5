"""Rules of one's own: a folder of SQL, asked of one store and of many, tried before."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.pipeline.own_rules import FAR, TWICE, make
from timerstore import InvalidArgumentError, pipeline
from timerstore.cli.commands import app
from timerstore.pipeline import DISTRIBUTION_RULES
from timerstore.validation import RULES, validate

pytestmark = pytest.mark.slow


def run(*arguments: object, exits: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == exits, result.output
    return result


def test_a_run_asks_them(tmp_path: Path) -> None:
    stores, out = make(tmp_path), tmp_path / "tables"
    found = pipeline.run(stores, out, rules=tmp_path / "rules", run="one")
    assert {each.name: each.verdict for each in found.stores} == {
        "good": "ok",
        "once": "warn",
        "often": "fail",
    }
    (finding,) = found["often"].findings
    assert (finding.name, finding.rule.kind, finding.value) == ("twice", "own", 4)
    assert finding.says == "4 reminders for cid."
    assert (
        finding.advice == "Somebody gets the same reminder more than once. Cancel the earlier one."
    )
    assert [place.reason for place in finding.places] == ["cid", "bob"]
    rows = pipeline.read(out, "findings", store="good").to_pylist()
    told = {row["rule"]: row["says"] for row in rows if row["kind"] == "own"}
    assert told["far"] == "Fewer than 3 timers wait."
    limits = {"twice": {"fail": 3}, "far": {"warn": 0.1}, "load_second": {"warn": 2}}
    found = pipeline.run(stores, rules=tmp_path / "rules", thresholds=limits)
    assert {each.name for each in found["often"].findings} == {"twice", "far"}
    with pytest.raises(InvalidArgumentError, match="there is no rule 'twice'"):
        pipeline.run(stores, thresholds=limits)


def test_a_validation_asks_those_that_look_at_a_store(tmp_path: Path) -> None:
    stores, rules = make(tmp_path), tmp_path / "rules"
    with pytest.raises(
        InvalidArgumentError, match=r"far\.sql looks at 'stores', which is not there"
    ):
        validate(stores / "good", rules=rules)
    (rules / "far.sql").unlink()
    good, often = (validate(stores / name, rules=rules) for name in ("good", "often"))
    assert good.ok and good["twice"].ok and good["twice"].checked == 1
    assert not often.ok and often["twice"].failed == 2
    assert [each.reason for each in often["twice"].places] == ["cid", "bob"]
    assert often.verdict == "sound; of your own 1 rule fails"
    once = validate(stores / "once", rules=rules)
    assert once.ok and (once["twice"].severity, once["twice"].failed) == ("warning", 1)


def test_commands(tmp_path: Path) -> None:
    stores, out, rules = make(tmp_path), tmp_path / "tables", tmp_path / "rules"
    shown = run("pipeline", "run", out, stores, "--rules", rules, "--run", "one", exits=1).stdout
    assert "twice\t4 reminders for cid." in shown
    shown = run("pipeline", "explain", "twice", out, "--rules", rules).stdout
    assert TWICE[TWICE.index("SELECT") :].strip() in shown
    assert "limits: warn 1, fail 2" in shown and "fail often: 4 reminders for cid." in shown
    (rules / "far.sql").unlink()
    shown = run("validate", stores / "often", "--rules", rules, exits=1).stdout
    assert "own\ttwice\t4\t2\tFAILED" in shown


def test_every_rule_is_explained(tmp_path: Path) -> None:
    pipeline.run(make(tmp_path), tmp_path / "tables", run="one")
    for each in (*DISTRIBUTION_RULES, *RULES):
        told = pipeline.explain(each.name, tmp_path / "tables")
        assert told.rule.name in str(told) and told.rule.means in str(told)
        assert {row["store"] for row in told.last} == {"good", "once", "often"}
        assert (told.rule.do == "") == (told.rule.kind == "consistency")
        assert told.rule.text or told.rule.kind == "consistency"
    told = json.loads(run("pipeline", "explain", "chains_depth", "--json").stdout)
    assert told["warn"] == 100_000 and "FROM slot_load" in told["query"]
    assert "There is no rule" in run("pipeline", "explain", "chain_depth", exits=2).stderr


@pytest.mark.parametrize(
    ("wrong", "right", "says"),
    [
        ("-- none", "-- nune", "says 'nune' in its head. Did you mean none"),
        ("-- do: Cancel the earlier one.\n", "", "does not say 'do'. Write -- do: …"),
        ("warn: 1", "warn: one", "has the limit 'one'. Use a number."),
        ("looks at: timers", "looks at: timer", "looks at 'timer', which is not there"),
        ("FROM timers", "FROM tumers", "cannot be run. The engine says: .*tumers"),
        ("GROUP BY store, key", "GROUP store", "cannot be run. The engine says: .*syntax"),
        ("AS checked", "AS looked", "returns no checked. Select it."),
        ("{timers:reminder}", "{count}", "says {count} in 'says', and its query returns no such"),
        ("No timer waits.", "No {key} waits.", "says {key} in 'none', and there is no row then"),
        ("-- place: {key}\n", "", "returns a file. Let it return its offset too"),
        (TWICE[TWICE.index("SELECT") :], "", "has no query. Write one below its head."),
    ],
)
def test_what_is_wrong_is_told_before_a_store_is_read(
    wrong: str, right: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "rules").mkdir()
    assert wrong in TWICE
    (tmp_path / "rules" / "twice.sql").write_text(TWICE.replace(wrong, right, 1))
    for ask in (validate, pipeline.run):
        with pytest.raises(InvalidArgumentError, match=says.replace("{", r"\{")) as raised:
            ask(
                {"no store": tmp_path} if ask is pipeline.run else tmp_path,
                rules=tmp_path / "rules",
            )
        assert str(tmp_path / "rules" / "twice.sql") in str(raised.value)


def test_folders_and_names(tmp_path: Path) -> None:
    def told(name: str, text: str | bytes) -> str:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InvalidArgumentError) as raised:
            pipeline.run(tmp_path, rules=tmp_path)
        (tmp_path / name).unlink()
        return str(raised.value)

    assert "has no file that ends with .sql" in told("readme.txt", "")
    assert "is no name of a rule" in told("Far-Ahead.sql", FAR)
    assert "has the name of a rule that timerstore has" in told("load_second.sql", FAR)
    assert "has the name of a rule that timerstore has" in told("once.sql", FAR)
    assert "has the name of a rule that timerstore has" in told("entry.sql", FAR)
    assert "cannot be read" in told("far.sql", b"\xff")
    with pytest.raises(InvalidArgumentError, match="Pass a folder with a file of SQL"):
        pipeline.run(tmp_path, rules=tmp_path / "gone")


def test_no_variable_of_ours_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "rule.sql").write_text(TWICE.replace("FROM timers", "FROM rows"))
    with pytest.raises(InvalidArgumentError, match="rows does not exist"):
        pipeline.run(tmp_path, rules=tmp_path)


def test_an_engine_reads_only_the_columns_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timerstore.audit import engines

    read, asked = engines.read_store, list[Any]()

    def noting(path: str, table: str, columns: Any, *more: Any, **options: Any) -> Any:
        asked.append((table, sorted(columns)))
        return read(path, table, columns, *more, **options)

    monkeypatch.setattr(engines, "read_store", noting)
    stores, rules = make(tmp_path), tmp_path / "rules"
    pipeline.run(stores / "often", rules=rules)
    assert asked == [("timers", ["due_ms", "key", "store", "unit_offset"])]
