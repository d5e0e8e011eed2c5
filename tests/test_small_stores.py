"""Small stores stay small: blocks are allocated ahead of who writes, none goes into a hole."""

import os
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests.full_disks import MeteredDisk
from tests.small_store import SMALL
from tests.tiers import how_many
from timerstore import ManualClock, StoreFullError, TimerStore
from timerstore.jit.kernel import INTERPRETED
from timerstore.testing.disk import QuietDisk

pytestmark = pytest.mark.on_disk

START_MS = 1_800_000_000_000
MB = 1_000_000
DELAY_MS = 90_000  # it rolls on the way, and outlasts all ticks


def taken_bytes(path: Path) -> int:
    """What a store takes on disk, as `du` says it."""
    found = 0
    for each in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):  # it was renamed since it was listed
            found += each.lstat().st_blocks * 512
    return found


def length_bytes(path: Path) -> int:
    """How long its files are."""
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


@pytest.mark.parametrize("topic_count", [0, 200])
def test_what_a_small_store_takes(tmp_path: Path, topic_count: int) -> None:
    """8 MB where it is empty, 32 with 200 topics of one message each; opened again, no more."""
    path, most_bytes = tmp_path / "store", 32 * MB if topic_count else 8 * MB
    with timerstore.open(path) as store:
        for i in range(topic_count):
            store.put(b"one", topic=f"topic-{i}")
        for i in range(topic_count):
            assert len(store.pull(f"topic-{i}", timeout=20)) == 1
        assert taken_bytes(path) <= most_bytes
    for _ in range(2):
        with timerstore.open(path) as store:
            store.put(b"again", topic="topic-0")
            assert len(store.pull("topic-0", timeout=20)) >= 1
        assert taken_bytes(path) <= most_bytes
    assert length_bytes(path) > 100 * MB  # RocketMQ's: files have their full length


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3), st.integers(1, 9_000)),
        st.tuples(st.just("many"), st.integers(0, 3), st.integers(1, 300)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("tick"), st.integers(0, 1), st.integers(0, 3_000)),
        st.tuples(st.just("open"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("room"), st.sampled_from([0, 4_096, 30_000]), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=4 if INTERPRETED else how_many("SMALL_STORES", 30, 200))
@given(acts=ACTS, room_bytes=st.sampled_from([0, 20_000, 100_000, 1 << 40]))
def test_any_history_on_a_disk_that_fills_up(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int, int]], room_bytes: int
) -> None:
    """What has no room says so and is done once there is some; no byte goes into a hole."""
    path = tmp_path_factory.mktemp("small") / "store"
    disk, clock = MeteredDisk(), ManualClock(START_MS)
    config = replace(SMALL, retention_ms=0)
    store = TimerStore(path, config=config, clock=clock, disk=disk)
    disk.room_bytes = room_bytes
    pending: dict[str, bytes] = {}

    def insist(call: Any, *args: Any, **settings: Any) -> Any:
        """Do it; make room where it fails, and do what is left."""
        for _ in range(1_000):
            try:
                return call(*args, **settings)
            except StoreFullError as e:
                disk.check(path)
                disk.room_bytes += 8_192
                if len(e.ids):  # of a put_many: these are in
                    pending.update(zip(e.ids, args[0], strict=False))
                    args = (args[0][len(e.ids) :], *args[1:])
                    if not args[0]:
                        return []
        raise AssertionError("there is room, and nothing goes on")

    for kind, which, size in acts:
        at_ms = clock.now_ms + DELAY_MS
        if kind == "put":
            body = b"%d " % len(pending) + bytes(size)
            pending[insist(store.put, body, topic=f"t{which}", at_ms=at_ms)] = body
        elif kind == "many":
            bodies = [b"%d" % i for i in range(size)]
            ids = insist(store.put_many, bodies, topic=f"t{which}", delay_ms=DELAY_MS)
            pending.update(zip(ids, bodies[len(bodies) - len(ids) :], strict=True))
        elif kind == "cancel" and pending:
            id = list(pending)[which % len(pending)]
            assert insist(store.cancel, id) is True
            del pending[id]
        elif kind == "move" and pending:
            id = list(pending)[which % len(pending)]
            pending[insist(store.reschedule, id, at_ms=at_ms + 5)] = pending.pop(id)
        elif kind == "tick":
            if which:
                insist(store.core.engine.prepare_ahead)
            insist(clock.advance, timedelta(milliseconds=size))
            insist(store.flush)
        elif kind == "open":
            if which:
                insist(store.close)
            else:
                store.abandon()
            store = insist(TimerStore, path, config=config, clock=clock, disk=disk)
            assert store.count() == len(pending)
        elif kind == "room":
            disk.room_bytes = which
        disk.check(path)
    insist(clock.advance, timedelta(minutes=5))
    fired: list[bytes] = []
    for topic in ("t0", "t1", "t2", "t3"):
        while len(batch := store.pull(topic, max_count=10_000, timeout=0)):
            fired += batch.bodies.to_pylist()
            batch.ack()
    assert sorted(fired) == sorted(pending.values())
    disk.check(path)
    store.abandon()


def test_a_store_opens_on_a_full_disk(tmp_path: Path) -> None:
    """What was allocated before is enough to open it, and to look."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    disk = MeteredDisk()
    with TimerStore(path, config=SMALL, clock=clock, disk=disk) as store:
        ids = store.put_many([b"%d" % i for i in range(50)], topic="t", delay_ms=1_000)
    disk.room_bytes = 0
    with TimerStore(path, config=SMALL, clock=clock, disk=disk) as store:
        assert store.count("t") == 50 and store.get(ids[7]).body == b"7"
        disk.check(path)
        disk.room_bytes = 1 << 40
        clock.advance(timedelta(seconds=2))
        assert len(store.pull("t", max_count=100, timeout=0)) == 50
    disk.check(path)


def test_a_sparse_copy_fills_up_before_it_is_written_to(tmp_path: Path) -> None:
    """A copy may have holes where there were zeros; behind the log's end nothing is written to."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    with TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
        store.put_many([b"%d" % i for i in range(50)], topic="t", delay_ms=1_000)
    for each in path.rglob("0*"):
        if each.is_file():
            data = each.read_bytes()
            each.unlink()
            with open(each, "wb") as file:
                file.write(data.rstrip(b"\0"))
                os.ftruncate(file.fileno(), len(data))
    disk = MeteredDisk()
    for each in path.rglob("0*"):
        disk.allocated_bytes[each] = each.stat().st_blocks * 512 if each.is_file() else 0
    with TimerStore(path, config=SMALL, clock=clock, disk=disk) as store:
        disk.check(path)
        clock.advance(timedelta(seconds=2))
        assert len(store.pull("t", max_count=100, timeout=0)) == 50
        disk.check(path)


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a program becomes a daemon: a relative path is one of the place it was opened in."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with timerstore.open("s", config=SMALL) as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.put_many([b"x" * 1_000] * 500, delay_ms=3_600_000)
        assert len(list(tmp_path.glob("s/commitlog/*"))) > 1
        assert [each.id for each in store.pending(limit=1)]
    assert not list((tmp_path / "elsewhere").iterdir())
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        assert store.count() == 500
    (tmp_path / "elsewhere").rmdir()
    with pytest.raises(timerstore.InvalidArgumentError, match="begins with /"):
        timerstore.open("s", config=SMALL)
