"""Fixtures for all tests: the golden stores, with their writer's account."""

import asyncio
import gc
import gzip
import json
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from typer.main import get_command
from xdist.scheduler import LoadScopeScheduling

from tests.sparse_copy import AS_DATA, copy_tree
from tests.tiers import PROVING, add_tiers

GOLDEN = Path(__file__).parent / "golden"

# Else each process that a test begins would compile timerstore's source again, for 0.7 s, and each
# that plays tests would rewrite their assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell has what it runs in the background ignore Ctrl-C, and all that it starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is proved looks for longer; interpreted kernels are a hundred times slower, and
# what an index check finds it finds soon.
_INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
_CHECKED = os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")
_PORTABLE = os.environ.get("PORTABLE") == "1" or sys.platform != "linux"
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("ci", max_examples=8 if _INTERPRETED or _CHECKED else 12, **_COMMON)
settings.register_profile("prove", max_examples=40 if _INTERPRETED or _CHECKED else 200, **_COMMON)
settings.register_profile("thorough", max_examples=200 if _INTERPRETED else 2000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "prove" if PROVING else "ci"))


_OUTSIDE = (
    *("aio", "cli", "consumer", "control", "django", "examples", "otel", "outbox", "page"),
    *("recurring", "serving", "bench", "watching"),
    *("test_dedup.py", "test_docs.py", "test_examples.py", "test_format_doc.py", "test_pages.py"),
    *("test_readme.py", "test_reference.py", "test_site.py", "test_tidy.py"),
)
"""Tests of what no kernel decides."""


# Else a run waits for the disk, for nothing that its tests show.
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 8 << 30
if not PROVING and os.access(_MEMORY, os.W_OK):
    if shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.fixture(scope="session", autouse=True)
def as_fast_as_others() -> Iterator[None]:
    """A command within this process, which lowers its priority, must not slow all later tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "nice", lambda increment: 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def loops_say_who_made_them() -> Iterator[None]:
    """An event loop that nobody closes is found in a later test: its warning names who made it.

    Who asks the main thread for a loop gets an error, not one that nobody closes.
    """
    asyncio.set_event_loop(None)
    shown, init = asyncio.BaseEventLoop.__repr__, asyncio.BaseEventLoop.__init__

    def remember(self: Any) -> None:
        init(self)
        self.made_by = "".join(traceback.format_stack(limit=10))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "__init__", remember)
        patch.setattr(
            asyncio.BaseEventLoop,
            "__repr__",
            lambda self: f"{shown(self)} of\n{getattr(self, 'made_by', 'an earlier time')}",
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_are_made_once() -> Iterator[None]:
    """Typer makes all commands of an app, in 65 ms, for each that runs within this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The test's own folder: in memory if there is room, unless it is marked `on_disk`."""
    if request.node.get_closest_marker("on_disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what says nothing of kernels, and how much is played."""
    for item in items:
        place = item.path.relative_to(Path(__file__).parent)
        if place.parts[0] in _OUTSIDE:
            item.add_marker(pytest.mark.outside)
    if _PORTABLE:
        items[:] = [each for each in items if each.get_closest_marker("linux") is None]
    if (idle := add_tiers(items)) and not any("[" in each for each in config.args):
        raise pytest.UsageError(f"no parameter is called as these marks say: {idle}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have no collection of garbage go over the tests themselves, of which there are thousands."""
    gc.collect()
    gc.freeze()


_TOGETHER = (
    ("spark/", "copies/test_copies_read.py::test_spark"),
    *(("test_site.py",), ("test_tidy",), ("test_live.py",), ("test_operate.py",)),
    *(("jit/test_packing.py",), ("pipeline/test_report.py",)),
    ("interop/test_common_calls.py", "interop/test_move.py"),
)
"""What one process runs, a tuple each, for its tests share what takes seconds or a gigabyte."""
_APART = (
    *("spark/test_cluster.py", "spark/test_connect.py", "spark/test_java.py"),
    "spark/test_following.py::test_the_command_is_killed_and_started_again",
)
"""Those among them whose programs begin Spark sessions of their own; any process runs them."""


class Together(LoadScopeScheduling):
    """Has one process run the tests of a group in `_TOGETHER`, and any process any other test."""

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.removeprefix("tests/")
        if name.startswith(_APART):
            return nodeid
        return next((each[0] for each in _TOGETHER if name.startswith(each)), nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a process more to run, once it has said which tests it found.

        xdist gives some to all processes as soon as one has found its tests, also to another that
        began late, and ends the run with an error.
        """
        if node in self.registered_collections:
            with suppress(OSError):  # it has ended: that is told next, and others get its tests
                super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Give what a process that ended had still to run to the others, but for its last test.

        xdist hands on what was completed as well. Who gets that runs nothing, so completes nothing
        and never asks for more: the run hangs.
        """
        workload = self.assigned_work.pop(node)
        left = {scope: unit for scope, unit in workload.items() if not all(unit.values())}
        ended = next((test for unit in left.values() for test in unit if not unit[test]), None)
        if ended is None:
            return None
        scope = self._split_scope(ended)
        del left[scope][ended]
        if all(left[scope].values()):
            del left[scope]
        self.workqueue.update(left)
        for other in self.assigned_work:
            self._reschedule(other)
        return ended


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Have tests that share a session of Spark, or a site that was built, share a process.

    xdist's own groups have no effect since pytest keeps a test's name.
    """
    return Together(config, log)


@pytest.fixture(scope="session")
def golden_unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`golden_unpacked("fired")`: a golden store's folder that all tests share and none changes."""
    root = tmp_path_factory.mktemp("golden")

    @cache
    def unpack(name: str) -> Path:
        with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
            archive.extractall(root, **AS_DATA)
        return root / name

    return unpack


@pytest.fixture
def golden(tmp_path: Path, golden_unpacked: Callable[[str], Path]) -> Callable[[str], Path]:
    """`golden("fired")`: a fresh copy of a golden store's folder, the test's own to change."""

    def copy(name: str) -> Path:
        return copy_tree(golden_unpacked(name), Path(tempfile.mkdtemp(dir=tmp_path)) / name)

    return copy


@pytest.fixture(scope="session")
def golden_list() -> Callable[[str], list[dict[str, Any]]]:
    """`golden_list("fired")`: the writer's account, one dict a line."""

    @cache
    def read(name: str) -> list[dict[str, Any]]:
        with gzip.open(GOLDEN / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return read


@pytest.fixture
def any_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with a small wheel is handed over too, though no broker opens that."""
    monkeypatch.setattr("timerstore.store.handover.check_wheel", lambda engine: None)
