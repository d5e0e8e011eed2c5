"""What is owed: neither does what falls due wait for it, nor is any of it lost.

Services are stepped by hand on a manual clock; a round is one step of each. Eight slots are walked
into a ring at most, so what is owed takes a round for each eight slots.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.models.ledger import read_ledger, read_messages
from tests.services.alone import step
from tests.small_store import small
from timerstore import ManualClock, TimerStore
from timerstore.jit.record import acting_as
from timerstore.services.durable.flush import capture
from timerstore.services.engine import engine as engine_module
from timerstore.services.pipeline.dequeue_get import CLAIM_UNITS, COLD_COUNT
from timerstore.services.running.runner import Runner, provide
from timerstore.services.world.claims import FIRST_COUNT
from timerstore.services.world.needs import NOTHING
from timerstore.services.world.state import (
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    PREFETCH,
    waiting_places,
)
from timerstore.testing.ledger import check_store

START_MS = 1_800_000_000_000
SLOT_MS = 100
STOP_SLOTS = 50
ROLL_SLOTS = 60
OPENED_MS = START_MS + STOP_SLOTS * SLOT_MS
CONFIG = small(
    1 << 16,
    2_000,
    5_248,
    precision_ms=SLOT_MS,
    roll_window_slots=ROLL_SLOTS,
    near_count_max=1 << 16,
)


class Stopped:
    """A store in which one timer fell due in each slot while nobody had it open."""

    def __init__(self, path: Path, patches: ExitStack, in_first: int, ahead_slots: int) -> None:
        """`patches` keep the services still; `in_first`: timers of the first of these slots.

        `ahead_slots`: how far behind the opening the timer that rolls is due.
        """
        self.patches = patches
        self.path, self.clock = path, ManualClock(START_MS)
        self.overdue: list[str] = []
        with TimerStore(path, config=CONFIG, clock=self.clock) as store:
            due = [START_MS + SLOT_MS + 50] * in_first
            due += [START_MS + slot * SLOT_MS + 50 for slot in range(2, STOP_SLOTS)]
            # Far ahead: it rolls, and the roll falls due before the store is opened again.
            self.roller = store.put(b"r", topic="t", at_ms=OPENED_MS + ahead_slots * SLOT_MS)
            self.overdue = [
                str(id) for id in store.put_many([b"o"] * len(due), topic="t", at_ms=due)
            ]
            self.engine = store.core.engine
            self.link()  # before the stop: else nothing has rolled
        self.clock._now_ms = OPENED_MS
        self.store = TimerStore(path, config=CONFIG, clock=self.clock)
        self.engine, self.world = self.store.core.engine, self.store.core.engine.world
        self.get = self.world.dequeue_get
        assert self.engine.read_slot == self.get.claimed_slot == START_MS // SLOT_MS

    @property
    def now_slot(self) -> int:
        return self.clock.now_ms // SLOT_MS

    def tick(self, by_ms: int) -> None:
        """Move the clock, and nothing else."""
        self.clock._now_ms += by_ms

    def step(self, *services: int) -> None:
        """Run a step of each service, and answer its needs."""
        for service in services:
            step(self.engine.world, service, self.clock.now_ms)
            while self.engine.need(service) != NOTHING:
                provide(self.engine, service)
                step(self.engine.world, service, self.clock.now_ms)

    def link(self) -> None:
        """Give what was put its unit."""
        self.step(ENQUEUE_GET, ENQUEUE_PUT)

    def round(self) -> None:
        """Run a step of each service, in the order of a timer's way."""
        self.step(ENQUEUE_GET, ENQUEUE_PUT, DEQUEUE_GET, DEQUEUE_PUT)

    def fired(self) -> list[str]:
        """The ids of what was fired, in the order of the log."""
        messages = read_messages(self.path)
        return [m.properties["UNIQ_KEY"] for m in messages if m.topic in ("t", "now")]

    def owes(self) -> bool:
        """Whether anything is owed still."""
        is_walked = self.get.walked_slot == self.get.claimed_slot
        return not is_walked or bool(self.engine.near.owed_count)

    def set_cold(self, is_cold: int) -> None:
        """Say that pages were missing lately: a step then waits for that of one unit."""
        with acting_as(PREFETCH):
            self.world.prefetch.is_active = is_cold
        with acting_as(DEQUEUE_GET):
            self.get.touch_ns = 0

    def finish(self) -> None:
        """Let everything come that is due by now, and judge."""
        for _ in range(300):
            self.round()
        assert not self.owes() and self.engine.read_slot >= self.now_slot
        judge(self.store, self.path, self.clock.now_ms)

    def kill(self, path: Path) -> list[str]:
        """Open a copy of what a kill would leave now, and judge; return what was fired in all."""
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("lock"))
        self.patches.close()
        clock = ManualClock(self.clock.now_ms)
        with TimerStore(path, config=CONFIG, clock=clock) as store:
            judge(store, path, clock.now_ms)
            clock.advance(timedelta(seconds=10))
            judge(store, path, clock.now_ms)
            assert store.core.engine.cancelled.set.count == 0
        return [m.properties["UNIQ_KEY"] for m in read_messages(path) if m.topic in ("t", "now")]


def judge(store: TimerStore, path: Path, now_ms: int) -> None:
    """What is due was fired once, unless it was cancelled; the counts are those of the log."""
    ledger = read_ledger(path)
    ledger.check()
    check_store(store, ledger)
    assert not [root for root in ledger.roots.values() if root.pending and root.due_ms <= now_ms]


@contextmanager
def stopped(
    path: Path, first_count: int = 0, in_first: int = 1, ahead_slots: int = 15
) -> Iterator[Stopped]:
    """Open a store after a stop; no service runs but by hand."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(engine_module, "FIRST_COUNT", first_count))
        patches.enter_context(patch.object(Runner, "play"))
        made = Stopped(path, patches, in_first, ahead_slots)
        yield made
        made.store.abandon()


@pytest.mark.whole
def test_what_falls_due_meanwhile_comes_first(tmp_path: Path) -> None:
    with stopped(tmp_path / "s", in_first=CLAIM_UNITS + 100) as after:
        fresh = after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        after.round()
        assert after.fired() == [fresh]
        after.tick(20)
        after.step(DEQUEUE_GET)  # the first slot's chain is only half walked
        second = after.store.put(b"f", topic="now", at_ms=OPENED_MS + 20)
        after.round()
        assert after.fired()[1] == second and after.owes()
        after.finish()
        # What is owed kept its order, by due time and then by arrival.
        assert [id for id in after.fired() if id in {*after.overdue}] == after.overdue


@pytest.mark.parametrize("is_linked", [False, True], ids=["put", "linked"])
def test_a_fresh_timer_does_not_wait_for_what_was_left_while_the_store_ran(
    tmp_path: Path, is_linked: bool
) -> None:
    """The front comes to messages that are not in memory: what was put behind them goes first."""
    with stopped(tmp_path / "s") as after:
        after.finish()
        due_ms, count = OPENED_MS + 3 * SLOT_MS, CLAIM_UNITS + 1_000
        cold = after.store.put_many([b"c" * 40] * count, topic="cold", at_ms=due_ms)
        after.store.put_many([b"x" * 900] * 150, topic="far", at_ms=OPENED_MS + 10_000_000)
        fresh = [after.store.put(b"f", topic="now", at_ms=due_ms + 20)] * is_linked
        for _ in range(20):
            after.link()
        after.set_cold(1)
        log = after.engine.commitlog
        first = int(str(cold[0])[12:24], 16) // log.segment_bytes
        for number in range(first, log.end // log.segment_bytes - 1):
            log.retire(number)
        after.tick(3 * SLOT_MS + 20)
        for _ in range(3):
            after.step(DEQUEUE_GET)
        assert after.owes()
        if not is_linked:
            fresh.append(after.store.put(b"f", topic="now", at_ms=due_ms + 20))
        after.round()
        while len(waiting_places(after.world.dequeue_ring.ends)):  # a step may fire some of it
            after.step(DEQUEUE_PUT)
        messages = [m for m in read_messages(after.path) if m.topic in ("cold", "now")]
        assert fresh[0] in [m.properties["UNIQ_KEY"] for m in messages]
        assert len(messages) <= COLD_COUNT + 1
        after.set_cold(0)
        after.finish()


def test_a_short_backlog_goes_before_all_else(tmp_path: Path) -> None:
    with stopped(tmp_path / "s", FIRST_COUNT) as after:
        fresh = after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        after.finish()
        assert after.fired() == [*after.overdue, fresh]


@pytest.mark.prove
@pytest.mark.parametrize("in_first", [1, CLAIM_UNITS + 100], ids=["slots", "chain"])
def test_listing_cancelling_and_rescheduling_see_what_is_owed(
    tmp_path: Path, in_first: int
) -> None:
    with stopped(tmp_path / "s", in_first=in_first) as after:
        after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        gone: set[str] = set()
        for i in range(40):
            after.round()
            fired = {*after.fired()}
            waiting = {after.roller, *after.overdue} - fired - gone
            pending = {timer.id for timer in after.store.pending(topic="t")}
            if i % 5 == 0:
                assert pending == waiting and after.store.count("t") == len(waiting)
            # The front has fired something: so each of these has to be looked for.
            for id in [id for id in (after.overdue[i], after.overdue[-1 - i]) if id in waiting]:
                assert after.store.get(id) is not None and after.store.cancel(id) is True
                gone.add(id)
            for id in [id for id in after.overdue[: i + 1] if id in fired]:
                assert after.store.cancel(id) is False
        after.finish()
        assert len(gone) >= 5 and not gone & {*after.fired()}
        assert after.store.core.engine.cancelled.set.count == 0


@pytest.mark.parametrize("rounds", range(9))
def test_a_kill_at_any_time(tmp_path: Path, rounds: int) -> None:
    """The checkpoint is that of a moment when the claim cursor is far ahead of the read cursor."""
    with stopped(tmp_path / "s") as after:
        fresh = [after.store.put(b"f", topic="now", at_ms=OPENED_MS + 20 * i) for i in range(9)]
        after.link()
        after.tick(250)
        for _ in range(rounds):
            after.round()
        assert after.owes() == (0 < rounds < 8)
        after.store.core.flusher.flush()
        after.round()
        fired = after.kill(tmp_path / "t")
        assert sorted(fired) == sorted([*fresh, *after.overdue, after.roller])


def test_copies_of_slots_not_passed_keep_the_copies_cursor(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        after.step(DEQUEUE_GET)
        fresh = after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        after.tick(150)
        after.round()
        assert fresh in after.fired() and after.owes()
        copy = next(m.offset for m in read_messages(after.path) if m.topic == "now")
        assert capture(after.world).scan_from <= copy
        after.finish()
        assert capture(after.world).scan_from > copy


def test_deletes_wait_for_rolls_that_are_owed(tmp_path: Path) -> None:
    with stopped(tmp_path / "s", ahead_slots=12) as after:
        after.tick(20 * SLOT_MS)  # its own slot has ended, in which the delete comes
        after.set_cold(1)
        after.step(DEQUEUE_GET)
        assert after.store.cancel(after.roller) is True
        after.round()
        assert after.engine.near.late.any() and after.owes()
        assert after.store.core.engine.cancelled.set.count == 1  # still known
        after.set_cold(0)
        after.finish()
        assert after.roller not in after.fired()
        assert after.store.core.engine.cancelled.set.count == 0


def test_the_read_cursor_waits_for_what_is_owed(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        after.round()
        after.step(DEQUEUE_PUT)
        assert after.owes() and after.engine.read_slot == START_MS // SLOT_MS + 1
        after.store.core.flusher.flush()
        assert sorted(after.kill(tmp_path / "t")) == sorted([*after.overdue, after.roller])


def test_what_is_put_into_a_slot_that_owes_fires_at_once_and_not_again(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        after.round()
        late = after.store.put(b"s", topic="now", at_ms=OPENED_MS - 7 * SLOT_MS)
        after.round()
        assert late in after.fired() and after.owes()
        after.finish()


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        after.round()
        after.tick(-20 * SLOT_MS)
        for _ in range(20):
            after.round()
        judge(after.store, after.path, after.clock.now_ms)
        assert after.owes()
        after.tick(20 * SLOT_MS)
        after.finish()


def test_no_jump_goes_over_what_is_owed(tmp_path: Path) -> None:
    """The clock was set ahead before anything was claimed."""
    with stopped(tmp_path / "s") as store:
        store.tick(30 * SLOT_MS)
        store.step(DEQUEUE_GET)
        assert store.owes()
        store.finish()
        assert store.engine.read_slot == store.now_slot


@pytest.mark.parametrize("slots", [62, 63, 90])
def test_after_a_stop_of_half_the_wheel_what_is_overdue_goes_first(
    tmp_path: Path, slots: int
) -> None:
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        overdue = store.put(b"o", topic="t", at_ms=START_MS + 50)
    clock._now_ms = START_MS + slots * SLOT_MS
    with patch.object(Runner, "play"):
        store = TimerStore(tmp_path, config=CONFIG, clock=clock)
        world = store.core.engine.world
        step(world, DEQUEUE_GET, clock.now_ms)
        limit = START_MS // SLOT_MS + min(64, slots + 2)
        assert world.dequeue_get.claimed_slot == limit
        store.abandon()
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        assert store.pull("t", timeout=0).ids.to_pylist() == [overdue]


def test_the_latest_copy_of_a_timer_that_rolled_may_be_overdue(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        id = store.put(b"r", topic="t", at_ms=START_MS + 90 * SLOT_MS)
        clock.advance(timedelta(milliseconds=40 * SLOT_MS))
        assert store.stats().rolled_count == 1
    clock._now_ms = START_MS + 85 * SLOT_MS
    with patch.object(Runner, "play"):
        store = TimerStore(tmp_path, config=CONFIG, clock=clock)
        # Where it waits.
        assert store.core.engine.read_slot <= START_MS // SLOT_MS + 64 < clock.now_ms // SLOT_MS
        timer = store.get(id)
        assert timer is not None and timer.roll_count == 0  # no message was appended again
        store.abandon()
