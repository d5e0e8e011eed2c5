"""Each rule of distribution fails one store that is made for it, but not its near twin."""

from pathlib import Path

import pytest

from tests.pipeline.planted_stores import PLANTED, Case
from timerstore import pipeline

pytestmark = pytest.mark.slow
NAMES = [rule.name for rule in pipeline.DISTRIBUTION_RULES]


def test_each_rule_has_a_planted_store() -> None:
    assert set(NAMES) == set(PLANTED)


@pytest.mark.tier("promise", only=("slots_mapped",))
@pytest.mark.parametrize("rule", NAMES)
def test_it_fails_and_barely_does_not(rule: str, tmp_path: Path) -> None:
    """Of two stores in one run, if both are judged alike."""
    case = Case(tmp_path, ("bad", "good"))
    options = {name: case.plant(rule, name) for name in case.names}
    alike = options["bad"] == options["good"]
    runs = [case.names] if alike else [(name,) for name in case.names]
    told = {}
    for names in runs:
        stores = {name: str(case.folder / name) for name in names}
        run = pipeline.run(stores, case.out, run="-".join(names), **options[names[0]])
        rows = pipeline.read(case.out, "findings", run=run.run).to_pylist()
        for name in names:
            told[name] = [row for row in rows if row["store"] == name]
        if "bad" in names:
            assert run.verdict == run["bad"].verdict == "fail" and not run.ok
            assert rule in {each.name for each in run["bad"].findings}
    values = {}
    for name, rows in told.items():
        assert [row["rule"] for row in rows if row["kind"] == "distribution"] == NAMES
        (values[name],) = [row for row in rows if row["rule"] == rule]
        failed = {row["rule"] for row in rows if row["verdict"] == "fail"}
        consistent = {row["rule"] for row in rows if row["kind"] == "consistency"}
        assert failed - consistent == ({rule} if name == "bad" else set()), rows
        if rule == "slots_mapped":
            assert not failed & {"unit_slot", "slot_last", "chain", "unreached"}
    bad, good = values["bad"], values["good"]
    assert bad["verdict"] == "fail" != good["verdict"], values
    assert bad["fail"] < bad["value"]
    assert 0.5 * bad["fail"] <= good["value"] <= bad["fail"], values
    assert bad["says"].endswith(".") and bad["advice"].endswith(".")
