"""Tests that share a process, see `conftest.Together`: one that ends it takes no other along."""

from pathlib import Path

import pytest

from tests.rigs.program import FILES, ended

pytestmark = pytest.mark.long

CONFTEST = """
from tests.conftest import pytest_xdist_make_scheduler
"""
TESTS = """
import os
import time
import pytest

ENDS = {ends}
if os.environ["PYTEST_XDIST_WORKER"] == "gw3":  # which takes the place of the second that ended
    time.sleep(2)

@pytest.mark.parametrize("i", range(40))
def test_one(i):
    if i in ENDS:
        os._exit(3)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ends", [pytest.param({17}, marks=pytest.mark.prove), {17, 18}])
def test_a_process_that_ends_fails_its_test_alone(tmp_path: Path, ends: set[int]) -> None:
    """Also if another ends while the one that takes its place still looks for its tests."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_ends.py").write_text(TESTS.format(ends=ends))
    run = ["-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--color=no"]
    ran = ended(*run, cwd=tmp_path, timeout_s=100, PYTHONPATH=str(FILES))
    assert f"{len(ends)} failed, {40 - len(ends)} passed" in ran.stdout, ran.stdout + ran.stderr
