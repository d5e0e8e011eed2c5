"""A broker's batch consume queues are named, left out; a store with one is not opened."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from timerstore import Config, NotAStoreError, Tuning, salvage, verify
from timerstore.validation import validate

CONFIG = Config(durability="process", tuning=Tuning(commitlog_segment_bytes=1 << 16))
FOLDER = "batchconsumequeue/sent/0"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in which one topic's queue is elsewhere, with entries of another size."""
    path = tmp_path / "s"
    with timerstore.open(path, config=CONFIG) as store:
        store.put(b"x", topic="waits", delay=1000)
        store.put_many([b"y"] * 20, topic="sent", delay=0)
        # That the last millisecond has fired is what its topic's queue says: let a later one pass.
        store.put(b"z", topic="later", delay=0.05)
        store.pull("sent", timeout=10).ack()
        store.pull("later", timeout=10).ack()
    (path / FOLDER).parent.mkdir(parents=True)
    shutil.move(path / "consumequeue" / "sent" / "0", path / FOLDER)
    (path / FOLDER / f"{0:020d}").write_bytes(bytes(range(46)) * 100)
    return path


@pytest.mark.parametrize("look", [verify, validate])
def test_readers_name_it_and_go_on(path: Path, look: Callable[[Path], object]) -> None:
    found = look(path)
    assert found.ok and found.unread == (FOLDER,), str(found)  # type: ignore[attr-defined]
    assert f"not read: {FOLDER}" in str(found)
    with timerstore.open(path, read_only=True) as store:
        assert [timer.topic for timer in store.pending()] == ["waits"]


def test_what_is_damaged_besides_is_still_found(path: Path) -> None:
    queue = path / "consumequeue" / "rmq_sys_wheel_timer" / "0"
    shutil.move(queue, path / "elsewhere")
    assert not verify(path).ok


def test_opening_says_why_it_is_refused_and_changes_nothing(path: Path) -> None:
    before = sorted(path.rglob("*"))
    with pytest.raises(NotAStoreError, match=FOLDER):
        timerstore.open(path)
    assert sorted(path.rglob("*")) == before


def test_a_queue_that_is_in_both_places_is_read(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=CONFIG) as store:
        store.put(b"x", topic="sent", delay=0)
        store.pull("sent", timeout=10).ack()
    (tmp_path / "s" / FOLDER).mkdir(parents=True)
    (tmp_path / "s" / "batchconsumequeue" / "odd").mkdir()
    found = verify(tmp_path / "s")
    assert found.ok and found.unread == ()
    timerstore.open(tmp_path / "s").close()
    assert salvage(tmp_path / "s", tmp_path / "salvaged").ok
