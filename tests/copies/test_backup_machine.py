"""Backups at random moments of a random history: what is restored of a time is what was there then.

Segments are tiny, so that they go, are used again, and pieces of the log are missing between two
backups. What a dictionary says of a moment is compared with what is restored of it, and then all
that is pending there fires, once.
"""

import shutil
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import timerstore
from tests.rigs.dictionary import LEVELS, TOPICS, DictionaryMachine
from tests.rigs.machine import cases_of
from tests.small_store import small
from tests.tiers import how_many
from tests.watched import Ended, EndingDisk
from timerstore import BackupPoint, InvalidArgumentError, ManualClock, TimerStore
from timerstore.copies.backup import take_point
from timerstore.copies.catalog import read_catalog
from timerstore.copies.destination import find_destination
from timerstore.copies.restore import restore_point
from timerstore.jit.kernel import INTERPRETED
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import Disk

pytestmark = pytest.mark.long

GROUP = "workers"
EXAMPLES = how_many("MACHINE_EXAMPLES", 1 if INTERPRETED else 2, 30)
RESTORED_MAX = 5
"""Points, and as many times between them, that are restored of one history."""


@dataclass
class Moment:
    """What a store held at one time."""

    time_ms: int
    pending: dict[str, int]  # due by id
    fired: set[str]
    acked: set[str]
    is_exact: bool = True  # a checkpoint was made then


class BackupMachine(DictionaryMachine):
    """A store with its dictionary, and a backup of it."""

    def __init__(self) -> None:
        super().__init__()
        self.dest = self.folder / "backup"
        self.acked: set[str] = set()
        self.moments: list[Moment] = []
        self.of_point: dict[int, Moment] = {}
        self.points: list[BackupPoint] = []

    @initialize(
        precision_ms=st.sampled_from([100, 1000]),
        window=st.integers(2, 12),
        commitlog_bytes=st.sampled_from([4096, 6144, 1 << 16]),
        queue_bytes=st.sampled_from([60, 2000]),
        retention_ms=st.sampled_from([0, 0, 3_600_000]),
    )
    def make(
        self,
        precision_ms: int,
        window: int,
        commitlog_bytes: int,
        queue_bytes: int,
        retention_ms: int,
    ) -> None:
        self.slot_ms = precision_ms
        self.config = small(
            commitlog_bytes,
            queue_bytes,
            520,
            precision_ms=precision_ms,
            roll_window_slots=window,
            cleaning_factor=1,
            cleaning_slack_bytes=0,
            near_count_max=1 << 16,
            retention_ms=retention_ms,
            delay_levels=LEVELS,
        )
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.now_ms)
        path = self.folder / "store"
        self.store = TimerStore(path, config=self.config, clock=self.clock, disk=QuietDisk())
        self.store.core.upkeep.retention._wanted_ahead = lambda: 3  # type: ignore[method-assign]
        self.settle()

    def settle(self) -> None:
        """Each step ends at a time of its own, of which it is known what there was."""
        super().settle()
        self.moments.append(self.moment())
        self.let_pass(1)
        super().settle()

    def moment(self, *, is_exact: bool = True) -> Moment:
        timers = self.timers.values()
        pending = {timer.id: timer.due_ms for timer in timers if timer.state == "pending"}
        fired = {timer.id for timer in timers if timer.state == "fired"}
        return Moment(self.now_ms, pending, fired, self.acked.copy(), is_exact)

    # --- a history

    @rule(topic=TOPICS, count=st.integers(1, 40))
    def consume(self, topic: str, count: int) -> None:
        batch = self.store.pull(topic, group=GROUP, max_count=count, timeout=0)
        self.acked |= {delivery.id for delivery in batch}
        batch.ack()
        self.settle()

    @rule()
    def clean(self) -> None:
        self.store.clean()
        self.settle()

    @rule(stop=st.sampled_from([0, 1, 20, 150]))
    def close_and_reopen(self, stop: int) -> None:
        self.store.close()
        self.now_ms += stop * self.slot_ms
        self.open()

    # --- backups

    def taken(self, report: timerstore.BackupReport, *, is_exact: bool) -> None:
        assert report.ok and report.point.time_ms == self.now_ms
        self.points = timerstore.backup_points(self.dest)
        assert self.points[-1] == report.point and len(self.points) == report.point_count
        self.note_point(is_exact=is_exact)

    def note_point(self, *, is_exact: bool) -> None:
        self.of_point[self.points[-1].number] = self.moment(is_exact=is_exact)

    @rule(keep=st.sampled_from([None, None, None, 3]))
    def back_up(self, keep: int | None) -> None:
        self.taken(self.store.backup(self.dest, keep=keep), is_exact=True)
        self.settle()

    @rule()
    def back_up_from_outside(self) -> None:
        self.taken(self.take(QuietDisk()), is_exact=False)
        self.settle()

    @rule()
    def back_up_what_is_closed(self) -> None:
        self.store.close()
        self.taken(self.take(QuietDisk()), is_exact=True)
        self.now_ms += 1
        self.open()

    @rule(count=st.integers(0, 60))
    def be_stopped_in_a_backup(self, count: int) -> None:
        try:
            self.taken(self.take(EndingDisk(count)), is_exact=False)
        except Ended:
            found = []
            if self.has_points():
                found = timerstore.backup_points(self.dest)
            if len(found) > len(self.points):  # it came as far as that
                self.points = found
                self.note_point(is_exact=False)
            assert found == self.points
        self.settle()

    def take(self, disk: Disk) -> timerstore.BackupReport:
        dest = find_destination(self.dest)
        dest.disk = disk
        return take_point(self.folder / "store", dest, config=self.config, clock=self.clock)

    def has_points(self) -> bool:
        return bool(list(self.dest.glob("points/*/*.zst")))

    # --- what must hold

    def check(self, at_ms: int, expected: Moment, point: Moment) -> None:
        """What is restored of a time is what was there; then what is due soon fires, once."""
        path, clock = self.folder / "restored", ManualClock(at_ms)
        report = restore_point(
            find_destination(self.dest),
            path,
            at_ms=at_ms,
            config=self.config,
            clock=clock,
            disk=QuietDisk(),
        )
        assert report.ok, report
        assert report.pending_count == len(expected.pending)
        with timerstore.open(path, read_only=True, config=self.config, clock=clock) as view:
            assert {timer.id: timer.due_ms for timer in view.pending()} == expected.pending
        with TimerStore(path, config=self.config, clock=clock, disk=QuietDisk()) as store:
            clock.advance(timedelta(milliseconds=320 * self.slot_ms + 8_000))
            left = {id for id, due_ms in expected.pending.items() if due_ms > clock.now_ms}
            assert {timer.id for timer in store.pending()} == left
            found: list[str] = []
            for topic in ("a", "b"):
                batch = store.pull(topic, group=GROUP, max_count=65_536, timeout=0)
                found += [delivery.id for delivery in batch]
        assert len(found) == len(set(found)), "something came twice"
        come = (expected.pending.keys() - left) | expected.fired
        assert set(found) <= come
        assert come - set(found) <= point.acked, "something was lost"
        if point.is_exact:
            assert not set(found) & point.acked
        shutil.rmtree(path)

    def finish(self) -> None:
        self.store.close()
        if not self.points:
            return
        assert timerstore.verify(self.dest, config=self.config).ok
        at = self.points[0].time_ms - 1
        with pytest.raises(InvalidArgumentError, match="earliest point"):
            timerstore.restore(self.dest, self.folder / "restored", at_ms=at)
        for point in self.points[-RESTORED_MAX:]:
            moment = self.of_point[point.number]
            self.check(point.time_ms, moment, moment)
        runs = read_catalog(find_destination(self.dest)).run_of
        between = [m for m in self.moments if self.points[0].time_ms < m.time_ms]
        for moment in between[:: max(1, len(between) // RESTORED_MAX)]:
            before = max((p for p in self.points if p.time_ms <= moment.time_ms), key=by_number)
            after = [p for p in self.points if p.number == before.number + 1]
            known = self.of_point[before.number]
            if after and runs(after[0]) == runs(before):
                self.check(moment.time_ms, moment, known)
            else:
                self.check(moment.time_ms, known, known)


def by_number(point: BackupPoint) -> Any:
    return point.number


TestBackups = cases_of(BackupMachine, EXAMPLES, 30, shrinks=False)
