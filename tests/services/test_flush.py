"""Flushing: the order of a checkpoint, one fsync for all who wait, what a failure leaves."""

import errno
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, START_SLOT, Alone, timer
from timerstore.core.offsets import CommittedIndexes
from timerstore.errors import FlushFailedError, TimerStoreError
from timerstore.services.cleaning.upkeep import Upkeep
from timerstore.services.durable.flush import Flusher, remove_abort, write_abort
from timerstore.testing.disk import FailingDisk, QuietDisk
from timerstore.timelog.files.checkpoint import TimerCheckpoint, read_checkpoint
from timerstore.timelog.files.disk import Disk

pytestmark = pytest.mark.on_disk


class TellingDisk(QuietDisk):
    """Keeps what was done, in order, with the path inside the store."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def event(self, kind: str, path: Path) -> None:
        """Keep it."""
        self.told.append((kind, str(path).partition("/s/")[2]))


def fill(alone: Alone) -> None:
    """A message, a unit and a slot that nobody has made durable."""
    placed = alone.put(timer(alone.tag, "orders", START_MS + 50))
    unit = naive.Unit(52, -1, 1, START_MS, 50, placed.offset, placed.size_bytes, 9, 1, 0)
    alone.link(START_SLOT, unit)
    alone.engine.wheel.array.dirty[0] = 1
    alone.set_cursors(linked=1)


def written(alone: Alone) -> TimerCheckpoint:
    """The checkpoint on disk."""
    found = read_checkpoint(alone.path / "config" / "timercheck")
    assert found is not None
    return found


def test_what_is_pointed_to_is_durable_before_what_points() -> None:
    disk = TellingDisk()
    with Alone(DEQUEUE_PUT, disk) as alone:
        flusher = Flusher(alone.engine)
        flusher.commit.advance(0)
        flusher._flushed_timerlog = 0
        fill(alone)
        flusher._flushed_index[:] = 0
        disk.told.clear()
        flusher.flush()
        synced = [name for kind, name in disk.told if kind == "sync"]
        order = ["commitlog", "consumequeue", "timerlog", "config/timercheck"]
        places = [[i for i, name in enumerate(synced) if name.startswith(each)] for each in order]
        assert all(places) and "timerwheel" not in synced, synced
        for earlier, later in pairwise(places):
            assert max(earlier) < min(later), synced
        found = written(alone)
        assert (found.commitlog_flushed, found.timerlog_flushed) == (alone.engine.commitlog.end, 52)
        assert (found.queue_index, found.read_ms, found.clean) == (1, START_MS, False)


@pytest.mark.parametrize("room", [True, False])
def test_a_close_without_room_for_the_wheel_is_as_a_kill(room: bool) -> None:
    disk = FailingDisk()
    with Alone(DEQUEUE_PUT, disk) as alone:
        flusher = Flusher(alone.engine)
        fill(alone)
        if not room:
            disk.refuse(errno.ENOSPC, "write", where="timerwheel")
        flusher.flush(clean=True)
        found, wheel = written(alone), (alone.path / "timerwheel").read_bytes()
        assert (found.timerlog_flushed, found.clean) == (52, room)
        assert len(naive.used_slots(wheel)) == room


def test_the_read_cursor_is_said_to_be_durable_only_once_it_is() -> None:
    disk = FailingDisk()
    with Alone(DEQUEUE_PUT, disk) as alone:
        flusher = Flusher(alone.engine)
        fill(alone)
        alone.set_cursors(read=START_SLOT + 2, claimed=START_SLOT + 2)
        disk.refuse(errno.EIO, "sync", where="timercheck")
        with pytest.raises(FlushFailedError):
            flusher.flush()
        assert flusher.last is None and flusher.checkpoint_count == 0
        disk.heal()
        with pytest.raises(FlushFailedError):
            flusher.flush()  # a failed fsync is final
        offset = alone.put(timer(alone.tag, "t", START_MS)).offset
        with pytest.raises(FlushFailedError):
            flusher.wait_durable(offset + 1)
        assert alone.engine.failure.error is flusher.error is not None


@pytest.mark.parametrize("where", ["commitlog", "consumequeue", "timerlog"])
def test_a_map_that_could_not_be_made_durable_ends_all_flushes(where: str) -> None:
    """The system tells it once, to who drops the map; all that flush later are told nothing."""
    disk = FailingDisk()
    with Alone(DEQUEUE_PUT, disk) as alone:
        engine, flusher = alone.engine, Flusher(alone.engine)
        flusher.commit.advance(0)
        flusher._flushed_timerlog = 0
        fill(alone)
        disk.refuse(errno.EIO, "sync", where=where)
        logs = [engine.commitlog, engine.timerlog, *engine.queues.files]
        mapped = [each for each in logs if where in str(each.folder) and 0 in each._mapped]
        with pytest.raises(FlushFailedError):
            mapped[0]._unmap(0)
        disk.heal()
        with pytest.raises(FlushFailedError):
            flusher.flush()
        assert flusher.last is None and flusher.error is engine.failure.error is not None
        with pytest.raises(FlushFailedError):
            flusher.wait_durable(engine.commitlog.end + 1)


def nobody() -> CommittedIndexes:
    """Nobody consumes."""
    return CommittedIndexes({})


def test_what_is_done_before_and_after_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        told = list[str]()
        flusher = Flusher(alone.engine)
        upkeep = Upkeep(alone.engine, flusher, nobody, lambda: told.append("groups"))
        monkeypatch.setattr(upkeep.cleaner, "run", lambda **_: told.append("cleaning"))
        monkeypatch.setattr(upkeep.retention, "run", lambda: told.append("retention"))
        monkeypatch.setattr(flusher, "_write", lambda *_: told.append("checkpoint"))
        upkeep.flush()
        assert told == ["groups", "cleaning", "checkpoint", "retention"]


def test_a_clean_close_counts_what_is_pending() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        flusher = Flusher(alone.engine)
        alone.set_cursors(read=START_SLOT + 2, claimed=START_SLOT + 2)
        assert flusher.has_changed
        flusher.flush()
        assert not flusher.has_changed
        flusher.flush(clean=True)
        assert written(alone).clean and (alone.path / "config" / "timermetrics").exists()


@pytest.mark.parametrize("moves", ["log", "units", "levels"])
def test_whatever_moved_is_a_change(moves: str) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        flusher = Flusher(alone.engine)
        flusher.flush()
        assert not flusher.has_changed
        if moves == "log":
            alone.put(timer(alone.tag, "t", START_MS))
        elif moves == "units":
            alone.write_unit(naive.Unit(52, -1, 1, START_MS, 0, 0, 300, 9, 1, 0))
        else:
            alone.engine.levels.offset[3] += 1
        assert flusher.has_changed
        flusher.flush()
        assert not flusher.has_changed


def test_an_idle_store_leaves_the_disk_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        flusher, table = Flusher(alone.engine), alone.engine.queues.table
        table.stored_ms = START_MS + 1
        flusher.flush()
        alone.set_cursors(read=START_SLOT + 1, claimed=START_SLOT + 1)
        assert flusher.has_changed  # what was stored last can go now
        flusher.flush()
        alone.set_cursors(read=START_SLOT + 2, claimed=START_SLOT + 2)
        assert not flusher.has_changed
        later = time.monotonic() + 11
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert flusher.has_changed


def test_one_fsync_serves_all_who_wait_for_it() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        flusher = Flusher(alone.engine)
        ends = [alone.put(timer(alone.tag, "t", START_MS)).offset + 1 for _ in range(3)]
        with flusher.commit.alone.guard():  # while another is under way
            threads = [threading.Thread(target=flusher.wait_durable, args=(end,)) for end in ends]
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        assert flusher.durable_end == alone.engine.commitlog.end and flusher.sync_count == 1
        flusher.wait_durable(ends[0])
        flusher.sync_log()
        assert flusher.sync_count == 1


class RingingDisk(QuietDisk):
    """Calls something in the midst of a sync, as a signal's handler would come."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] | None = None

    def event(self, kind: str, path: Path) -> None:
        """Call it, once."""
        ring, self.ring = self.ring, None
        if ring is not None:
            ring()


def test_a_signals_handler_may_wait_in_the_midst_of_an_fsync() -> None:
    disk = RingingDisk()
    with Alone(DEQUEUE_PUT, disk) as alone:
        flusher, durable_ends = Flusher(alone.engine), list[int]()

        def put_more() -> None:
            end = alone.put(timer(alone.tag, "t", START_MS)).offset + 1
            flusher.wait_durable(end)
            durable_ends.append(flusher.durable_end)
            assert end <= flusher.durable_end == alone.engine.commitlog.end
            with pytest.raises(TimerStoreError, match="signal handler"):
                flusher.flush()

        for begin in (flusher.sync_log, flusher.flush):
            alone.put(timer(alone.tag, "t", START_MS))
            disk.ring = put_more
            begin()
            assert flusher.durable_end == durable_ends[-1] and not flusher.commit.leads
        assert len(durable_ends) == 2


def test_the_thread_says_so_where_there_is_no_room_and_goes_on_when_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FailingDisk()
    with Alone(DEQUEUE_PUT, disk, flush_interval_ms=1) as alone:
        flusher = Flusher(alone.engine)
        upkeep = Upkeep(alone.engine, flusher, nobody, lambda: None)
        seen, again = threading.Event(), threading.Event()

        def run() -> int:
            (again if flusher.waiting_for_space is None else seen).set()
            return 0

        monkeypatch.setattr(upkeep.retention, "run", run)
        disk.refuse(errno.ENOSPC, where="timercheck")
        alone.put(timer(alone.tag, "t", START_MS))
        upkeep.start()
        try:
            assert seen.wait(60) and flusher.waiting_for_space is not None
            again.clear()
            disk.heal()
            assert again.wait(60)
        finally:
            upkeep.stop()
        assert flusher.error is None and written(alone).commitlog_flushed > 0


def test_abort_is_there_while_a_store_is_open(tmp_path: Path) -> None:
    write_abort(QuietDisk(), tmp_path)
    assert (tmp_path / "abort").read_text().isdigit()
    remove_abort(Disk(), tmp_path)
    remove_abort(Disk(), tmp_path)
    assert not (tmp_path / "abort").exists()
