"""The fixtures that pytest finds where timerstore is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.markdown import ROOT
from timerstore import pytestplugin
from timerstore.pytestplugin import timers, timers_clock

__all__ = ["timers", "timers_clock"]  # whether or not this clone is installed


@pytest.mark.slow
def test_a_store_whose_clock_is_moved(
    timers: timerstore.TimerStore, timers_clock: timerstore.ManualClock
) -> None:
    timers.put(b"x", delay=timedelta(days=1))
    assert len(timers.pull("default", timeout=0)) == 0
    timers_clock.advance(timedelta(days=1))
    (d,) = timers.pull("default", timeout=0)
    assert d.due_ms == timers_clock.now_ms == pytestplugin.START_MS + 86_400_000


def test_pytest_finds_them_and_loads_little() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {pytestplugin.__name__: pytestplugin.__name__}
    program = (
        f"import sys, {pytestplugin.__name__}; print({{'numpy', 'pyarrow'}} & {{*sys.modules}})"
    )
    command = [sys.executable, "-P", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


CONFTEST = """
import pytest
pytest_plugins = ["timerstore.pytestplugin"]
pytest.register_assert_rewrite("timerstore")  # as pytest does for each package with a plugin
"""
TEST = """
def test_it(timers):
    import timerstore.wheel.timerwheel as module
    assert not type(module.__loader__).__module__.startswith("_pytest")
    assert timers.count() == 0
"""


@pytest.mark.slow
def test_kernels_are_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout
