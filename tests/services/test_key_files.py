"""The key index's files over lives: kept where they are whole, made anew where they are not."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.naive_keys import entries_of
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from tests.sparse_copy import copy_tree
from timerstore import ManualClock, StoreFullError, TimerStore
from timerstore.jit.record import ALONE, acting_as
from timerstore.services.engine import key_files
from timerstore.services.engine.key_files import KeyFiles
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import KEYS_FILE
from timerstore.timelog.files.disk import Disk

START_MS = 1_800_000_000_000
HOUR = timedelta(hours=1)
COUNT = 40
WAITING = [(fmt.TIMER_TOPIC, 0), (fmt.LEVEL_TOPIC, 3)]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 16 entries."""
    monkeypatch.setattr(key_files, "ROOM_MIN", 16)
    monkeypatch.setattr(key_files, "ROOM_MAX", 16)


def open_store(path: Path, now_ms: int = START_MS, disk: Disk | None = None) -> TimerStore:
    return TimerStore(
        path, config=SMALL, clock=ManualClock(now_ms, force=True), disk=disk or QuietDisk()
    )


def fill(store: TimerStore) -> None:
    for i in range(COUNT):
        store.put(b"%d" % i, topic="t", delay=HOUR, key=f"k{i}")
        if i % 7 == 0:
            store.put(b"level", topic="t", delay_level=3, key=f"l{i}")
    store.core.engine.keys.catch_up()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with three files and a bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_files, "ROOM_MIN", 16)
        patch.setattr(key_files, "ROOM_MAX", 16)
        path = tmp_path_factory.mktemp("keys") / "s"
        with open_store(path) as store:
            fill(store)
    assert len(list((path / "index").iterdir())) == 4
    return path


def check(store: TimerStore) -> None:
    for i in range(COUNT):
        found = store.get_key("t", f"k{i}")
        assert found is not None and found.body == b"%d" % i
        assert (store.get_key("t", f"l{i}") is not None) == (i % 7 == 0)


def files_of(path: Path) -> list[Path]:
    return sorted((path / "index").iterdir())


def test_a_clean_close_keeps_it(closed: Path, tmp_path: Path) -> None:
    path = copy_tree(closed, tmp_path / "s")
    before = [(file.name, file.read_bytes()) for file in files_of(path)]
    with open_store(path) as store:
        assert [(file.name, file.read_bytes()) for file in files_of(path)] == before
        check(store)
    assert [file.name for file in files_of(path)] == [name for name, _ in before]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "nothing says what there is": lambda path: (path / KEYS_FILE).unlink(),
    "nothing stands there": lambda path: (path / KEYS_FILE).write_bytes(b""),
    "it is damaged": lambda path: flip_bit(path / KEYS_FILE, 70),
    "an older version's": lambda path: (path / KEYS_FILE).rename(path / "config/keyindex.json"),
    "a file is gone": lambda path: files_of(path)[1].unlink(),
    "the folder is gone": lambda path: [
        *(each.unlink() for each in files_of(path)),
        (path / "index").rmdir(),
    ],
    "a file is cut": lambda path: files_of(path)[2].write_bytes(b"\0" * 100),
    "a file of zeros": lambda path: files_of(path)[0].write_bytes(
        b"\0" * files_of(path)[0].stat().st_size
    ),
    "an entry's hash": lambda path: flip_bit(files_of(path)[0], 40 + 4 * 16 + 20 + 3),
    "an entry's offset": lambda path: flip_bit(files_of(path)[1], 40 + 4 * 16 + 20 + 11),
    "a chain": lambda path: flip_bit(files_of(path)[1], 40 + 4 * 16 + 20 + 19),
    "a slot": lambda path: flip_bit(files_of(path)[2], 40 + 3),
    "a header": lambda path: flip_bit(files_of(path)[0], 38),
    "files in each other's place": lambda path: files_of(path)[0].write_bytes(
        files_of(path)[1].read_bytes()
    ),
    "a stranger": lambda path: (path / "index" / "20200101000000000").write_bytes(b"x" * 420),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(kind: str, closed: Path, tmp_path: Path) -> None:
    path = copy_tree(closed, tmp_path / "s")
    DAMAGE[kind](path)
    with open_store(path) as store:
        check(store)
        assert "20200101000000000" not in {each.name for each in files_of(path)}


def test_of_another_life(closed: Path, tmp_path: Path) -> None:
    """The files of a store beside the log of another one, at the same offsets."""
    path = tmp_path / "other"
    with open_store(path) as store:
        for i in range(COUNT):
            store.put(b"%d" % i, topic="t", delay=HOUR, key=f"other{i}")
        store.core.engine.keys.catch_up()
    copy_tree(closed / "index", tmp_path / "index")
    for each in files_of(path):
        each.unlink()
    for each in (tmp_path / "index").iterdir():
        each.rename(path / "index" / each.name)
    (path / KEYS_FILE).write_bytes((closed / KEYS_FILE).read_bytes())
    with open_store(path) as store:
        for i in range(COUNT):
            assert store.get_key("t", f"other{i}") is not None


def test_after_a_kill_it_is_made_anew(closed: Path, tmp_path: Path) -> None:
    """Whatever stands in its files: what a life has changed, no close has said."""
    path = copy_tree(closed, tmp_path / "s")
    store = open_store(path)
    store.put(b"x", topic="t", delay=HOUR, key="behind")
    assert store.get_key("t", "behind") is not None
    for file in files_of(path):
        flip_bit(file, 40 + 4 * 16 + 20 + 3)
    store.abandon()
    with open_store(path) as store:
        assert not files_of(path)
        check(store)
        assert store.get_key("t", "behind") is not None


def test_what_was_not_looked_at_is_by_the_next_life(closed: Path, tmp_path: Path) -> None:
    """A close waits for nothing: the next life goes on where this one was."""
    path = copy_tree(closed, tmp_path / "s")
    with open_store(path) as store:
        store.put(b"x", topic="t", delay=HOUR, key="behind")
        assert store.core.engine.keys.index.cursor[0] == COUNT
    with open_store(path) as store:
        assert store.core.engine.keys.index.cursor[0] == COUNT
        assert store.get_key("t", "behind") is not None
        check(store)


def test_a_thread_makes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step, and health says how far it is; a close ends it, a call by a key finishes it."""
    path, go_on, is_behind = tmp_path / "s", threading.Event(), KeyFiles._is_behind
    with TimerStore(path, config=SMALL) as store:
        fill(store)
    assert len(files_of(path)) == 4
    monkeypatch.setattr(key_files, "MUCH", 8)
    monkeypatch.setattr(key_files, "_STEP_COUNT", 4)

    def is_behind_later(keys: KeyFiles, queue: int, row: int) -> bool:
        if threading.current_thread().name == "timerstore-keys" and keys.index.cursor[0] >= 12:
            assert go_on.wait(30)
        return is_behind(keys, queue, row)

    monkeypatch.setattr(KeyFiles, "_is_behind", is_behind_later)
    for life in range(3):
        (path / KEYS_FILE).unlink(missing_ok=True)
        go_on.clear()
        store = TimerStore(path, config=SMALL)
        keys = store.core.engine.keys
        wait_until(lambda keys=keys: keys.index.cursor[0] >= 12)
        health = store.health()
        assert health.ok and "34 messages are still to be read" in health.conditions[0].what
        store.flush()
        assert keys.index.cursor[0] == 12
        if life == 1:
            check(store)
        go_on.set()
        if life > 0:
            assert keys._thread is not None
            keys._thread.join(30)
            assert not keys.left_count and not store.health().conditions
            check(store)
        store.close()


def test_what_has_no_key_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last message that has one; also by the next life; a kill has all read once."""
    read, index_entries = list[int](), key_files.index_entries

    def count_read(*args: Any) -> int:
        read.append(int(index_entries(*args)))
        return read[-1]

    def look(store: TimerStore) -> int:
        """How many messages it reads, at a call by a key."""
        read.clear()
        found = store.get_key("t", "k")
        assert found is not None and found.body == b"keyed"
        assert store.put(b"x", topic="t", delay=HOUR, key="k", if_absent=True) == found.id
        return sum(read)

    monkeypatch.setattr(key_files, "index_entries", count_read)
    path, plain = tmp_path / "s", [b"x"] * 200
    for life in range(2):
        with open_store(path) as store:
            store.put_many(plain, topic="t", delay=HOUR)
            store.put_many(plain, topic="t", delay_level=4)
            if life == 0:
                store.put(b"keyed", topic="t", delay=HOUR, key="k")
                assert look(store) == 201
            store.put_many(plain, topic="t", delay=HOUR)
            store.cancel(store.put(b"x", topic="t", delay=HOUR))
            assert look(store) == 0
            store.put_many(plain, topic="t", delay=HOUR)
    store = open_store(path)
    assert look(store) == 0
    store.put_many(plain, topic="t", delay=HOUR)
    store.abandon()
    with open_store(path) as store:
        queues = store.core.engine.queues
        assert look(store) == sum(queues.next_index(queues.row(*each)) for each in WAITING)
        new = store.put(b"keyed", topic="t", delay=HOUR, key="k", replace=True)
        store.put_many(plain, topic="t", delay=HOUR)
        found = store.get_key("t", "k")
        assert found is not None and found.id == new


def test_files_in_which_nothing_waits_go(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    for _ in range(12):
        for i in range(20):
            store.put(b"x", topic="t", delay=timedelta(seconds=i % 9), key=f"k{i}")
        store.put(b"x", topic="t", delay_level=1, key="level")
        clock.advance(timedelta(seconds=12))
        store.core.engine.keys.catch_up()
        store.flush()
        assert len(files_of(tmp_path / "s")) <= 5
    far = store.put(b"x", topic="t", delay=timedelta(days=9), key="far")
    for _ in range(3):
        store.put_many([b"x"] * 40, topic="t", delay_ms=1, keys=["k"] * 40)
        clock.advance(timedelta(seconds=9))
    found = store.get_key("t", "far")
    assert found is not None and found.id == far
    store.close()


def test_a_store_without_keys_has_no_file(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        store.put(b"x", topic="t", delay=HOUR)
        store.put(b"x", topic="t", delay_level=2)
        assert store.get_key("t", "k") is None
    assert not (tmp_path / "s" / "index").exists() and not (tmp_path / "s" / KEYS_FILE).exists()


def test_switched_off_and_on(closed: Path, tmp_path: Path) -> None:
    path = copy_tree(closed, tmp_path / "s")
    before = [(file.name, file.read_bytes()) for file in files_of(path)]
    off, clock = replace(SMALL, key_index=False), ManualClock(START_MS, force=True)
    with TimerStore(path, config=off, clock=clock, disk=QuietDisk()) as store:
        store.put(b"x", topic="t", delay=HOUR, key="meanwhile")
        check(store)
        assert store.get_key("t", "meanwhile") is not None
    assert [(file.name, file.read_bytes()) for file in files_of(path)] == before
    with open_store(path) as store:
        check(store)
        assert store.get_key("t", "meanwhile") is not None


@pytest.mark.usefixtures("any_wheel")
def test_a_handover_leaves_none(closed: Path, tmp_path: Path) -> None:
    path = copy_tree(closed, tmp_path / "s")
    open_store(path).handover()
    assert not (path / "index").exists() and not (path / KEYS_FILE).exists()
    with open_store(path) as store:  # and it comes back
        check(store)


def test_a_full_disk(closed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Opening goes on; who looks is told; once there is room, all is found."""
    path = copy_tree(closed, tmp_path / "s")
    (path / KEYS_FILE).unlink()
    disk = FullDisk()
    with caplog.at_level(logging.WARNING), open_store(path, disk=disk) as store:
        with pytest.raises(StoreFullError):
            store.get_key("t", "k1")
        disk.is_full = False
        check(store)


def test_no_room_for_the_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Closing goes on without it; the next opening makes the index anew."""
    store = open_store(tmp_path / "s", disk=FullDisk("replace", "keyindex"))
    fill(store)
    with caplog.at_level(logging.WARNING):
        store.close()
    assert "no space left" in caplog.text
    assert not (tmp_path / "s" / KEYS_FILE).exists()
    with open_store(tmp_path / "s") as store:
        assert store.core.findings.clean
        check(store)


class FullDisk(QuietDisk):
    """Has no room for the index."""

    is_full = True

    def __init__(self, kind: str = "create", part: str = "/index/") -> None:
        self.kind, self.part = kind, part

    def event(self, kind: str, path: Path) -> None:
        """Refuse."""
        if self.is_full and kind == self.kind and self.part in str(path):
            raise OSError(28, "No space left on device")


def test_a_file_stays_while_anything_in_it_waits(tmp_path: Path) -> None:
    """Its last entry may be of an older message: each queue is read by itself."""
    store = open_store(tmp_path / "s")
    store.put(b"x", topic="t", delay_level=1, key="level")
    for i in range(5):
        store.put(b"x", topic="t", delay=HOUR, key=f"k{i}")
    keys = store.core.engine.keys
    keys.catch_up()
    level, *_, last = (int(entry["offset"]) for entry in sorted_entries(keys))
    assert keys._is_settled(0, 1 << 60) is False
    with acting_as(ALONE):
        store.core.engine.world.cleaning.floor = last
    assert level < last and keys._is_settled(0, 1 << 60) is False
    with acting_as(ALONE):
        store.core.engine.world.cleaning.floor = last + 1
    assert keys._is_settled(0, 1 << 60)
    store.abandon()


def sorted_entries(keys: KeyFiles) -> list[Any]:
    """The entries of the first file, by their messages."""
    entries = entries_of(keys._files[0].map.view, 1, int(keys.index.next_entry[0]))
    return sorted(entries, key=lambda entry: int(entry["offset"]))
