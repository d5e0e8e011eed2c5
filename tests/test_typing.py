"""A type checker finds the calls that would be refused, no others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown import ROOT

pytestmark = pytest.mark.long

CALLS = Path(__file__).with_name("typed_calls.py")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_mypy_finds_wrong_calls(tmp_path: Path) -> None:
    # As in a program of somebody else: what the package itself is made of is not looked at.
    options = ["--config-file=", "--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    command = [sys.executable, "-P", "-m", "mypy", *options, f"--cache-dir={tmp_path}", str(CALLS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    found = {int(line) for line in re.findall(r"typed_calls\.py:(\d+): error", done.stdout)}
    lines = CALLS.read_text().splitlines()
    wrong = {i for i, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) == 26 and found == wrong, done.stdout + done.stderr


def test_no_package_has_any_name() -> None:
    """A module's `__getattr__` that a type checker sees gives each misspelt name a type."""
    for folder in ("timerstore", "timelog", "wheel", "services"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text()  # what stands below `if` is not seen
            assert not re.search(r"^(def )?__getattr__\b", text, re.MULTILINE), file
