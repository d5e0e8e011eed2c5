"""Histories of the real store in which a plan says where each thread hands over to another.

A plan is data: what callers do, the turns of the baton (`tests/rigs/baton.py`), where each life
ends. It is made up by Hypothesis, or from a seed, by the same function. All services run resident
in their own threads, with helping, sleeping and waking. The ledger judges from the commit log; what
`cancel` and `put` said is compared with it; nobody may be asleep while something is due.
"""

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

import timerstore.services.engine.engine as engine_module
import timerstore.services.pipeline.dequeue_put as put_module
from tests.models.archive import KeptPowerDisk
from tests.models.ledger import read_ledger
from tests.rigs.baton import Baton, attached
from tests.small_store import small
from tests.wheel_checks import check_cancelled, check_near
from timerstore import TimerStore, TooLateError
from timerstore.services.running.steps import IDLE_MS_MAX
from timerstore.services.world.claims import FIRST_COUNT
from timerstore.services.world.state import CLAMP_SLACK_MS
from timerstore.testing.ledger import Ledger, Root, check_store
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import MappedFile

SLOT_MS = 100
START_MS = 1_800_000_000_000
LEVELS = "1s 1s 2s"
GAPS = (1, 1, 2, 3, 5, 8, 13, 20, 40, 80, 200, 800)
DELAYS_MS = (-150, -1, 0, 1, 30, 99, 100, 150, 250, 420, 700, 2_600)
TICKS_MS = (1, 1, 30, 60, 100, 110, 250, 900, -60)

NEVER = 1 << 30  # boundaries

STOPS_MS = (0, 150, 450, 1_300, 3_000)
OFTEN = ("put",) * 5 + ("cancel",) * 3 + ("tick",) * 3 + ("fill", "consume") * 2
RARER = ("reschedule", "level", "cancel level", "flush", "list", "rest")

Integers = Callable[[int, int], int]
Act = tuple[Any, ...]

TURNOVER: tuple[Act, ...] = (
    ("fill", 3),
    ("rest",),
    ("tick", 110),
    ("consume",),
    ("flush",),
) * 4
"""What one more caller does in each life, so that segments go, and are used again."""


class BrokenError(AssertionError):
    """The store broke a promise."""


def check(holds: object, promise: str) -> None:
    """Be the oracle."""
    if not holds:
        raise BrokenError(promise)


@dataclass(frozen=True)
class Life:
    """What happens between opening and an end."""

    callers: tuple[tuple[Act, ...], ...]
    turns: tuple[tuple[int, int], ...]  # how many boundaries, then whose turn; see `Baton`
    cuts: tuple[tuple[int, str], ...] = ()  # at which boundary somebody goes before all others
    ends_at: int = 0  # the boundary at which the process ends; 0: it is closed in peace
    power: bool = False  # the power is cut there
    stopped_ms: int = 0  # for how long nobody had the store open before


@dataclass(frozen=True)
class Plan:
    """A whole history."""

    lives: tuple[Life, ...]
    group: bool = False  # durability
    segment_bytes: int = 1 << 11
    first_count: int = FIRST_COUNT  # of what is owed, that goes before all else


def make_plan(integers: Integers) -> Plan:
    """Make up a plan; `integers(a, b)` is any number from a to b."""

    def one_of(values: tuple[Any, ...]) -> Any:
        return values[integers(0, len(values) - 1)]

    def make_act() -> Act:
        kind = one_of(OFTEN + RARER)
        if kind == "put":
            return kind, one_of(DELAYS_MS)
        if kind == "tick":
            return kind, one_of(TICKS_MS)
        if kind == "reschedule":
            return kind, integers(0, 5), one_of(DELAYS_MS)
        if kind in ("cancel", "cancel level"):
            return kind, integers(0, 5)
        if kind == "level":
            return kind, integers(1, 3)
        if kind == "fill":
            return kind, integers(2, 8)
        return (kind,)

    def make_life(last: bool) -> Life:
        callers = tuple(
            tuple(make_act() for _ in range(integers(1, 6))) for _ in range(integers(1, 3))
        )
        turns = tuple((one_of(GAPS), integers(0, 9)) for _ in range(integers(0, 120)))
        cuts = tuple(
            (cut, one_of(("caller 0", "caller 1", "timerstore-dequeue-get")))
            for cut in sorted(integers(1, 3_000) for _ in range(integers(0, 3)))
        )
        ends_at = 0 if last else integers(1, 3_000)
        return Life((*callers, TURNOVER), turns, cuts, ends_at, power=bool(integers(0, 1)))

    lives = integers(1, 3)
    return Plan(
        tuple(make_life(i == lives - 1) for i in range(lives)),
        group=bool(integers(0, 1)),
        segment_bytes=one_of((1 << 10, 1 << 11, 1 << 12)),
    )


def seeded(seed: int) -> Plan:
    """Make up a plan from a seed."""
    return make_plan(random.Random(seed).randint)


def with_stops(seed: int) -> Plan:
    """Make up a plan from a seed, with stops between its lives after which much is owed."""
    rnd, plan = random.Random(-1 - seed), seeded(seed)
    lives = tuple(replace(life, stopped_ms=rnd.choice(STOPS_MS)) for life in plan.lives)
    return replace(plan, lives=lives, first_count=rnd.choice((0, 0, 2, FIRST_COUNT)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Make up any plan."""
    return make_plan(lambda least, most: draw(st.integers(least, most)))


class TurningDisk(KeptPowerDisk):
    """A disk that can lose its power, and each of whose events is a boundary."""

    baton: Baton

    def event(self, kind: str, path: Path) -> None:
        self.baton.boundary()

    def sync(self, file: MappedFile | int, path: Path) -> None:
        self.baton.boundary()
        super().sync(file, path)


class Recorder:
    """What was promised by the calls of all lives."""

    def __init__(self) -> None:
        self.put: dict[str, int] = {}  # due times
        self.came: set[str] = set()
        self.gone: set[str] = set()  # cancelled or rescheduled
        # Of levels, before they were due. Who puts may stall between its clock and the log; then
        # deliver-levels finds the message when it looks next, twice a second.
        self.in_time: set[str] = set()
        self.clamped: dict[str, int] = {}  # by when: the clock went back behind their put
        self.touched: set[str] = set()  # a call that would make it go has begun


class Player:
    """Plays one plan in a folder of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.rnd = random.Random(1)  # of what a power cut leaves
        self.now_ms = START_MS
        self.said = Recorder()
        self.path = folder / "0"
        self.synced: dict[Path, bytes] = {}
        self.count = 0
        self.fell_ms = 0  # the furthest that the clock went back
        self.reused = 0  # segments

        self.config = small(
            self.plan.segment_bytes,
            60,
            104,
            precision_ms=SLOT_MS,
            roll_window_slots=12 if self.plan.group else 6,
            cleaning_factor=1,
            cleaning_slack_bytes=0,
            level_batch_count=2,
            near_count_max=1 << 10,
            durability="group" if self.plan.group else "process",
            flush_interval_ms=50,
            delay_levels=LEVELS,
        )

    def play(self) -> None:
        """Play all lives. Raises BrokenError."""
        for number, life in enumerate(self.plan.lives, 1):
            self.now_ms += life.stopped_ms
            self.baton = Baton(self.now_ms, life.turns, life.cuts)
            goes_first = patch.object(engine_module, "FIRST_COUNT", self.plan.first_count)
            with attached(self.baton), oracle(self.baton), goes_first:
                self._live(life, number)
            self.count += self.baton.count
            self.reused += self.store.core.engine.commitlog.reused_count
            self.now_ms = self.baton.latest_ms

    def _live(self, life: Life, number: int) -> None:
        baton = self.baton
        disk = TurningDisk(self.path, self.synced)
        disk.baton = baton
        self.known = Ledger(levels_ms=self.config.delay_levels_ms())
        self.store = store = TimerStore(self.path, config=self.config, disk=disk)
        store.core.upkeep.retention._wanted_ahead = lambda: 3  # type: ignore[method-assign]
        store.core.upkeep.cleaner.wait_slots = 1
        self.callers = [
            baton.spawn(f"caller {i}", lambda acts=acts: self._call(acts))  # type: ignore[misc]
            for i, acts in enumerate(life.callers)
        ]
        baton.on_quiet = self.check_nothing_is_due
        if life.ends_at:
            baton.stop_at = life.ends_at
        baton.play_on(lambda: all(caller.ended for caller in self.callers))
        if life.ends_at:
            baton.play_on(lambda: False) if not self._is_over() else None
            self._end(life, number)
            return
        baton.play_on(self._is_over)
        self.fell_ms = max(self.fell_ms, baton.fell_ms)
        self._judge()
        baton.on_quiet = lambda: None
        store.close()
        baton.kill()

    def _end(self, life: Life, number: int) -> None:
        self.fell_ms = max(self.fell_ms, self.baton.fell_ms)
        target = self.folder / str(number)
        disk = self.store.core.disk
        assert isinstance(disk, KeptPowerDisk)
        if life.power and self.plan.group:
            self.synced = disk.cut(target, self.rnd)
        else:
            shutil.copytree(self.path, target, ignore=shutil.ignore_patterns("lock"))
            self.synced = {
                target / path.relative_to(self.path): content
                for path, content in disk.synced.items()
            }
        self.baton.kill()
        self.store.core.gate.words[:] = 0  # who was killed in an interpreted kernel never left
        self.store.abandon()
        shutil.rmtree(self.path)
        self.path = target

    # --- the callers

    def _call(self, acts: tuple[Act, ...]) -> None:
        for act in acts:
            self.baton.boundary()
            getattr(self, f"do_{act[0].replace(' ', '_')}")(*act[1:])

    def do_tick(self, by_ms: int) -> None:
        self.baton.move_clock(by_ms)
        if by_ms < -CLAMP_SLACK_MS:
            self._note_far_ones()

    def _note_far_ones(self) -> None:
        """What lies further ahead than its level is due when the loop looks up: at once."""
        now_ms, levels_ms = self.baton.now_ms, [0, *self.config.delay_levels_ms()]
        for root in self.ledger().roots.values():
            if root.level and root.due_ms > now_ms + levels_ms[root.level] + CLAMP_SLACK_MS:
                self.said.clamped[root.key] = now_ms + IDLE_MS_MAX + 1

    def do_end(self) -> None:
        """Have the process end here."""
        self.baton.stop_at = self.baton.count
        self.baton.wait(lambda: False)

    def do_rest(self) -> None:
        """Let the others go on until a cut comes, or for a while."""
        self.baton.rest(20)

    def do_stand_by(self) -> None:
        """Let the others go on until a wrong kernel pauses."""
        self.baton.rest(20_000, stands_by=True)

    def do_put(self, delay_ms: int) -> None:
        due_ms = self.baton.now_ms + delay_ms
        self.said.put[self.store.put(b"x" * 40, topic="a", at_ms=due_ms)] = due_ms

    def do_level(self, level: int) -> None:
        id = self.store.put(b"l", topic="b", delay_level=level)
        self.said.put[id] = 0
        if self.baton.now_ms < int(id[:12], 16):
            self.said.in_time.add(id)

    def do_fill(self, count: int) -> None:
        """Put what fires at once: the log grows."""
        due_ms = self.baton.now_ms
        for id in self.store.put_many([b"f" * 40] * count, topic="a", at_ms=due_ms):
            self.said.put[id] = due_ms

    def do_consume(self) -> None:
        """Let go of what has fired: its segments may go, or be used again."""
        for topic in ("a", "b"):
            batch = self.store.pull(topic, max_count=16, timeout=0)
            self.said.came.update(batch.ids.to_pylist())
            batch.ack()

    def do_flush(self) -> None:
        self.store.flush()

    def _some(self, back: int, *, of_level: bool) -> str | None:
        ids = [id for id in self.said.put if is_of_level(id) == of_level]
        return ids[-1 - back % len(ids)] if ids else None

    def do_cancel(self, back: int, of_level: bool = False) -> None:
        id = self._some(back, of_level=of_level)
        if id is None:
            return
        self.said.touched.add(id)
        if self.store.cancel(id):
            self.said.gone.add(id)
        else:
            self._check_gone(id)

    def do_cancel_level(self, back: int) -> None:
        self.do_cancel(back, of_level=True)

    def do_reschedule(self, back: int, delay_ms: int) -> None:
        id = self._some(back, of_level=False)
        if id is None:
            return
        self.said.touched.add(id)
        due_ms = self.baton.now_ms + delay_ms
        try:
            self.said.put[self.store.reschedule(id, at_ms=due_ms)] = due_ms
        except TooLateError:
            self._check_gone(id)
        else:
            self.said.gone.add(id)

    def _check_gone(self, id: str) -> None:
        """What is too late was fired, or somebody else has cancelled it."""
        root = self._roots()[id]
        check(not root.pending, f"False of {id}, which waits")

    def do_list(self) -> None:
        gone, before = set(self.said.gone), dict(self.said.put)
        listed = {timer.id for timer in self.store.pending()}
        check(not listed & gone, "what was cancelled is listed")
        waits = {
            id
            for id, due_ms in before.items()
            if due_ms > self.baton.latest_ms and id not in self.said.touched
        }
        check(waits <= listed, "what is pending is not listed")

    # --- the oracle

    def ledger(self) -> Ledger:
        """Read what this life has appended since it was asked for last."""
        return read_ledger(self.path, self.known)

    def _roots(self) -> dict[str, Root]:
        return {root.key: root for root in self.ledger().roots.values()}

    def _is_over(self) -> bool:
        """Whether nobody calls any more, and everything that was put has come."""
        if not all(caller.ended for caller in self.callers):
            return False
        engine = self.store.core.engine
        if engine.world.enqueue_put.linked_index != engine.queues.table.next_index[0]:
            return False
        if (engine.wheel.slots["time"] >= engine.read_slot).any():
            return False
        levels = engine.levels
        ends = [engine.queues.table.next_index[row] for row in levels.row if row >= 0]
        offsets = levels.offset[levels.row >= 0]
        asleep = all(task.ended or task.until_ms is not None for task in self.baton.tasks)
        return asleep and bool(np.array_equal(ends, offsets))

    def check_nothing_is_due(self) -> None:
        """All sleep: so no timer may be due, unless somebody looks again within a millisecond."""
        check_near(self.store.core.engine.near)
        now_ms, ends = self.baton.now_ms, [task.until_ms for task in self.baton.tasks]
        if any(until_ms is not None and until_ms <= self.baton.steady_ms + 1 for until_ms in ends):
            return
        overdue = self.ledger().overdue(now_ms)
        late = [root.key for root in overdue if not root.level or root.key in self.said.in_time]
        check(not late, f"all sleep, and {late} are due")
        waits = {root.key for root in self.ledger().roots.values() if root.pending}
        late = [id for id, ms in self.said.clamped.items() if ms < now_ms and id in waits]
        check(not late, f"{late} wait for a clock that went back")

    def _judge(self) -> None:
        store, said = self.store, self.said
        ledger = self.ledger()
        ledger.check()
        check_store(store, ledger)
        roots = {root.key: root for root in ledger.roots.values()}
        check(said.put.keys() <= roots.keys(), "what was acknowledged is lost")
        for id, root in roots.items():
            check(not root.pending, f"{id} is lost")
            check(id not in said.gone or root.deleted, f"{id} was cancelled, and fired")
            early = any(fired < root.due_ms for fired in root.fired_ms)
            check(not early or self.fell_ms > CLAMP_SLACK_MS, f"{id}, a level's, came early")
            if id not in said.touched and not root.level:
                named = any(id == other.replaces for other in roots.values())
                check(not root.deleted or named, f"{id} was deleted by nobody")
        for root in roots.values():
            if root.replaces is not None:
                check(roots[root.replaces].deleted, "both times of a reschedule hold")
        engine = store.core.engine
        check(store.count() == 0, "the count is wrong")
        check_cancelled(engine.cancelled)
        check(engine.cancelled.set.count == 0, "an entry stays in the cancelled set")
        check_near(engine.near)


def is_of_level(id: str) -> bool:
    """Whether an id is that of a delay level's message."""
    return bool(int(id[12:24], 16) & fmt.LEVEL_MARK)


@contextlib.contextmanager
def oracle(baton: Baton) -> Iterator[None]:
    """Have each copy looked at when it is made: nothing is fired before it is due."""
    put_stage = put_module._stage

    def stage_timer(world: Any, place: int, i: int, *others: Any) -> int:
        outcome = put_stage(world, place, i, *others)
        if outcome == put_module.FIRED:
            check(world.staged_due[i] <= baton.latest_ms, "fired early")
        return outcome

    put_module._stage = stage_timer
    try:
        yield
    finally:
        put_module._stage = put_stage


class Played(NamedTuple):
    """How much there was in a history."""

    boundaries: int
    reused: int  # segments that were used again


def play(plan: Plan, folder: Path) -> Played:
    """Play a plan; return how much there was. Raises what is wrong."""
    folder.mkdir(parents=True)
    player = Player(plan, folder)
    try:
        player.play()
        return Played(player.count, player.reused)
    finally:
        player.baton.kill()
        with contextlib.suppress(Exception):
            player.store.abandon()
        shutil.rmtree(folder, ignore_errors=True)
