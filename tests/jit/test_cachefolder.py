"""The folders in which the machine code of kernels is cached."""

import os
import shutil
from pathlib import Path

import pytest

import timerstore
from tests.rigs.program import ended
from timerstore.jit import cachefolder
from timerstore.jit.kernel import INTERPRETED

PACKAGE = Path(timerstore.__file__).parent
USE = """
import os, sys
if "TRACED" in os.environ:  # as coverage does
    sys.settrace(lambda *_: None)
import timerstore
assert timerstore.__file__.startswith(sys.argv[1]), timerstore.__file__
import numpy as np
from timerstore.jit.loading import COMPILED
from timerstore.timelog.writing.consumequeue import load_acquire_word
load_acquire_word(np.zeros(1, np.int64), 0)
print(1 - len(COMPILED))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of the package in whose folders nothing can be cached, not even by root."""
    site = tmp_path / "site"
    shutil.copytree(
        PACKAGE,
        site / "timerstore",
        ignore=shutil.ignore_patterns("__pycache__", cachefolder.FOLDER),
    )
    (site / "timerstore" / cachefolder.FOLDER).touch()
    (tmp_path / "temp").mkdir()
    return site


def use(site: Path, **variables: str) -> tuple[int, str]:
    """How many kernels came from a cache, and what was told, in a process without a home."""
    environment = {name: value for name, value in os.environ.items() if name[:5] != "NUMBA"}
    environment |= {"PYTHONPATH": str(site), "HOME": "/dev/null/home", **variables}
    environment.pop("XDG_CACHE_HOME", None)
    done = ended("-c", USE, site, cwd=site, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


if not INTERPRETED:

    @pytest.mark.slow
    def test_without_a_folder_of_the_user_s_nothing_is_cached(site: Path, tmp_path: Path) -> None:
        """Not in one that all may write to either: what lies there is run."""
        hits, told = use(site, TMPDIR=str(tmp_path / "temp"))
        assert hits == 0
        assert told.count("\n") == 1
        assert "each process compiles the kernels again" in told
        assert not [*tmp_path.rglob("*.o")]

    @pytest.mark.slow
    def test_the_user_s_choice_wins(site: Path, tmp_path: Path) -> None:
        chosen = tmp_path / "chosen"
        assert use(site, NUMBA_CACHE_DIR=str(chosen)) == (0, "")
        assert use(site, NUMBA_CACHE_DIR=str(chosen))[0] > 0
        assert [*chosen.rglob("*.o")]

    @pytest.mark.prove
    @pytest.mark.slow
    def test_starts_of_other_kinds_share_a_cache(site: Path, tmp_path: Path) -> None:
        """None of them takes the place of what another one compiled."""
        chosen = {"NUMBA_CACHE_DIR": str(tmp_path / "chosen")}
        plain = dict[str, str]()
        traced, no_asserts, no_docstrings = (
            {"TRACED": "1"},
            {"PYTHONOPTIMIZE": "1"},
            {"PYTHONOPTIMIZE": "2"},
        )
        assert use(site, **chosen, **plain) == (0, "")
        assert use(site, **chosen, **no_docstrings) == (0, "")
        for kind in (plain, traced, no_asserts, no_docstrings, plain):
            assert use(site, **chosen, **kind)[0] > 0, kind

    @pytest.mark.prove
    @pytest.mark.slow
    def test_what_was_compiled_for_an_image_is_used(site: Path, tmp_path: Path) -> None:
        """Nothing is written then, though a folder that can be written is at hand."""
        home = str(tmp_path / "home")
        (site / "timerstore" / cachefolder.FOLDER).unlink()
        assert use(site, HOME=home) == (0, "")
        assert use(site, HOME=home) == (1, "")
        assert [*site.rglob("*.o")] and not (tmp_path / "home").exists()
        others = use(site, HOME=home, NUMBA_CPU_NAME="generic")
        assert others[0] == 0  # another processor's are none


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a process that has looked for none yet."""
    monkeypatch.setattr(cachefolder, "_folders", lambda: [str(tmp_path)])
    monkeypatch.setattr(cachefolder, "folder_to_write", lambda: str(tmp_path))
    monkeypatch.setattr(cachefolder, "_told", [])
    return tmp_path


def test_what_is_kept_is_read(folder: Path) -> None:
    cachefolder.keep("a.kernel-1", b"code")
    cachefolder.keep("a.kernel-2", b"other")
    assert cachefolder.read("a.kernel-1") == b"code" and cachefolder.read("a.kernel-3") is None
    assert len([*folder.iterdir()]) == 2


@pytest.mark.parametrize("content", [b"", b"short", bytes(40)])
def test_what_is_not_whole_is_passed_by(folder: Path, content: bytes) -> None:
    (folder / "a.kernel-1.o").write_bytes(content)
    assert cachefolder.read("a.kernel-1") is None
    cachefolder.keep("a.kernel-1", b"code")
    (folder / "a.kernel-1.o").write_bytes((folder / "a.kernel-1.o").read_bytes()[:-1])
    assert cachefolder.read("a.kernel-1") is None


def test_what_nobody_needs_any_more_goes(folder: Path) -> None:
    cachefolder.keep("a.kernel.of.another-1", b"code")
    for i in range(20):
        cachefolder.keep(f"a.kernel-{i}", b"code")
        os.utime(folder / f"a.kernel-{i}.o", (i, i))
    assert cachefolder.read("a.kernel-19") and cachefolder.read("a.kernel.of.another-1")
    assert cachefolder.read("a.kernel-0") is None and len([*folder.iterdir()]) == 9


def test_a_folder_that_cannot_be_written_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cachefolder, "folder_to_write", lambda: "/dev/null/full")
    for _ in range(2):
        cachefolder.keep("a.kernel-1", b"code")
    (record,) = caplog.records
    assert "stored in /dev/null/full (Not a directory)" in record.getMessage()
    assert cachefolder.has_failed()
