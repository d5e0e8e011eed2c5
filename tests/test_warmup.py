"""What was compiled once is all that any program needs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from timerstore.timelog.jit.kernel import INTERPRETED

ROOT = Path(__file__).parents[1]
LIFE = "from tests.rigs.rare_life import main; main(Path(sys.argv[2]))"
RUN = f"import sys; from pathlib import Path; sys.path.append(sys.argv[1]); {LIFE}"


def lived(folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, ROOT, folder],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_kernel_says_when_it_is_compiled() -> None:
    for folder in ("timelog", "wheel", "services", "timerstore"):
        for file in (ROOT / folder).rglob("*.py"):
            for each in ast.walk(ast.parse(file.read_text())):
                if isinstance(each, ast.FunctionDef):
                    names = {ast.unparse(decorator) for decorator in each.decorator_list}
                    assert "kernel" not in names, f"{file}: {each.name}: kernel_ahead, or _later?"


if not INTERPRETED:

    @pytest.mark.timeout(120)
    def test_crashes_mending_and_looking_compile_nothing(tmp_path: Path) -> None:
        """Whatever another test has left in the cache, each kernel's types were said ahead."""
        assert lived(tmp_path) == "done\n"

    @pytest.mark.skipif("COLD_CACHE" not in os.environ, reason="it takes minutes: COLD_CACHE=1")
    @pytest.mark.timeout(600)
    def test_the_first_opening_compiles_all_of_them(tmp_path: Path) -> None:
        cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        program = "import sys, timerstore; timerstore.open(sys.argv[1]).close()"
        command = [sys.executable, "-P", "-c", program, str(tmp_path / "store")]
        subprocess.run(command, env=os.environ | cache, check=True, timeout=400)
        (tmp_path / "life").mkdir()
        assert lived(tmp_path / "life", **cache) == "done\n"
