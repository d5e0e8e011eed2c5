"""Kernels that are compiled ahead of time: what calls them, when they are used."""

import json
import os
import platform
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import timerstore
from tests.rigs.program import ended
from timerstore.jit import numpylayout, packaged
from timerstore.jit.cachefolder import FOLDER
from timerstore.jit.kernel import INTERPRETED, LOADED_AHEAD, LOADED_LATER
from timerstore.jit.loading import named_by
from timerstore.jit.packaged import LEVEL_OF, level_here

PACKAGE = Path(timerstore.__file__).parent
UNCOMPILED = shutil.ignore_patterns("__pycache__", "kernels")

# Kernels of each kind of argument, result, call.
SOURCE = '''
"""Kernels to be packed."""

from typing import NamedTuple

from timerstore.jit.crc import crc32
from timerstore.jit.kernel import INTERPRETED, kernel_ahead, kernel_ahead_with_gil, kernel_later
from timerstore.jit.record import Bytes, Flags, ReadBytes, Rows, Words, record


@record
class Place:
    words: Words
    count: int = 0


class Pair(NamedTuple):
    words: Words
    by: int


@kernel_ahead
def of_all(place: Place, pair: Pair, rows: Rows, flags: Flags, up: bool, by: int) -> int:
    place.count += by
    total = place.words[0] + pair.words[1] * pair.by
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            total += rows[i, k] if up else -rows[i, k]
    return total + len(flags)


@kernel_later
def crc_of(data: ReadBytes, at: int, count: int) -> int:
    return crc32(data, at, count)


@kernel_ahead
def is_odd(x: int) -> bool:
    return x % 2 == 1


@kernel_ahead
def fill(data: Bytes, value: int) -> None:
    data[:] = value


@kernel_ahead_with_gil
def add(a: int, b: int) -> int:
    return a + b
'''

USE = """
import sys, zlib
import numpy as np
from timerstore.jit import packs
from timerstore.jit.record import read_only
assert {type(each).__name__ for each in vars(packs).values()} >= {"Kernel"}
place, pair = packs.Place(np.array([5, 6])), packs.Pair(np.array([1, 100]), 3)
rows, flags = np.arange(6).reshape(2, 3), np.zeros(4, np.bool_)
assert packs.of_all(place, pair, rows, flags, True, 2) == 5 + 300 + 15 + 4 and place.count == 2
assert packs.of_all(place, pair, rows[:1], flags[1:], False, np.int64(-1)) == 5 + 300 - 3 + 3
assert place.count == 1
data = np.arange(1000, dtype=np.uint8)
for start, count in ((0, 0), (1, 15), (3, 16), (5, 64), (7, 900)):
    wanted = zlib.crc32(data[start : start + count])
    assert packs.crc_of(read_only(data), start, count) == wanted
    assert packs.crc_of(data, start, count) == wanted
assert [packs.is_odd(x) for x in (-1, 0, 3)] == [True, False, True]
assert packs.fill(data[10:20], 9) is None and data[9:21].tolist() == [9, *[9] * 10, 20]
assert packs.add(-1, 1 << 40) == (1 << 40) - 1
assert "numba" not in sys.modules and "llvmlite" not in sys.modules
# What fits no type is refused: columns, arguments by name, other numbers, a sealed array.
sealed = read_only(np.zeros(4, np.uint8))
column = np.zeros((9, 2), np.uint8)[:, 0]
for wrong in ((data, "x"), (data, 1 << 70), (sealed, 1), (column, 3), (data,)):
    try:
        packs.fill(*wrong)
        raise SystemExit(f"{wrong} was taken")
    except TypeError:
        pass
try:
    packs.is_odd(x=3)
    raise SystemExit("a name was taken")
except TypeError:
    pass
assert not sealed.any() and "llvmlite" not in sys.modules
print("used")
"""


def ran(
    site: Path, program: str, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name[:5] != "NUMBA"}
    variables |= {"PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(site / "c")}
    return ended("-c", program, *words, cwd=site, env=variables, **environment)


PACK = """
import sys
from timerstore.jit import packing, packs
from timerstore.jit.kernel import LOADED_AHEAD, LOADED_LATER
few = [each for each in [*LOADED_AHEAD, *LOADED_LATER] if each.py_func.__module__ == packs.__name__]
packing.all_kernels = lambda: few
packing.pack_here(sys.argv[1])
"""

if not INTERPRETED:

    @pytest.fixture(scope="module")
    def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A copy of the package with some packed kernels."""
        site = tmp_path_factory.mktemp("site")
        shutil.copytree(PACKAGE, site / "timerstore", ignore=UNCOMPILED)
        (site / "timerstore/jit/packs.py").write_text(SOURCE)
        kernels = site / "timerstore" / FOLDER
        kernels.mkdir()
        level = LEVEL_OF[platform.machine()]
        target = {"NUMBA_CPU_NAME": level.processor, "NUMBA_CPU_FEATURES": level.text}
        done = ran(site, PACK, str(kernels), KERNEL_LEVEL="none", **target)
        assert done.returncode == 0, done.stderr
        return site

    @pytest.mark.prove
    @pytest.mark.slow
    def test_packed_kernels_do_what_kernels_do(site: Path) -> None:
        done = ran(site, USE if level_here() else "print('used')")
        assert (done.stdout, done.returncode) == ("used\n", 0), done.stderr
        assert done.stderr == ""

    TRY = (
        "import sys, timerstore.jit.packs as it\nassert it.is_odd(3)\n"
        "print('numba' in sys.modules)\n"
    )

    @pytest.mark.tier("prove", but=("a byte*", "a source*", "bounds*"))
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("what", "told"),
        [
            ("a byte", "was changed after it was packaged"),
            ("a source", "they were made from other sources"),
            ("a level", "which this processor is not"),
            ("the manifest", "cannot be read"),
            ("no manifest", ""),
            ("none", ""),
            ("bounds", ""),
        ],
    )
    def test_nothing_else_is_run(site: Path, tmp_path: Path, what: str, told: str) -> None:
        """What was compiled then is compiled here, and a line says why."""
        copy = tmp_path / "site"
        shutil.copytree(site, copy)
        kernels = copy / "timerstore" / FOLDER
        environment = {
            "none": {"KERNEL_LEVEL": "none"},
            "bounds": {"NUMBA_BOUNDSCHECK": "1"},
        }.get(what, {})
        if what == "a byte":
            for library in kernels.glob("*.so"):
                content = bytearray(library.read_bytes())
                content[len(content) // 2] ^= 1
                library.write_bytes(content)
        elif what == "a source":
            with (copy / "timerstore/jit/packs.py").open("a") as file:
                file.write("# edited\n")
        elif what == "a level":
            manifest = kernels / packaged.MANIFEST
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"level": "another"}))
        elif what == "the manifest":
            (kernels / packaged.MANIFEST).write_text("{")
        elif what == "no manifest":
            (kernels / packaged.MANIFEST).unlink()
        done = ran(copy, TRY, **environment)
        assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
        assert done.stderr.count("\n") == bool(told) and told in done.stderr

    @pytest.mark.slow
    def test_a_zip_archive_brings_them_too(site: Path, tmp_path: Path) -> None:
        made = shutil.make_archive(str(tmp_path / "all"), "zip", site)
        done = ran(tmp_path, TRY, PYTHONPATH=made)
        assert (done.stdout, done.stderr) == ("False\n", "")

    def test_a_digest_has_all_that_kernels_are_made_of() -> None:
        """Else those of a wheel would be run though a helper of theirs is another by now."""
        import_module("timerstore.store.store")
        waiting: list[Any] = [each.py_func for each in [*LOADED_AHEAD, *LOADED_LATER]]
        seen = set[FunctionType]()
        while waiting:
            function = waiting.pop()
            function = getattr(function, "py_func", function)
            if isinstance(function, FunctionType) and function not in seen:
                seen.add(function)
                waiting += [value for _, value in named_by(function)]
        modules = {each.__module__ for each in seen if each.__module__.startswith("timerstore.")}
        files = {each.removesuffix(".py").replace("/", ".") for each in packaged.sources()}
        assert len(seen) > 400
        assert {each.removeprefix("timerstore.") for each in modules} <= files


def test_numpy_lays_arrays_out_as_it_is_known() -> None:
    assert numpylayout.layout_holds()


def test_another_layout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARRAY_FLAGS_AT", "ARRAY_NDIM_AT", "DESCR_NUMBER_AT", "DESCR_BYTE_ORDER_AT"):
        with monkeypatch.context() as other:
            other.setattr(numpylayout, name, getattr(numpylayout, name) + 1)
            assert not numpylayout.layout_holds(), name
