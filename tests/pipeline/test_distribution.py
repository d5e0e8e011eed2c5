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
    told = {}
    for bad in (True, False):
        case = Case(tmp_path / str(bad))
        case.folder.mkdir()
        limits = PLANTED[rule](case, bad)
        found = pipeline.run({"store": str(case.path)}, case.out, thresholds=limits, **case.options)
        rows = pipeline.read(case.out, "findings", run=found.run).to_pylist()
        assert [row["rule"] for row in rows if row["kind"] == "distribution"] == NAMES
        (told[bad],) = [row for row in rows if row["rule"] == rule]
        if bad:
            assert found.verdict == "fail" and not found.ok
            assert rule in {each.name for each in found["store"].findings}
        failed = {row["rule"] for row in rows if row["verdict"] == "fail"}
        consistent = {row["rule"] for row in rows if row["kind"] == "consistency"}
        assert failed - consistent == ({rule} if bad else set()), rows
        if rule == "slots_mapped":
            assert not failed & {"unit_slot", "slot_last", "chain", "unreached"}
    assert told[True]["verdict"] == "fail", told
    assert told[False]["verdict"] != "fail", told
    assert told[True]["fail"] < told[True]["value"]
    assert 0.5 * told[True]["fail"] <= told[False]["value"] <= told[True]["fail"], told
    assert told[True]["says"].endswith(".") and told[True]["advice"].endswith(".")
