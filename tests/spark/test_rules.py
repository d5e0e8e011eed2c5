"""Each rule of distribution finds on Spark what it finds with DuckDB."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.own_rules import make
from tests.pipeline.planted_stores import PLANTED, Case
from tests.pipeline.test_drift import SUNDAY, WEEKDAY, asked, row
from timerstore import InvalidArgumentError, pipeline
from timerstore.validation import validate

pytestmark = pytest.mark.slow
LIVE = [name for name in PLANTED if not name.startswith("drift")]


def findings(out: Path) -> list[dict[str, Any]]:
    rows = pipeline.read(out, "findings").to_pylist()
    return sorted(rows, key=lambda row: (row["store"], row["rule"]))


def test_of_planted_stores(spark: Any, tmp_path: Path) -> None:
    stores, limits = {}, {}
    for name in LIVE:
        case = Case(tmp_path / name)
        case.folder.mkdir()
        limits |= PLANTED[name](case, True)
        stores[name] = str(case.path)
    options: dict[str, Any] = {"run": "one", "thresholds": limits, "now_ms": 1_800_003_601_000}
    pipeline.run(stores, tmp_path / "duckdb", **options)
    pipeline.run(stores, tmp_path / "spark", spark=spark, **options)
    told = findings(tmp_path / "duckdb")
    assert findings(tmp_path / "spark") == told
    spoke = {row["rule"] for row in told if row["checked"] and row["kind"] == "distribution"}
    assert spoke == set(LIVE)


def test_of_drift(spark: Any) -> None:
    history = [row(day, SUNDAY if day % 7 == 6 else WEEKDAY) for day in range(27)][::-1]
    stores = {
        "same": (row(27, SUNDAY), history),
        "other": (row(29, SUNDAY), history),
        "new": (row(29, SUNDAY), []),
    }
    baseline = row(0, [each // 3 for each in WEEKDAY])
    found = asked(stores, spark, baseline)
    assert found == asked(stores, baseline=baseline)
    assert found["new", "drift_baseline"].verdict == "warn"
    assert found["other", "drift_due"].verdict == "fail"
    assert {rule for (_, rule), each in found.items() if each.checked} == {
        name for name in PLANTED if name.startswith("drift")
    }


def test_of_one_s_own(spark: Any, tmp_path: Path) -> None:
    """In a run and in a validation; what is wrong with one names its file."""
    stores, rules = make(tmp_path), tmp_path / "rules"
    options: dict[str, Any] = {"run": "one", "rules": rules, "now_ms": 1_800_003_601_000}
    pipeline.run(stores, tmp_path / "duckdb", **options)
    pipeline.run(stores, tmp_path / "spark", spark=spark, **options)
    told = findings(tmp_path / "duckdb")
    assert findings(tmp_path / "spark") == told
    assert {row["verdict"] for row in told if row["kind"] == "own"} == {"ok", "warn", "fail"}
    (rules / "far.sql").unlink()
    found = validate(stores / "often", spark=spark, rules=rules)
    assert found == validate(stores / "often", rules=rules) and found["twice"].failed == 2
    text = (rules / "twice.sql").read_text()
    (rules / "twice.sql").write_text(text.replace("FROM timers", "FROM tumers"))
    with pytest.raises(InvalidArgumentError, match=r"twice\.sql cannot be run.*tumers"):
        pipeline.run(stores, spark=spark, rules=rules)
