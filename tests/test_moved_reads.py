"""A store whose folder is moved while it is open reads nothing of what comes to the old name."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.rigs.untouched import untouched
from tests.services.test_damage import TIMER_QUEUE
from tests.services.test_scrub import scrub
from tests.small_store import SMALL
from timerstore.services.damage.pass_by import is_damaged, leave_entries
from timerstore.services.damage.scrub import leave_slot, scan_slots
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.read_units import all_units
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files import reader_end as reader_end_module
from timerstore.timelog.files.reader_end import Steady
from timerstore.timelog.files.smallfile import At
from timerstore.timelog.reading.reader import StoreReader

START_MS = 1_800_000_000_000
DAY = timedelta(days=1)
COUNT = 300


class Moved:
    """A store whose folder lies elsewhere by now; another one lies at its old name."""

    def __init__(self, folder: Path) -> None:
        self.path, self.moved = folder / "s", folder / "moved"
        self.clock = timerstore.ManualClock(START_MS)
        self.store = timerstore.TimerStore(
            self.path, config=SMALL, clock=self.clock, disk=QuietDisk()
        )
        self.ids = self.store.put_many([bytes(300)] * COUNT, topic="t", delay=DAY)
        self.store.put_many([bytes(300)] * COUNT, topic="fires", delay_ms=1_000)
        self.clock.advance(timedelta(seconds=5))
        self.store.flush()
        assert self.store.core.disk.folder is not None
        self.store.core.disk.folder.check_place = lambda: None  # type: ignore[method-assign]

    def move(self) -> None:
        """Somebody moves it, and puts another store there."""
        self.path.rename(self.moved)
        with timerstore.open(self.path, config=SMALL) as other:
            other.put_many([b"other"] * 20, topic="t", delay=DAY)

    @property
    def engine(self) -> Engine:
        return self.store.core.engine


def scrubs(moved: Moved) -> None:
    flip_bit(moved.moved / TIMER_QUEUE / f"{0:020d}", 3 * 20 + 6)
    assert (TIMER_QUEUE, 60) in scrub(moved.store)
    assert moved.engine.queues.read(0, 3, 1)["size"][0] > 0


def leaves_an_entry(moved: Moved) -> None:
    flip_bit(moved.moved / TIMER_QUEUE / f"{0:020d}", 5 * 20 + 6)
    assert is_damaged(moved.engine, 0, 5)
    leave_entries(moved.engine, 0, [5])
    assert (moved.moved / "config" / "rebuild.json").exists()


def scans_units(moved: Moved) -> None:
    flip_bit(moved.moved / "timerlog" / f"{0:020d}", 30)
    leave_slot(moved.engine, 0)
    scan_slots(moved.engine, lambda: False)
    assert (moved.moved / "config" / "rebuild.json").exists()


def reads_units(moved: Moved) -> None:
    log = moved.engine.timerlog
    assert sum(len(part) for part in all_units(moved.engine, log.start, log.end)) == 2 * COUNT


def cleans(moved: Moved) -> None:
    moved.clock.advance(timedelta(hours=2))
    moved.store.put_many([bytes(300)] * COUNT, topic="t2", delay=DAY)
    start = moved.engine.commitlog.start
    moved.store.clean()
    assert moved.engine.commitlog.start > start


def lists(moved: Moved) -> None:
    assert {each.id for each in moved.store.pending()} == set(moved.ids)
    assert moved.store.pending_columns().num_rows == COUNT
    assert moved.store.health().state == "running"
    assert moved.store.stats().copies == ()


def backs_up(moved: Moved) -> None:
    dest = moved.path.with_name("backup")
    assert moved.store.backup(dest).ok
    timerstore.restore(dest, moved.path.with_name("restored"))
    with timerstore.open(moved.path.with_name("restored"), config=SMALL) as restored:
        assert restored.count() == COUNT


def is_followed(moved: Moved) -> None:
    moved.store.follow(f"file://{moved.path.with_name('copy')}").close()
    assert [each.ended for each in moved.store.stats().copies] == [True]
    assert (moved.moved / "follow").is_dir()


@pytest.mark.parametrize(
    "act",
    [scrubs, leaves_an_entry, scans_units, reads_units, cleans, lists, backs_up, is_followed],
)
def test_nothing_of_the_other_is_touched(act: Callable[[Moved], None], tmp_path: Path) -> None:
    moved = Moved(tmp_path)
    moved.move()
    with untouched(moved.path):
        act(moved)
        moved.store.close()
    assert timerstore.verify(moved.path, config=SMALL).ok


def moves_once(moved: Moved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folder be moved while a reader looks at it."""

    def steady(path: Path, at: At) -> Steady:
        if not moved.moved.exists():
            moved.move()
        return Steady(path, at)

    monkeypatch.setattr(reader_end_module, "Steady", steady)


def test_what_is_opened_to_look_at_stays_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Moved(tmp_path)
    moves_once(moved, monkeypatch)
    with timerstore.open(moved.path, read_only=True, config=SMALL, clock=moved.clock) as view:
        assert {each.id for each in view.pending()} == set(moved.ids)
        with untouched(moved.path):
            assert {each.id for each in view.pending()} == set(moved.ids)
            assert view.backup(tmp_path / "backup").message_count >= COUNT
    moved.store.close()


def test_a_reader_stays_with_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Moved(tmp_path)
    moves_once(moved, monkeypatch)
    assert timerstore.verify(moved.path, config=SMALL).ok
    moved.store.close()
    levels = np.array(SMALL.delay_levels_ms(), np.int64)
    reader = StoreReader(moved.moved, levels)
    moved.moved.rename(tmp_path / "again")
    assert sum(len(rows) for rows in reader.scan(stop=reader.checkpoint.commitlog_flushed)) > COUNT


@pytest.mark.linux
def test_a_socket_is_made_where_the_store_lies(tmp_path: Path) -> None:
    path, moved = tmp_path / "s", tmp_path / "moved"
    store = timerstore.open(path, config=replace(SMALL, control=False))
    assert store.core.disk.folder is not None
    store.core.disk.folder.check_place = lambda: None  # type: ignore[method-assign]
    path.rename(moved)
    timerstore.open(path, config=SMALL).close()
    with untouched(path):
        server = timerstore.serve(store)
        with timerstore.connect(moved) as client:
            client.put(b"x", delay=DAY)
        server.close()
        store.close()
