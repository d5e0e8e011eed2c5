"""Numba's own linking gives the same kernels where ours does not work."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.program import ended
from timerstore.timelog.jit import compilers
from timerstore.timelog.jit.kernel import INTERPRETED

ROOT = Path(__file__).parents[3]
TRIAL = "from timerstore.timelog.jit import trial; trial.main(); print('the same')\n"
ASKED = "KERNEL_LINKING asks for it"


def ran(
    folder: Path, program: str, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Another process, with a cache of its own."""
    folder.mkdir(exist_ok=True)
    env = {"NUMBA_CACHE_DIR": str(folder / "cache"), **env}
    return ended("-c", program, *arguments, cwd=folder, timeout_s=1_500, **env)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not chosen yet."""
    monkeypatch.setattr(compilers, "_reason", None)
    monkeypatch.delenv(compilers.SWITCH, raising=False)


@pytest.mark.usefixtures("unasked")
class TestChoice:
    def test_one_that_was_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for version in ("0.61.2", "0.68.1", "0.68.0rc1"):
            monkeypatch.setattr(compilers, "_reason", None)
            monkeypatch.setattr("numba.__version__", version)
            assert not compilers.links_itself()
        assert compilers.environment() == {"KERNEL_LINKING": "own"}

    @pytest.mark.parametrize(
        ("program", "reason"),
        [
            ("raise SystemExit('a kernel: 3 instead of 4')", "a kernel: 3 instead of 4"),
            ("import os; os.abort()", "status -6"),
            ("", None),
        ],
    )
    @pytest.mark.parametrize("version", ["0.69.0", "1.0"])
    def test_one_that_is_new(
        self,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        version: str,
        program: str,
        reason: str | None,
    ) -> None:
        monkeypatch.setattr("numba.__version__", version)
        monkeypatch.setattr(compilers, "_PROGRAM", program)
        assert [compilers.links_itself() for _ in range(2)] == [reason is not None] * 2
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (reason is not None)
        if reason is not None:
            assert version in said[0] and reason in said[0]
            assert compilers.environment() == {"KERNEL_LINKING": "numba"}

    def test_a_program_that_is_no_python_tries_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("numba.__version__", "0.69.0")
        monkeypatch.setattr(sys, "executable", "/bin/something-else")
        assert compilers.links_itself()


if not INTERPRETED:

    @pytest.mark.slow
    def test_numbas_own_linking_gives_the_same_results(tmp_path: Path) -> None:
        done = ran(tmp_path, TRIAL, KERNEL_LINKING="numba")
        assert done.stdout == "the same\n" and done.stderr.count("\n") == 1, done.stderr
        assert ASKED in done.stderr

    @pytest.mark.slow
    def test_what_is_missing_is_done_without(tmp_path: Path) -> None:
        lacking = "import numba.core.compiler_machinery as it; del it.PassManager\n"
        done = ran(tmp_path, lacking + TRIAL)
        assert done.stdout == "the same\n" and done.stderr.count("\n") == 1, done.stderr
        assert "PassManager" in done.stderr

    @pytest.mark.slow
    @pytest.mark.usefixtures("unasked")
    def test_a_new_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("numba.__version__", "0.69.0")
        assert not compilers.links_itself()

    BROKEN = {
        "helpers are not linked": "KernelLibrary.finalize = JITCodeLibrary.finalize",
        "what is cached cannot be read": (
            "KernelLibrary.serialize_using_object_code = lambda self: self.name"
        ),
        "a helper is finished otherwise": "HelperLibrary.finalize = lambda self: 1 / 0",
    }

    @pytest.mark.slow
    @pytest.mark.parametrize("how", BROKEN)
    def test_a_trial_notices(tmp_path: Path, how: str) -> None:
        broken = "from timerstore.timelog.jit.linking import *\n" + BROKEN[how] + "\n"
        done = ran(tmp_path, broken + TRIAL, KERNEL_LINKING="own")
        assert done.returncode != 0 and done.stdout == ""

    TESTS = ("tests/wheel/test_slots.py", "tests/services/test_calls.py")
    PLAYED = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    PYTEST = ("-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-m", "not prove")

    @pytest.mark.slow
    def test_some_tests_pass_with_numbas_own_linking(tmp_path: Path) -> None:
        tests = [str(ROOT / each) for each in TESTS]
        where = ("-c", str(ROOT / "pyproject.toml"), f"--basetemp={tmp_path / 'made'}")
        done = ran(tmp_path, PLAYED, *PYTEST, *where, *tests, KERNEL_LINKING="numba")
        assert done.returncode == 0, done.stdout[-4_000:]

    LIFE = """
import hashlib, random, sys
from pathlib import Path

random.SystemRandom = lambda: random.Random(7)  # the store's tag
root, folder = map(Path, sys.argv[1:])
sys.path.append(str(root))
from tests.rigs import rare_life
from timerstore import ManualClock

clock, path = ManualClock(1_800_000_000_000), folder / "store"


def step(play, *arguments):
    play(*arguments)
    files = sorted((path / "commitlog").iterdir())
    print(play.__name__, hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest())


step(rare_life.unclean, path, clock)
step(rare_life.outlive, path, clock)
step(rare_life.mend, path, clock)
step(rare_life.look, path, folder)
"""

    @pytest.mark.slow
    @pytest.mark.prove
    @pytest.mark.timeout(1_600)
    def test_a_whole_life_is_the_same_with_numbas_own_linking(tmp_path: Path) -> None:
        """It compiles all kernels: minutes."""
        lives = []
        for mode in ("own", "numba"):
            (tmp_path / mode).mkdir()
            cache = {"NUMBA_CACHE_DIR": str(tmp_path / mode / "cache")} if mode == "numba" else {}
            run = ["-c", LIFE, ROOT, tmp_path / mode]
            done = ended(*run, timeout_s=1_500, KERNEL_LINKING=mode, **cache)
            assert done.returncode == 0, done.stderr
            assert (ASKED in done.stderr) == (mode == "numba")
            lives.append(done.stdout)
        assert lives[0] == lives[1] and lives[0].count("\n") == 4
