"""What was compiled once is all that any program needs."""

import ast
import os
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.rigs.program import python
from timerstore import InvalidArgumentError
from timerstore.cli.commands import app
from timerstore.errors import StoreAccessError
from timerstore.jit.kernel import INTERPRETED
from timerstore.warmup import pack

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
LIFE = "from tests.rigs.rare_life import main; main(Path(sys.argv[2]))"
RUN = f"import sys; from pathlib import Path; sys.path.append(sys.argv[1]); {LIFE}"


def lived(folder: Path, **environment: str) -> str:
    return python("-c", RUN, ROOT, folder, timeout_s=100, **environment)


def _files(folder: str) -> list[Path]:
    return list((ROOT / folder).rglob("*.py"))


def test_every_kernel_says_when_it_is_compiled() -> None:
    for folder in ("timelog", "wheel", "services", "timerstore"):
        for file in _files(folder):
            for each in ast.walk(ast.parse(file.read_text())):
                if isinstance(each, ast.FunctionDef):
                    names = {ast.unparse(decorator) for decorator in each.decorator_list}
                    assert "kernel" not in names, f"{file}: {each.name}: kernel_ahead, or _later?"


def test_every_kernel_is_warmed_up() -> None:
    """Opening compiles those of the engine's folders, and of what a store's calls import."""
    engine = {file for folder in ("timelog", "wheel", "services") for file in _files(folder)}
    others = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in _files("timerstore")
        if not {file.resolve()} & engine and re.search(r"^@kernel", file.read_text(), re.M)
    ]
    imports = f"import sys, timerstore.store.store; print(set({others}) - sys.modules.keys())"
    assert others and python("-c", imports) == "set()\n"


if not INTERPRETED:

    @pytest.mark.timeout(120)
    def test_crashes_mending_and_looking_compile_nothing(tmp_path: Path) -> None:
        """Whatever another test has left in the cache, each kernel's types were said ahead."""
        assert lived(tmp_path) == "done\n"

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_a_zip_file_brings_its_kernels(tmp_path: Path) -> None:
        """Who imports the package from it compiles nothing, and leaves nothing anywhere."""
        packed, home = tmp_path / "timerstore.zip", tmp_path / "home"
        done = CliRunner().invoke(app, ["warmup", "--zip", str(packed)])
        assert done.exit_code == 0, done.output
        home.mkdir()
        (tmp_path / "life").mkdir()
        names = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
        elsewhere = dict.fromkeys(names, str(home))
        path = f"./{os.path.relpath(packed)}"  # Spark's workers name it by a relative path
        assert lived(tmp_path / "life", PYTHONPATH=path, **elsewhere) == "done\n"
        assert list(home.iterdir()) == []

    def test_packing_what_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def found(name: str) -> ModuleSpec:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = ["packed.zip/timerstore"]
            return spec

        monkeypatch.setattr("timerstore.warmup.find_spec", found)
        with pytest.raises(InvalidArgumentError, match="Install it in a folder"):
            pack(tmp_path / "other.zip")
        monkeypatch.undo()
        with pytest.raises(StoreAccessError):
            pack(tmp_path / "gone" / "timerstore.zip")

    @pytest.mark.skipif("COLD_CACHE" not in os.environ, reason="it takes minutes: COLD_CACHE=1")
    @pytest.mark.timeout(600)
    def test_the_first_opening_compiles_all_of_them(tmp_path: Path) -> None:
        cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        program = "import sys, timerstore; timerstore.open(sys.argv[1]).close()"
        python("-c", program, tmp_path / "store", timeout_s=400, **cache)
        (tmp_path / "life").mkdir()
        assert lived(tmp_path / "life", **cache) == "done\n"
