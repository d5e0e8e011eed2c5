"""Tests that share a process, see `conftest.Together`: one that ends it takes no other along."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.conftest import pytest_xdist_make_scheduler
"""
TESTS = """
import os
import pytest

@pytest.mark.parametrize("i", range(40))
def test_one(i):
    if i == 17:
        os._exit(3)
"""


@pytest.mark.timeout(120)
def test_a_process_that_ends_fails_its_test_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_ends.py").write_text(TESTS)
    root = Path(__file__).parent.parent
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--color=no"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 failed, 39 passed" in ran.stdout, ran.stdout + ran.stderr
