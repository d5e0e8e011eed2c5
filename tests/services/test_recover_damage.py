"""Several damaged messages at once, while the timer index has to be made anew."""

import dataclasses
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.models.ledger import read_ledger, read_messages
from tests.services.test_cleaning import clean_all
from tests.services.test_damage import CONFIG, START_MS, flip
from timerstore import ManualClock, TimerStore
from timerstore.services.cleaning.retention import Retention
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import TIMER_TOPIC, check_damaged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60, method="signal")]
SECOND = timedelta(seconds=1)


def reopened(path: Path, clock: ManualClock) -> TimerStore:
    """The store, which makes its timer index anew."""
    shutil.rmtree(path / "timerlog")
    return TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())


@pytest.mark.parametrize(
    ("at", "reason"), [(5, "no message begins"), (130, "the checksum does not match")]
)
def test_several_damaged_timers_are_passed_by(at: int, reason: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    ids = list(store.put_many([b"body %d" % i for i in range(9)], topic="t", delay_ms=5_000))
    store.close()
    before = read_ledger(path)
    for i in (2, 3, 6):
        flip(path, "commitlog", int(ids[i][12:24], 16) + at)
    store = reopened(path, clock)
    assert store.count() == 6
    scanned = store.core.engine.damage.to_list()[:2]  # two stand side by side
    assert all(each["reason"].startswith(reason) for each in scanned)
    clock.advance(20 * SECOND)
    check_damaged(store, before)
    assert store.count() == 0 and len(store.pull("t", timeout=0)) == 6
    store.close()


def test_a_batch_of_which_one_put_is_damaged_keeps_the_others(tmp_path: Path) -> None:
    """More stands behind it, so it was whole once."""
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.put(b"first", topic="t")
    clock.advance(SECOND)
    (delivery,) = store.consume("t", group="g", timeout=0)
    puts = [{"body": b"body %d" % i, "topic": "t", "delay": 5 * SECOND} for i in range(3)]
    ids = delivery.ack_and_put_many(puts)  # type: ignore[arg-type]
    store.put(b"last", topic="t", delay=5 * SECOND)
    store.close()
    before = read_ledger(path)
    flip(path, "commitlog", int(ids[1][12:24], 16) + 130)
    shutil.rmtree(path / "consumequeue")
    store = reopened(path, clock)
    assert store.count() == 3
    clock.advance(20 * SECOND)
    check_damaged(store, before)
    bodies = [each.body for each in store.pull("t", group="h", timeout=0)]
    assert sorted(bodies) == [b"body 0", b"body 2", b"first", b"last"]
    store.close()


def moved_often(path: Path, clock: ManualClock, count: int) -> TimerStore:
    """A store in which nine timers of five minutes were moved `count` times; all copies stay."""
    config = dataclasses.replace(CONFIG, cleaning_slack_bytes=0, retention_ms=0)
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    store.put_many([b"body %d" % i for i in range(9)], topic="t", delay_ms=300_000)
    store.core.play_now()  # each has its unit
    store.core.upkeep.cleaner.stopped = True
    for _ in range(count):
        store.put_many([b"short"] * 60, delay_ms=1_000)
        clock.advance(2 * SECOND)
        store.pull("default", timeout=0).ack()
        store.core.upkeep.cleaner.stopped = False
        clean_all(store)
        store.core.upkeep.cleaner.stopped = True
    assert store.stats().cleaning.copied_count == 9 * count
    return store


@pytest.mark.parametrize("at", [5, 12, 86, 130, 300])
@pytest.mark.parametrize("fired", [False, True])
def test_a_timer_whose_copy_is_damaged_fires_once(
    at: int, fired: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    monkeypatch.setattr(Retention, "run", lambda _: 0)
    store = moved_often(path, clock, 3)
    if fired:
        clock.advance(300 * SECOND)
    store.abandon()
    before = read_ledger(path)
    copies = copies_in(path)
    for offset in (copies[4], copies[14]):  # the first of one timer, the second of another
        flip(path, "commitlog", offset + at)
    monkeypatch.undo()
    store = reopened(path, clock)
    clock.advance(300 * SECOND)
    check_damaged(store, before)
    assert store.count() == 0
    assert len(store.pull("t", timeout=0)) == 9
    store.close()


@pytest.mark.parametrize("at", [5, 130])
def test_a_timer_that_lost_two_of_its_copies_fires_once(at: int, tmp_path: Path) -> None:
    """Between the two is one that is sound: it has its copy, too."""
    path, clock = tmp_path / "s", ManualClock(START_MS)
    moved_often(path, clock, 4).abandon()
    copies = copies_in(path)[::9]
    for offset in (copies[0], copies[2]):
        flip(path, "commitlog", offset + at)
    store = reopened(path, clock)
    clock.advance(300 * SECOND)
    assert store.count() == 0
    assert len(store.pull("t", timeout=0)) == 9
    store.close()


def copies_in(path: Path) -> list[int]:
    """Where the copies lie that cleaning made, in order."""
    found = [each for each in read_messages(path) if each.topic == TIMER_TOPIC]
    return [each.offset for each in found if "TIMER_ORIGIN" in each.properties]
