"""What is refused says the cause; odd places, times, names that can be had work."""

import copy
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
import timerstore.pipeline
from tests.small_store import SMALL
from timerstore import errors
from timerstore.copies.fetching import built_beside
from timerstore.share import wire
from timerstore.timelog.files.disk import Disk, WrongSizeError
from timerstore.timelog.files.names import BUILDING_FOLDER, held_names
from timerstore.values.check_arguments import DUE_MS_MIN

pytestmark = pytest.mark.long

DAY = timedelta(days=1)


def volume(path: Path) -> Path:
    """A folder as the root of a fresh volume is."""
    (path / "lost+found").mkdir(0o700, parents=True)
    return path


def test_the_root_of_a_volume_takes_a_store_and_all_its_copies(tmp_path: Path) -> None:
    root = volume(tmp_path / "store")
    with timerstore.open(root, config=SMALL) as store:
        store.put(b"x", delay=DAY)
    with timerstore.open(root, create=False, config=SMALL) as store:
        assert store.count() == 1
    timerstore.backup(root, volume(tmp_path / "backup"))
    timerstore.restore(tmp_path / "backup", volume(tmp_path / "restored"))
    timerstore.salvage(root, volume(tmp_path / "salvaged"))
    for name in ("restored", "salvaged"):
        assert (tmp_path / name / "lost+found").is_dir()
        with timerstore.open(tmp_path / name, create=False) as store:
            assert store.count() == 1


def test_a_store_that_is_not_finished_in_the_root_of_a_volume_is_not_opened(tmp_path: Path) -> None:
    root = volume(tmp_path / "store")

    def fail() -> None:
        with built_beside(Disk(), root) as building:
            (building / "commitlog").mkdir()
            with pytest.raises(errors.NotAStoreError, match="was not finished"):
                timerstore.open(root)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not held_names(root)
    (root / BUILDING_FOLDER / "commitlog").mkdir(parents=True)  # as a kill leaves it
    with built_beside(Disk(), root) as building:
        (building / "config").mkdir()
    assert held_names(root) == {"config"}


def test_stores_in_the_root_of_a_volume_are_read(tmp_path: Path) -> None:
    root = volume(tmp_path / "many")
    with timerstore.open(root / "one", config=SMALL) as store:
        store.put(b"x", delay=DAY)
    (root / "lost+found" / "commitlog").mkdir()  # whatever lies there is no store
    for place in (root, f"{root}/*"):
        assert timerstore.read(place, "timers").num_rows == 1
    assert "1 store, 1 ok" in str(timerstore.pipeline.run(f"{root}/*", tmp_path / "tables"))


def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    path = Path(f"{tmp_path}/s\udcff")
    with timerstore.open(path, config=SMALL) as store:
        store.put(b"x", delay=DAY)
        store.follow(tmp_path / "copy").close()
        with pytest.raises(errors.InvalidArgumentError, match="no UTF-8"):
            store.follow(f"{path}-copy")
        timerstore.pipeline.run([str(path)], f"{path}-tables")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_folder_that_is_not_there_is_not_called_empty(tmp_path: Path, read_only: bool) -> None:
    with pytest.raises(errors.NotAStoreError, match="does not exist"):
        timerstore.open(tmp_path / "none", create=False, read_only=read_only)
    with pytest.raises(errors.NotAStoreError, match="is empty"):
        timerstore.open(tmp_path, create=False, read_only=read_only)


def test_connecting_may_take_as_long_as_other_calls(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL, share=True) as store:
        store.put(b"x", delay=DAY)
        for timeout in (None, float("inf"), timedelta.max, 1e10, 10**400, timedelta(seconds=5)):
            with timerstore.connect(tmp_path / "s", timeout=timeout) as client:
                assert client.count() == 1
        for wrong in (-1, float("nan"), "1"):
            with pytest.raises(errors.InvalidArgumentError, match="timeout is"):
                timerstore.connect(tmp_path / "s", timeout=wrong)  # type: ignore[arg-type]


def test_a_delay_that_leads_before_all_times_is_due_at_once_however_it_is_put(
    tmp_path: Path,
) -> None:
    clock = timerstore.ManualClock(1_800_000_000_000)
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        for delay_ms in (-1, DUE_MS_MIN - clock.now_ms, -clock.now_ms - 1, -(10**13), -(10**15)):
            if delay_ms > -(10**14):
                store.put(b"x", delay_ms=delay_ms)
            store.put_many([b"x"], delay_ms=delay_ms)
            store.put_many([b"x", b"y"], delay_ms=[delay_ms, 0])
        assert store.count() == 0
        late_ms = 253_402_300_799_999 - clock.now_ms + 1
        with pytest.raises(errors.InvalidArgumentError, match=f"delay_ms has {late_ms}, which"):
            store.put_many([b"x"], delay_ms=late_ms)


def test_an_instance_is_called_one(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        for wrong, said in (("a/b", "instance is 'a/b'"), ("x" * 125, "instance is 125")):
            with pytest.raises(errors.InvalidArgumentError, match=said):
                timerstore.Consumer(store, "g", instance=wrong, broadcast=True)


def made(kind: type[Exception]) -> Exception:
    if issubclass(kind, errors.CorruptStoreError):
        return kind("file", 7, "a reason")
    if issubclass(kind, WrongSizeError):
        return kind(Path("file"), 1, 2, "What to do.")
    return kind("a text")


def all_errors(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(found for each in kind.__subclasses__() for found in all_errors(each))]


@pytest.mark.parametrize(
    "kind", all_errors(errors.TimerStoreError), ids=lambda kind: str(kind.__name__)
)
def test_errors_cross_processes_with_all_that_they_hold(kind: type[Exception]) -> None:
    error = made(kind)
    error.ids, error.unsure = ["a", "b"], ["c"]  # type: ignore[attr-defined]
    if isinstance(error, OSError):
        error.errno = 2
    for got in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(got) is kind and str(got) == str(error) and got.args == error.args
        assert vars(got) == vars(error)
        assert getattr(got, "errno", None) == getattr(error, "errno", None)


def test_without_proc_sharing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = os.path.exists
    monkeypatch.setattr(
        wire.os.path, "exists", lambda p: not str(p).startswith("/proc") and exists(p)
    )
    with pytest.raises(errors.StoreAccessError, match="/proc is not mounted"):
        timerstore.open(tmp_path / "s", config=SMALL, share=True)
    with timerstore.open(tmp_path / "t", config=SMALL) as store:
        store.put(b"x")
    with pytest.raises(errors.StoreAccessError, match="/proc is not mounted"):
        timerstore.connect(tmp_path / "t", timeout=0)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import timerstore
with timerstore.open(sys.argv[1]) as store, timerstore.open(sys.argv[2]) as other:
    for each in (store, other):
        each.put(b"x", topic="t")
        print(len(each.pull("t", timeout=30)))
"""


@pytest.mark.timeout(120)
def test_two_stores_fit_into_four_gibibytes_of_addresses(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", LIMITED, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout.split() == ["1", "1"], done.stderr
