"""Several damaged messages at once, while the timer index has to be made anew."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.models.damaged import check_damaged
from tests.models.ledger import TIMER_TOPIC, read_ledger, read_messages
from tests.models.quiet_disk import QuietDisk
from tests.services.test_damage import CONFIG, START_MS, flip
from timerstore import ManualClock, TimerStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60, method="signal")]
SECOND = timedelta(seconds=1)


def reopened(path: Path, clock: ManualClock) -> TimerStore:
    """The store, which makes its timer index anew."""
    shutil.rmtree(path / "timerlog")
    return TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())


@pytest.mark.parametrize("at", [5, 130])
def test_several_damaged_timers_are_passed_by(at: int, tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    ids = list(store.put_many([b"body %d" % i for i in range(9)], topic="t", delay_ms=5_000))
    store.close()
    before = read_ledger(path)
    for i in (2, 3, 6):
        flip(path, "commitlog", int(ids[i][12:24], 16) + at)
    store = reopened(path, clock)
    assert store.count() == 6
    clock.advance(20 * SECOND)
    check_damaged(store, before)
    assert store.count() == 0 and len(store.pull("t", timeout=0)) == 6
    store.close()


@pytest.mark.parametrize("at", [5, 12, 86, 130, 300])
@pytest.mark.parametrize("fired", [False, True])
def test_a_timer_whose_roll_is_damaged_fires_once(at: int, fired: bool, tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.put_many([b"body %d" % i for i in range(9)], topic="t", delay_ms=30_000)
    clock.advance((40 if fired else 20) * SECOND)
    store.close()
    before = read_ledger(path)
    messages = [each for each in read_messages(path) if each.topic == TIMER_TOPIC]
    rolls = [each.offset for each in messages if "TIMER_ORIGIN" in each.properties]
    for offset in (rolls[4], rolls[13]):  # the first hop of one timer, the second of another
        flip(path, "commitlog", offset + at)
    store = reopened(path, clock)
    clock.advance(60 * SECOND)
    check_damaged(store, before)
    assert store.count() == 0
    assert len(store.pull("t", timeout=0)) == 9
    store.close()


@pytest.mark.parametrize("at", [5, 130])
def test_a_timer_that_lost_two_of_its_rolls_fires_once(at: int, tmp_path: Path) -> None:
    """Between the two is one that is sound: it has its copy, too."""
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.put(b"body", topic="t", delay=60 * SECOND)
    clock.advance(50 * SECOND)
    store.close()
    rolls = [each for each in read_messages(path) if "TIMER_ORIGIN" in each.properties]
    assert len(rolls) >= 4
    for roll in (rolls[0], rolls[2]):
        flip(path, "commitlog", roll.offset + at)
    store = reopened(path, clock)
    clock.advance(60 * SECOND)
    assert store.count() == 0
    assert len(store.pull("t", timeout=0)) == 1
    store.close()
