"""What keeps kernels from being loaded is told as that, not as a fault of the store's folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from timerstore.jit.later import compiler

PROGRAM = """
import ctypes, os, sys
import timerstore
path, how, away = sys.argv[1:]
if how == "away":
    os.mkdir(away)
    os.chdir(away)
    os.rmdir(away)
elif ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE
    sys.exit("skipped: this system has no way to refuse it")
try:
    timerstore.open(path).close()
    print("opened")
except timerstore.TimerStoreError as e:
    print(type(e).__name__, e)
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("how", ["away", "no executable memory"])
def test_neither_a_missing_working_directory_nor_memory_is_the_folders_fault(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-P", "-c", PROGRAM, str(path), how, str(tmp_path / "away")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    if done.stderr.startswith("skipped"):
        pytest.skip(done.stderr)
    told = done.stdout.strip()
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert told == "opened" or told.startswith("TimerStoreError The kernels' machine code"), told
    assert str(path) not in told and told.endswith((".", "opened"))


def test_whatever_an_import_refuses_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise PermissionError(13, "no", name)

    monkeypatch.setattr("timerstore.jit.later.import_module", refuse)
    with pytest.raises(Exception, match="machine code could not be loaded") as raised:
        compiler("llvm_engine")
    assert not isinstance(raised.value, OSError)
