"""The demonstration, run small; its judgement, where a promise was broken."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.markdown import ROOT

pytestmark = pytest.mark.on_disk

DEMO = ROOT / "examples" / "demo.py"
_spec = importlib.util.spec_from_file_location("example_demo", DEMO)
assert _spec is not None and _spec.loader is not None
demo = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(demo)


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.write_text(
        "put A 10\nput B 20\nput C 30\ncancelling B\ncancelling C\ncancelled B\nput D 4"
    )
    assert demo.read_told(told) == ({"A": 10, "B": 20, "C": 30}, {"C"}, {"B"})


@pytest.mark.parametrize(
    ("ids", "due_ms", "fired_ms", "broken"),
    [
        ("AD", [10, 40], [10, 41], ()),
        ("ACD", [10, 30, 40], [10, 30, 41], ()),  # nobody knows of C: its cancel was cut short
        ("D", [40], [40], ["acknowledged, not cancelled: fired"]),
        ("ADD", [10, 40, 40], [10, 40, 41], ["fired once into the log"]),
        ("AD", [10, 40], [9, 41], ["never early"]),
        ("AD", [11, 40], [11, 41], ["fired for the time asked for"]),
        ("ABD", [10, 20, 40], [10, 20, 41], ["cancelled: not fired"]),
    ],
)
def test_judgement(ids: str, due_ms: list[int], fired_ms: list[int], broken: list[str]) -> None:
    put = {"A": 10, "B": 20, "C": 30, "D": 40}
    found = demo.judge(put, {"C"}, {"B"}, list(ids), np.array(due_ms), np.array(fired_ms))
    assert found == {name: int(name in broken) for name in found}


@pytest.mark.promise
@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-P", DEMO, path, "--timers", "4000", "--seconds", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert "SIGKILL" in ended.stdout and ended.stdout.count("  kept\n") == 6
    assert ended.stdout.endswith("Every promise was kept.\n")
    with timerstore.open(path) as store:  # it was kept, and everything in it is done
        assert store.count() == 0
        assert len(store.pull("demo", timeout=0.2)) == 0
    again = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert again.returncode == 2
    assert "exists already" in again.stderr
