"""The runner: whom it wakes, how it answers needs, what it plays on a manual clock."""

import random
import re
import threading
import time
from pathlib import Path

import pytest

from tests.full_disks import FullDisk
from tests.models.ledger import read_messages
from tests.services.alone import (
    DELIVER_LEVELS,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    PRECISION_MS,
    START_MS,
    START_SLOT,
    Alone,
    timer,
)
from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore.errors import StoreFullError
from timerstore.jit.host import drain_event
from timerstore.services.running.runner import Runner
from timerstore.services.world.world import WAKE_COUNT


def runner_of(alone: Alone) -> Runner:
    """A runner whose threads were not started."""
    return Runner(alone.engine)


def woken(alone: Alone, service: int) -> bool:
    """Whether a service's thread was woken."""
    try:
        drain_event(alone.engine.eventfds[service])
    except BlockingIOError:
        return False
    return True


def test_who_is_awake_is_not_woken() -> None:
    with Alone(ENQUEUE_GET) as alone:
        engine, mine = alone.engine, alone.thread(ENQUEUE_GET)
        engine.wake(ENQUEUE_GET)
        assert not woken(alone, ENQUEUE_GET)
        mine.sleeping_until_ms = START_MS
        engine.wake(ENQUEUE_GET)
        engine.wake(ENQUEUE_GET)
        assert woken(alone, ENQUEUE_GET) and not woken(alone, ENQUEUE_GET)
        assert mine.sleeping_until_ms == 0


@pytest.mark.parametrize(
    ("due_ms", "waiting", "wakes"), [(-1, 1, True), (0, 1, False), (9, 1, False), (9, 1_024, True)]
)
def test_a_put_wakes_who_would_sleep_for_too_long(due_ms: int, waiting: int, wakes: bool) -> None:
    """It is due sooner; or many wait by now."""
    assert WAKE_COUNT == 1_024
    with Alone(ENQUEUE_GET) as alone:
        alone.thread(ENQUEUE_GET).sleeping_until_ms = START_MS
        alone.engine.queues.table.next_index[0] = waiting
        alone.engine.wake_for(START_MS + due_ms)
        assert woken(alone, ENQUEUE_GET) == wakes


def test_a_need_that_cannot_be_met_is_met_later_and_told_meanwhile() -> None:
    disk = FullDisk()
    with Alone(ENQUEUE_PUT, disk) as alone:
        runner = runner_of(alone)
        alone.push("enqueue", [[START_MS, START_MS, 0, 300, 9, 0, 0, 0]])
        disk.full = True
        for _ in range(2):
            alone.step(START_MS)
            assert alone.need == ("timerlog segment", 0)
            runner._meet(ENQUEUE_PUT)
            assert isinstance(runner.waiting_for_space, StoreFullError) and alone.need == ("", 0)
        disk.full = False
        alone.step(START_MS)
        runner._meet(ENQUEUE_PUT)
        assert runner.waiting_for_space is None
        assert alone.step(START_MS) == 1


def test_it_plays_a_timers_way_at_its_time() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        runner = runner_of(alone)
        for ahead_ms in (250, 50, 1_900):
            alone.put(timer(alone.tag, "orders", START_MS + ahead_ms))
        end = alone.engine.commitlog.end
        runner.play(START_MS, START_MS + 300)
        fired = alone.messages(end)
        assert [m.stored_ms for m in fired] == [START_MS + 50, START_MS + 250]
        assert alone.cursor("read") == START_SLOT + 3
        runner.play(START_MS + 300, START_MS + 100)  # the clock goes back: the read cursor does not
        assert alone.cursor("read") == START_SLOT + 3 and alone.cursor("fired") == 2


def test_the_read_cursor_goes_on_without_checkpoints() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        runner = runner_of(alone)
        slots = 3 * alone.engine.config.wheel_slot_count
        runner.play(START_MS, START_MS + slots * PRECISION_MS)
        assert alone.cursor("read") == START_SLOT + slots


@pytest.mark.slow
def test_threads_end_when_they_are_told_and_begin_again() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        runner = runner_of(alone)
        alone.engine.clock.manual = False  # type: ignore[misc]
        for _ in range(2):
            runner.start() if not runner._stop.is_set() else runner.resume()
            names = {thread.name for thread in threading.enumerate()}
            assert {"timerstore-enqueue-get", "timerstore-deliver-levels"} <= names
            runner.stop()
            names = {thread.name for thread in threading.enumerate()}
            assert "timerstore-enqueue-get" not in names
            assert len(runner._threads) == 0 and DELIVER_LEVELS in range(5)


def test_each_fires_once_at_its_time(tmp_path: Path) -> None:
    """With a clock that was set back an hour, and then moved in steps of any length."""
    clock, rng = ManualClock(START_MS), random.Random(3)
    due_ms, reached_ms = [], {}
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:

        def move(step_s: float) -> None:
            clock.advance(step_s)
            messages = [m for m in read_messages(tmp_path / "s") if m.topic == "t"]
            fired = {int(m.body) for m in messages}
            assert len(fired) == len(messages)
            for i, ms in enumerate(due_ms):
                reached_ms[i] = max(reached_ms.get(i, 0), clock.now_ms)
                assert i in fired or ms > clock.now_ms
                assert i not in fired or ms <= reached_ms[i]

        for step_s in (3_600, -3_600, 0.5, 700, 3, -1_000, 1_500, 900, 1_300, 60):
            move(step_s)
            for ahead_ms in (5, rng.choice([-5_000, 16_384 + 5, 900, 600_000, 2_500_000])):
                due = [clock.now_ms + ahead_ms + rng.randrange(3) for _ in range(30)]
                bodies = [b"%d" % (len(due_ms) + i) for i in range(30)]
                store.put_many(bodies, topic="t", at_ms=due)
                due_ms += due
            for _ in range(9):
                move(0.001)
        move(7_200)
        assert store.stats().fired_count == 600


@pytest.mark.linux
@pytest.mark.parametrize("manual", [True, False])
def test_a_page_that_is_missing_is_read_alone(tmp_path: Path, manual: bool) -> None:
    """A store that is larger than its memory would lose by each page what it needs next."""
    clock = ManualClock(START_MS) if manual else None
    with TimerStore(tmp_path, config=SMALL, clock=clock) as store:
        store.put_many([bytes(500)] * 400, delay=3_600)
        if clock is not None:
            clock.advance(1)
        commitlog = store.core.engine.commitlog
        last = commitlog.end // commitlog.segment_bytes
        assert last > 3
        until_s = time.monotonic() + 30
        while random_reads(tmp_path / "commitlog") < last and time.monotonic() < until_s:
            time.sleep(0.01)
        assert random_reads(tmp_path / "commitlog") == last  # all but the one that is written


def random_reads(folder: Path) -> int:
    """How many files of a folder are mapped for reads at random."""
    maps = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    paths = {each.partition("\n")[0].split()[-1] for each in maps if " rr" in each}
    return sum(path.startswith(f"{folder}/") for path in paths)
