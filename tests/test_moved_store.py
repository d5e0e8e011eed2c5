"""A store whose folder is moved, removed or replaced while it is open stops with its cause."""

import os
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.small_store import SMALL
from timerstore.jit import host
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.folders import HeldFolder

DAY = timedelta(days=1)
TRIES = 2_000


def tree(path: Path) -> dict[str, int]:
    return {str(each): each.lstat().st_ino for each in path.rglob("*")}


def put_until_refused(store: timerstore.TimerStore, ids: list[str]) -> str:
    for _ in range(TRIES):
        try:
            ids += store.put_many([bytes(300)] * 20, topic=f"t{len(ids) % 60}", delay=DAY)
        except timerstore.StoreAccessError as e:
            return str(e)
        time.sleep(0.005)
    raise AssertionError("it went on")


def pending_in(path: Path) -> set[str]:
    with timerstore.open(path, create=False, config=SMALL) as store:
        return {each.id for each in store.pending()}


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_moved_store_stops_and_keeps_all_that_it_acknowledged(
    tmp_path: Path, is_linked: bool
) -> None:
    above = tmp_path / "real"
    above.mkdir()
    path, moved = above / "s", tmp_path / "moved"
    if is_linked:
        (tmp_path / "link").symlink_to(above)
        path = tmp_path / "link" / "s"
    store, ids = timerstore.open(path, config=SMALL), list[str]()
    ids += store.put_many([b"x"] * 100, delay=DAY)
    if is_linked:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(tmp_path / "other")
        moved = above / "s"
    else:
        path.rename(moved)
    assert "was moved, removed or replaced" in put_until_refused(store, ids)
    health = store.health()
    assert health.state == "stopped" and "was moved" in health.conditions[0].what
    with pytest.raises(timerstore.StoreAccessError, match="was moved"):
        store.backup(tmp_path / "backup")
    with pytest.raises(timerstore.StoreAccessError, match="was moved"):
        store.close()
    assert not path.exists()  # nothing was made there again
    assert pending_in(moved) == set(ids)


def test_a_store_at_the_old_name_is_left_alone(tmp_path: Path) -> None:
    path, moved = tmp_path / "s", tmp_path / "moved"
    old, ids = timerstore.open(path, config=SMALL), list[str]()
    ids += old.put_many([b"old"] * 100, topic="t", delay=DAY)
    path.rename(moved)
    with timerstore.open(path, config=SMALL) as store:
        others = list(store.put_many([b"new"] * 100, topic="t", delay=DAY))
        put_until_refused(old, ids)
        others += store.put_many([b"new"] * 100, topic="t", delay=DAY)
        with pytest.raises(timerstore.StoreAccessError):
            old.close()
    assert pending_in(path) == set(others) and pending_in(moved) == set(ids)
    for each in (path, moved):
        assert timerstore.verify(each, config=SMALL).ok


def test_all_that_is_done_before_it_is_seen_is_done_where_the_folder_lies(tmp_path: Path) -> None:
    """With a manual clock no thread looks: it goes on to the end by the descriptor."""
    path, moved, clock = (
        tmp_path / "s",
        tmp_path / "moved",
        timerstore.ManualClock(1_800_000_000_000),
    )
    store = timerstore.open(path, config=SMALL, clock=clock)
    store.put_many([bytes(300)] * 100, topic="t", delay_ms=5_000)
    path.rename(moved)
    with timerstore.open(path, config=SMALL) as other:
        other.put(b"other", delay=DAY)
    before = tree(path)
    for i in range(20):
        store.put_many([bytes(300)] * 100, topic=f"t{i}", delay_ms=5_000)
        clock.advance(timedelta(seconds=1))
        store.flush()
        for delivery in store.pull("t", timeout=0):
            delivery.ack()
    store.clean()
    store.close()
    assert tree(path) == before
    assert not (moved / "abort").exists()
    with timerstore.open(moved, config=SMALL, clock=clock) as store:
        clock.advance(timedelta(minutes=1))
        assert sum(len(store.pull(f"t{i}", timeout=0, max_count=2_000)) for i in range(20)) == 2_000


def test_a_removed_store_says_so_and_is_not_made_again(tmp_path: Path) -> None:
    store, path = timerstore.open(tmp_path / "s", config=SMALL), tmp_path / "s"
    store.put(b"x", delay=DAY)
    shutil.rmtree(path)
    assert "was moved, removed or replaced" in put_until_refused(store, [])
    with pytest.raises(timerstore.StoreAccessError):
        store.close()
    assert not path.exists()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    before, folder = Path.cwd(), tmp_path / "elsewhere"
    folder.mkdir()
    os.chdir(tmp_path)
    yield folder
    os.chdir(before)


def test_a_program_may_change_its_folder(tmp_path: Path, elsewhere: Path) -> None:
    store, ids = timerstore.open("s", config=SMALL), list[str]()
    os.chdir(elsewhere)
    for _ in range(30):
        ids += store.put_many([bytes(300)] * 20, topic="t", delay=DAY)
        time.sleep(0.01)
    store.close()
    assert list(elsewhere.iterdir()) == []
    assert pending_in(tmp_path / "s") == set(ids)


def test_a_held_folder_is_reached_wherever_it_lies(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "s"
    disk.make_folder(path)
    disk.hold(path)
    path.rename(tmp_path / "moved")
    disk.make_folder(path / "a" / "b")
    disk.replace(path / "a" / "b" / "file", b"content")
    if not disk.take_over(path / "a" / "b" / "file", path / "a" / "b" / "other"):
        assert host.RENAME is None
        disk.move(path / "a" / "b" / "file", path / "a" / "b" / "other")
    assert disk.names(path / "a" / "b") == ["other"] and not path.exists()
    assert disk.read(path / "a" / "b" / "other") == b"content"
    disk.remove(path / "a" / "b" / "other")
    assert not disk.exists(path / "a" / "b" / "other")
    assert disk.at(tmp_path / "sibling") == (str(tmp_path / "sibling"), None)


def test_a_link_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="directory"):
        HeldFolder(tmp_path / "link")


def test_a_path_over_a_link_and_back_is_no_moved_store(tmp_path: Path) -> None:
    """`link/../s` is beside what the link leads to, and not beside the link."""
    (tmp_path / "there" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "below")
    path = tmp_path / "link" / ".." / "s"
    with timerstore.open(path, config=SMALL) as store:
        store.put(b"x", delay=DAY)
        store.core.disk.check_place()
        store.backup(tmp_path / "backup")
    assert (tmp_path / "there" / "s" / "commitlog").is_dir()


def test_a_store_of_a_relative_path_is_the_same_after_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away").mkdir()
    with timerstore.open("s", config=SMALL) as store:
        store.put(b"x", delay=DAY)
        monkeypatch.chdir(tmp_path / "away")
        store.backup(tmp_path / "backup")
        store.follow(tmp_path / "copy").close()
        store.flush()
        assert store.health().state == "running"
    assert list((tmp_path / "away").iterdir()) == []
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    assert len(pending_in(tmp_path / "restored")) == 1
