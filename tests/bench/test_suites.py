"""What the suite makes of measurements: ratios, a verdict, a baseline."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import suites
from suites import Stage

pytestmark = pytest.mark.long

BASELINE = {"a": 1.0, "b": 2.0, "c": 3.0}


def never(*names: object, **more: object) -> dict[str, float]:
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


def test_what_is_faster_new_or_gone_is_named(tmp_path: Path) -> None:
    """The lowest of several runs is what is stored."""
    verdict = suites.compare({"a": 1.09, "b": 1.6, "d": 1.0}, BASELINE, 0.1, never)
    assert (verdict.slower, verdict.new, verdict.gone, verdict.is_good) == ({}, ["d"], ["c"], False)
    told = suites.told(verdict, 0.1)
    assert "faster by 25%: b\nnot in the baseline: d\nin the baseline alone: c\nStore the" in told
    runs = [{"a": Stage("a", ratio, 1, "python")} for ratio in (3.0, 1.23456, 2.0)]
    suites.store(runs, tmp_path / "baseline.json")
    assert json.loads((tmp_path / "baseline.json").read_text())["ratios"] == {"a": 1.235}


def test_the_baseline_knows_every_file() -> None:
    """Each file of the suite has a stage in the baseline, and no other has."""
    ratios = json.loads(suites.BASELINE.read_text())["ratios"]
    files = {path.name for path in suites.SUITE.glob("bench_*.py")}
    assert {name.partition("::")[0] for name in ratios} == files
    assert all(ratio > 0 for ratio in ratios.values())


def end_with(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Run `--suite` with some words; return what it ends with."""
    monkeypatch.setattr(sys, "argv", ["suites.py", *words])
    with pytest.raises(SystemExit) as ended:
        suites.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no baseline in"),
        ('{"kind": "a"}', "is not a file that --store has written"),
        ('{"kind": "a", "ratios": {"a": 0}}', "a ratio is not above 0"),
        ('{"kind": "a", "ratios": {}}', "there is no baseline in"),
    ],
)
def test_a_baseline_that_is_missing_or_broken_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    said: str,
) -> None:
    monkeypatch.setattr(suites, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(suites, "measure", never)
    if text is not None:
        suites.BASELINE.write_text(text)
    for word in ("--compare", "--short"):
        assert end_with(monkeypatch, word) == 2
        assert said in capsys.readouterr().err


def test_a_stage_that_is_slower_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage of 2.1 times its baseline, here, on another kind of machine, on a busy one."""
    monkeypatch.setattr(suites, "BASELINE", tmp_path / "baseline.json")
    own = suites.machine.kind()
    for kind, load, ratio, code in (
        (own, 0.5, 2.1, 1),
        ("another", 0.5, 2.1, 0),
        (own, 1e9, 2.1, 0),
        (own, 1e9, 2.6, 1),
        ("another", 1e9, 2.6, 0),
    ):
        monkeypatch.setattr(suites.os, "getloadavg", lambda load=load: (load, load, load))
        stages = {"a": Stage("a", ratio, 1, "python")}
        monkeypatch.setattr(suites, "measure", lambda *_, stages=stages, **more: stages)
        suites.BASELINE.write_text(json.dumps({"kind": kind, "ratios": {"a": 1.0}}))
        assert end_with(monkeypatch, "--short") == code
        assert f"slower by {ratio - 1:.0%}: a" in capsys.readouterr().out


def test_stages_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)  # else pytest-benchmark refuses
    assert end_with(monkeypatch, "-k", "no_such_stage") == "No stage is called 'no_such_stage'."
    assert end_with(monkeypatch, "-k", "put", "--store") == 2


def test_a_run_that_is_cut_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, pathlib, sys, tempfile, time\n"
        "with tempfile.TemporaryDirectory(dir=sys.argv[1]):\n"
        "    os.kill(os.getppid(), 15); time.sleep(100)\n"
    )
    with pytest.raises(SystemExit) as ended, suites.machine.tidy_end():
        suites.run_tidily([sys.executable, "-c", code, str(tmp_path)], dict(os.environ))
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
