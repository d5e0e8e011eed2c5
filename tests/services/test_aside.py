"""What was put aside: neither does what falls due wait for it, nor is any of it lost.

Services are stepped by hand on a manual clock; a round is one step of each. A range has eight slots
claimed at most, so what was put aside takes a round for each eight slots.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.models.ledger import check_store, read_ledger, read_messages
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.services.durable.capture import capture
from timerstore.services.engine import engine as engine_module
from timerstore.services.pipeline.dequeue_get import CLAIM_UNITS
from timerstore.services.running.provide import provide
from timerstore.services.running.runner import Runner
from timerstore.services.running.steps import step
from timerstore.services.world.aside import FIRST_COUNT
from timerstore.services.world.needs import NOTHING, TIMERLOG_SEGMENT
from timerstore.services.world.state import (
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
)
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.wheel.near import NO_COPY, SPAN

START_MS = 1_800_000_000_000
SLOT_MS = 100
STOP_SLOTS = 50
ROLL_SLOTS = 60
OPENED_MS = START_MS + STOP_SLOTS * SLOT_MS
CONFIG = Config(
    durability="process",
    tuning=Tuning(
        precision_ms=SLOT_MS,
        wheel_slot_count=128,
        roll_window_slots=ROLL_SLOTS,
        commitlog_segment_bytes=1 << 16,
        consumequeue_segment_bytes=2_000,
        timerlog_segment_bytes=5_248,
        near_count_max=1 << 16,
    ),
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
        self.put = self.world.dequeue_put
        assert (self.engine.read_slot, self.put.front_slot) == (START_MS // SLOT_MS, self.now_slot)

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

    def is_aside(self) -> bool:
        """Whether R is still in what was put aside."""
        return int(self.engine.read_slot) < int(self.put.aside_stop)

    def finish(self) -> None:
        """Let everything come that is due by now, and judge."""
        for _ in range(300):
            self.round()
        assert not self.is_aside()
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
        assert after.fired() == [fresh]  # the first slot's chain is only half walked
        assert after.is_aside() and after.world.aside.claim_offset != NO_UNIT
        after.tick(20)
        second = after.store.put(b"f", topic="now", at_ms=OPENED_MS + 20)
        after.round()
        assert after.fired()[1] == second and len(after.fired()) > 2
        after.finish()
        # What was put aside kept its order, by due time and then by arrival.
        assert [id for id in after.fired() if id in {*after.overdue}] == after.overdue


def test_a_short_backlog_goes_before_all_else(tmp_path: Path) -> None:
    with stopped(tmp_path / "s", FIRST_COUNT) as after:
        fresh = after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        after.finish()
        assert after.fired() == [*after.overdue, fresh]


@pytest.mark.prove
@pytest.mark.parametrize("in_first", [1, CLAIM_UNITS + 100], ids=["slots", "chain"])
def test_listing_cancelling_and_rescheduling_see_what_was_put_aside(
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
    """The checkpoint is that of a moment when the front is ahead of R."""
    with stopped(tmp_path / "s") as after:
        fresh = [after.store.put(b"f", topic="now", at_ms=OPENED_MS + 20 * i) for i in range(9)]
        after.link()
        after.tick(250)
        for _ in range(rounds):
            after.round()
        assert after.is_aside() == (rounds < 7)
        after.store.core.flusher.flush()
        after.round()
        fired = after.kill(tmp_path / "t")
        assert sorted(fired) == sorted([*fresh, *after.overdue, after.roller])


def test_copies_of_the_front_keep_l_while_r_is_behind(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        fresh = after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        after.link()
        after.tick(150)
        after.round()
        assert fresh in after.fired() and after.put.front_slot > after.put.aside_stop
        copy = next(m.offset for m in read_messages(after.path) if m.topic == "now")
        assert after.is_aside() and after.put.front_copy == copy
        assert capture(after.world).scan_from <= copy
        after.finish()
        assert after.put.front_copy == NO_COPY
        assert capture(after.world).scan_from > copy


def test_deletes_of_the_front_wait_for_rolls_that_were_put_aside(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        assert after.store.cancel(after.roller) is True
        after.tick(20 * SLOT_MS)  # its own slot has ended, in which the delete is
        after.round()
        after.round()
        after.round()
        assert after.put.front_slot > (OPENED_MS + 15 * SLOT_MS) // SLOT_MS and after.is_aside()
        assert after.store.core.engine.cancelled.set.count == 1  # still known
        after.finish()
        assert after.roller not in after.fired()
        assert after.store.core.engine.cancelled.set.count == 0


def test_deletes_of_the_front_wait_for_a_roll_that_is_read_last(tmp_path: Path) -> None:
    """Its segment is not mapped while all else that was put aside is settled."""
    with stopped(tmp_path / "s", in_first=300, ahead_slots=ROLL_SLOTS - 2) as after:
        assert after.store.cancel(after.roller) is True
        after.tick((ROLL_SLOTS + 5) * SLOT_MS)
        last = int(after.put.aside_stop) - 1
        while after.put.passed_slot <= START_MS // SLOT_MS + 1:
            after.round()
        after.engine.timerlog.drop(0)  # the roll's, and the first slot's, which is passed
        for _ in range(100):
            for service in (DEQUEUE_GET, DEQUEUE_PUT):
                step(after.world, service, after.clock.now_ms)
                if after.engine.need(service) != TIMERLOG_SEGMENT:
                    provide(after.engine, service)
        assert after.put.passed_slot == last and after.world.aside.walked_slot == last
        assert after.store.core.engine.cancelled.set.count == 1
        after.finish()
        assert after.roller not in after.fired()
        assert after.store.core.engine.cancelled.set.count == 0


def test_r_waits_for_a_straggler(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        after.tick(3 * SLOT_MS)
        while after.put.passed_slot < after.put.aside_stop - 2 * SPAN:
            after.round()
        while int(after.world.aside.walked_slot) < int(after.put.aside_stop):
            after.step(DEQUEUE_GET, DEQUEUE_PUT)
            after.step(DEQUEUE_GET)
        straggler = after.store.put(b"s", topic="now", at_ms=OPENED_MS + 50)
        after.link()
        assert after.world.enqueue_put.straggler_slot == after.put.front_slot
        after.step(DEQUEUE_PUT)  # settles the last that was put aside
        assert after.put.passed_slot == after.put.aside_stop - 1
        after.store.core.flusher.flush()
        assert straggler in after.kill(tmp_path / "t")


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    with stopped(tmp_path / "s") as after:
        after.store.put(b"f", topic="now", at_ms=OPENED_MS)
        after.round()
        after.tick(-20 * SLOT_MS)
        for _ in range(20):
            after.round()
        judge(after.store, after.path, after.clock.now_ms)
        assert after.is_aside()
        after.tick(20 * SLOT_MS)
        after.finish()


def test_r_jumps_over_nothing_that_was_put_aside(tmp_path: Path) -> None:
    """The clock was set ahead before anything was claimed."""
    with stopped(tmp_path / "s") as store:
        store.tick(30 * SLOT_MS)
        store.step(DEQUEUE_GET)
        assert store.is_aside()
        store.finish()
        assert store.engine.read_slot == store.now_slot


def test_after_a_stop_of_half_the_wheel_nothing_is_put_aside(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        store.put(b"o", topic="t", at_ms=START_MS + 50)
    for slots, stop in ((63, 63), (64, 0)):
        clock._now_ms = START_MS + slots * SLOT_MS
        with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
            aside_stop = store.core.engine.world.dequeue_put.aside_stop
            assert aside_stop == (START_MS // SLOT_MS + stop if stop else 0)
            assert len(store.pull("t", timeout=0)) == 1
        shutil.rmtree(tmp_path)
        clock._now_ms = START_MS
        with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
            store.put(b"o", topic="t", at_ms=START_MS + 50)


def test_the_latest_copy_of_a_timer_that_rolled_may_be_put_aside(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        id = store.put(b"r", topic="t", at_ms=START_MS + 90 * SLOT_MS)
        clock.advance(timedelta(milliseconds=40 * SLOT_MS))
        assert store.stats().rolled_count == 1
    clock._now_ms = START_MS + 85 * SLOT_MS
    with patch.object(Runner, "play"):
        store = TimerStore(tmp_path, config=CONFIG, clock=clock)
        aside = range(
            store.core.engine.world.aside.claimed_slot,
            store.core.engine.world.dequeue_put.aside_stop,
        )
        assert START_MS // SLOT_MS + 64 in aside  # where it waits
        timer = store.get(id)
        assert timer is not None and timer.roll_count == 0  # no message was appended again
        store.abandon()
