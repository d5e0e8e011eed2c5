"""What the suite makes of measurements: ratios, a verdict, a baseline."""

import json
from pathlib import Path

import pytest
import suites
from suites import Stage, Verdict

BASELINE = {"a": 1.0, "b": 2.0, "c": 3.0}


def never(names: list[str]) -> dict[str, float]:
    raise AssertionError(names)


def test_a_ratio_is_the_median_of_its_rounds() -> None:
    document = {
        "benchmarks": [
            {
                "fullname": "bench/suite/bench_calls.py::bench_put[key]",
                "stats": {"median": 0.002},
                "extra_info": {"count": 1_000, "beside": "python", "ratios": [9.0, 1.0, 2.0]},
            }
        ]
    }
    name = "bench_calls.py::bench_put[key]"
    found = suites.stages_of(document)
    assert found == {name: Stage(name, 2.0, pytest.approx(2_000), "python")}


def test_nothing_is_slower() -> None:
    verdict = suites.compare({"a": 1.09, "b": 2.0, "c": 2.6}, BASELINE, 0.1, never)
    assert verdict.is_good
    assert list(verdict.faster) == ["c"]
    assert "faster by 15%: c" in suites.told(verdict, 0.1)


def test_what_is_slow_once_is_measured_again() -> None:
    asked = []

    def again(names: list[str]) -> dict[str, float]:
        asked.append(names)
        return {"a": 1.4, "b": 1.9}

    verdict = suites.compare({"a": 1.3, "b": 2.9, "c": 3.0}, BASELINE, 0.2, again)
    assert asked == [["a", "b"], ["a"]]
    assert verdict.slower == {"a": pytest.approx(0.3)}  # the lowest of all counts
    assert not verdict.is_good
    assert suites.told(verdict, 0.2) == "slower by 30%: a"


def test_a_stage_that_is_new_or_gone_is_named() -> None:
    verdict = suites.compare({"a": 1.0, "b": 2.0, "d": 1.0}, BASELINE, 0.1, never)
    assert verdict == Verdict({}, {}, ["d"], ["c"])
    assert not verdict.is_good
    told = suites.told(verdict, 0.1)
    assert "not in the baseline: d\nin the baseline alone: c\nStore the baseline again" in told


def test_the_lowest_of_several_runs_is_stored(tmp_path: Path) -> None:
    runs = [{"a": Stage("a", ratio, 1, "python")} for ratio in (3.0, 1.23456, 2.0)]
    suites.store(runs, tmp_path / "baseline.json")
    assert json.loads((tmp_path / "baseline.json").read_text())["ratios"] == {"a": 1.235}


def test_the_baseline_knows_every_file() -> None:
    """Each file of the suite has a stage in the baseline, and no other has."""
    ratios = json.loads(suites.BASELINE.read_text())["ratios"]
    files = {path.name for path in suites.SUITE.glob("bench_*.py")}
    assert {name.partition("::")[0] for name in ratios} == files
    assert all(ratio > 0 for ratio in ratios.values())


def test_where_slower_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites.os, "cpu_count", lambda: 2)
    assert suites.excuse("a", "a", load=3.9) is None
    assert "load is 4.1" in (suites.excuse("a", "a", load=4.1) or "")
    assert "stored on a. On b" in (suites.excuse("a", "b", load=0) or "")
