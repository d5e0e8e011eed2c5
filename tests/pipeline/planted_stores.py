"""Stores that each fail one rule of distribution, or barely do not.

`PLANTED[rule](case, bad)` makes what the rule is to look at, and returns the limits to judge it by.
All are closed unless their rule is about open ones, and begin at a full minute.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import timerstore
from tests.rigs.patient import Patient
from tests.small_store import small
from tests.sparse_copy import copy_tree
from timerstore import Config, Consumer, ManualClock, Retry, pipeline
from timerstore.pipeline.tablefiles import finished_runs

START_MS = 1_800_000_000_000
CONFIG = small(
    1 << 20,
    20_000,
    52_000,
    roll_window_slots=8_000,
    wheel_slot_count=8_192,
    retention_ms=30 * 86_400_000,
)
FEW_SLOTS = replace(CONFIG, wheel_slot_count=128, roll_window_slots=6)
SECOND, MINUTE_MS = timedelta(seconds=1), 60_000


@dataclass
class Case:
    """Where the stores of one test lie, and how the last run is made."""

    folder: Path
    names: tuple[str, ...] = ("store",)
    """Of stores that are alike in all runs but the last one."""
    name: str = "store"
    options: dict[str, Any] = field(default_factory=dict)
    start_ms: int = START_MS

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def out(self) -> Path:
        return self.folder / "tables"

    @contextmanager
    def store(self, config: Config = CONFIG) -> Iterator[tuple[timerstore.TimerStore, ManualClock]]:
        clock = ManualClock(self.start_ms)
        with timerstore.open(self.path, config=config, clock=clock) as store:
            yield store, clock
            clock.advance(timedelta(0))  # what was put goes into the wheel

    def put(self, delays_s: Sequence[float], config: Config = CONFIG, **more: Any) -> None:
        """Make a store with a timer for each delay, in this order."""
        with self.store(config) as (store, _):
            delay_ms = [int(1_000 * each) for each in delays_s]
            store.put_many([b"x"] * len(delay_ms), delay_ms=delay_ms, **more)

    def plant(self, rule: str, name: str) -> dict[str, Any]:
        """Make the store of that name, bad or not; return how its last run is made."""
        self.name, self.options, self.start_ms = name, {}, START_MS
        limits = PLANTED[rule](self, name == "bad")
        return self.options | {"thresholds": limits}

    def run(self, run: str, now_ms: int) -> None:
        """Look at the store as it is, under each name, unless such a run was made."""
        if run not in finished_runs(self.out):
            stores = dict.fromkeys(self.names, str(self.path))
            pipeline.run(stores, self.out, run=run, now_ms=now_ms)

    def run_before(self, times: int = 3) -> None:
        """Run on the store as it is, on that many days, and throw it away."""
        for day in range(times):
            self.run(f"before-{day}", START_MS + day * 86_400_000)
        shutil.rmtree(self.path)
        self.start_ms = self.options["now_ms"] = START_MS + times * 86_400_000


Limits = dict[str, Any]
PLANTED: dict[str, Callable[[Case, bool], Limits]] = {}


def planted(rule: str) -> Callable[[Callable[[Case, bool], Limits]], Any]:
    def enter(plant: Callable[[Case, bool], Limits]) -> Any:
        PLANTED[rule] = plant
        return plant

    return enter


# --- load, skew


@planted("load_second")
def _(case: Case, bad: bool) -> Limits:
    """Ten times its length is needed for the second, or a timer more."""
    case.put([30.0] * (11 if bad else 10))
    return {"fire_rate_per_s": 1}


@planted("load_minute")
def _(case: Case, bad: bool) -> Limits:
    case.put([60 + i for i in range(60)] + [61] * bad)
    return {"fire_rate_per_s": 1}


@planted("load_hour")
def _(case: Case, bad: bool) -> Limits:
    """Eight tenths of 360 timers an hour, or one more."""
    case.put([600 + 10 * i for i in range(289 if bad else 288)])
    return {"fire_rate_per_s": 0.1}


@planted("load_bytes")
def _(case: Case, bad: bool) -> Limits:
    """Ten messages of some 2 KB in a second, on a machine that fires 2 KB a second."""
    with case.store() as (store, _):
        store.put_many([bytes(2_000)] * 10, delay_ms=[30_000] * 10)
    (size,) = set(timerstore.read(case.path, "messages", columns=["size"])["size"].to_pylist())
    return {"fire_bytes_per_s": size * (0.99 if bad else 1)}


@planted("skew_regular")
def _(case: Case, bad: bool) -> Limits:
    """In each hour a burst in one minute, of 21 or 20, and two in each of the other minutes."""
    hours = [3_600 * hour for hour in range(1, 26)]
    steady = [hour + 60 * minute + 30 for hour in hours for minute in range(60)]
    bursts = [hour + 30 for hour in hours for _ in range(19 if bad else 18)]
    case.put([*steady, *steady, *bursts])
    return {"skew_regular": {"warn": 10, "fail": 12.1, "least": 100}}


@planted("drift_baseline")
def _(case: Case, bad: bool) -> Limits:
    """A hundred in the baseline, then 200, or a timer more."""
    case.put([300 + i for i in range(100)])
    case.run_before(1)
    case.put([300 + i for i in range(201 if bad else 200)])
    limits = {"warn": 1.5, "fail": 2, "least": 10}
    return {"baseline": "before-0", "drift_baseline": limits}


@planted("age_stopped")
def _(case: Case, bad: bool) -> Limits:
    """Closed, and looked at an hour and a minute after its timer was due."""
    case.put([600])
    case.options["now_ms"] = START_MS + 600_000 + MINUTE_MS + 3_600_000 + (1 if bad else 0)
    return {"in_use": True, "age_stopped": {"warn": 1_800, "fail": 3_600}}


@planted("skew_neighbours")
def _(case: Case, bad: bool) -> Limits:
    """Four in each second around; deviations of 2: 104 lie 50 of them above."""
    around = [400 + i for i in range(-300, 301) if i for _ in range(4)]
    case.put([*around, *([400] * (105 if bad else 104))])
    return {"skew_neighbours": {"fail": 50, "least": 100}}


@planted("skew_gini")
def _(case: Case, bad: bool) -> Limits:
    """Nine minutes of one timer, one of k: 0.9 (k − 1) / (k + 9)."""
    k = 12 if bad else 11
    case.put([*(3_600 + 60 * i for i in range(1, 10)), *([4_205] * k)], topic="campaign")
    return {"skew_gini": {"warn": 0.3, "fail": 0.46, "least": 10}}


@planted("skew_heaviest")
def _(case: Case, bad: bool) -> Limits:
    """A hundred minutes, of which one has half of all, or one timer more."""
    singles = [3_600 + 60 * i for i in range(1, 100)]
    case.put([*singles, *([9_605] * (100 if bad else 99))], topic="campaign")
    return {"skew_heaviest": {"warn": 0.4, "fail": 0.5, "least": 100}}


# --- slots


@planted("slots_mapped")
def _(case: Case, bad: bool) -> Limits:
    """One timer of a thousand in the slot behind its own, which alone is plausible."""
    case.put([1_000, *([2_000] * (998 if bad else 999))])
    patient = Patient(case.path)
    unit = patient.chains(ahead=True)[0][0]
    slot = patient.slot_of(patient.units[unit])
    old = patient.slots[patient.index_of(slot)]
    fields = {name: int(old[name]) for name in ("first", "last", "count", "magic")}
    patient.set_unit(unit, delta_ms=int(patient.units[unit]["delta_ms"]) + 1_000)
    patient.set_slot(patient.index_of(slot + 1), time=slot + 1, **fields)
    patient.set_slot(patient.index_of(slot), time=0, first=0, last=0, count=0)
    return {}


@planted("slots_ring")
def _(case: Case, bad: bool) -> Limits:
    """A slot stands where another modulus would have it: n² / n / 63 by degree of freedom."""
    case.put([2_000] * (631 if bad else 630))
    patient = Patient(case.path)
    slot = patient.slot_of(patient.units[patient.chains(ahead=True)[0][0]])
    old = patient.slots[patient.index_of(slot)]
    fields = {name: int(old[name]) for name in old.dtype.names}
    patient.set_slot(slot % 1_000, **fields)
    patient.set_slot(patient.index_of(slot), time=0, first=0, last=0, count=0)
    return {}


@planted("chains_depth")
def _(case: Case, bad: bool) -> Limits:
    case.put([30] * (11 if bad else 10))
    return {"chains_depth": {"warn": 5, "fail": 10}}


@planted("chains_scatter")
def _(case: Case, bad: bool) -> Limits:
    """Messages of one second with 8 KB of others between them: a page for each, or two."""
    with case.store() as (store, _):
        for i in range(12):
            store.put(b"x", delay=300 * SECOND)
            store.put(bytes(8_000), delay=(400 + i) * SECOND)
        if bad:
            store.put_many([b"x"] * 30, delay_ms=[300_000] * 30)
    return {"chains_scatter": {"warn": 0.01, "fail": 12 / 256}}


@planted("chains_dead")
def _(case: Case, bad: bool) -> Limits:
    """Of ten timers four are cancelled, or three: 8 of 14 units fire nothing, or 6 of 13."""
    with case.store() as (store, _):
        ids = store.put_many([b"x"] * 10, delay_ms=[300_000] * 10)
        store.cancel_many(ids[: 4 if bad else 3])
    return {"chains_dead": {"warn": 0.4, "fail": 0.5, "least": 10}}


@planted("rolls_cost")
def _(case: Case, bad: bool) -> Limits:
    """A window of six slots, hops of five: one slot more is a hop more."""
    case.put([27 if bad else 26] * 10, config=FEW_SLOTS)
    return {"rolls_cost": {"warn": 0.5, "fail": 1.0, "least": 10}}


# --- drift


@planted("drift_due")
def _(case: Case, bad: bool) -> Limits:
    """Half within the hour before; now 83 of 100, or 82."""
    case.put([600] * 500 + [4_000] * 500)
    case.run_before()
    near = 830 if bad else 820
    case.put([600] * near + [4_000] * (1_000 - near))
    return {"drift_due": {"fail": 0.5}}


def _fired(case: Case, on_time: int, late: int, down_ms: int = 8_000) -> None:
    """Some fire when they are due, some seconds later, because nobody had the store open."""
    clock = ManualClock(case.start_ms)
    with timerstore.open(case.path, config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * on_time, delay_ms=[500] * on_time)
        store.put_many([b"x"] * late, delay_ms=[3_000] * late)
        clock.advance(SECOND)
    clock = ManualClock(case.start_ms + down_ms)
    with timerstore.open(case.path, config=CONFIG, clock=clock):
        clock.advance(SECOND)


@planted("drift_lateness")
def _(case: Case, bad: bool) -> Limits:
    _fired(case, 500, 500)
    case.run_before()
    on_time = 170 if bad else 180
    _fired(case, on_time, 1_000 - on_time)
    return {"drift_lateness": {"fail": 0.5}}


@planted("drift_load")
def _(case: Case, bad: bool) -> Limits:
    """Slots of one, and of two: half of each before."""
    case.put([*range(100, 600), *range(1_000, 1_500), *range(1_000, 1_500)])
    case.run_before()
    single = 830 if bad else 820
    doubled = range(2_000, 3_000 - single)
    case.put([*range(100, 100 + single), *doubled, *doubled])
    return {"drift_load": {"fail": 0.5}}


@planted("drift_trend")
def _(case: Case, bad: bool) -> Limits:
    """A hundred timers four weeks ago, then 200, or a timer more."""
    for day in range(3):
        case.start_ms = START_MS + day * 86_400_000
        case.put([300 + i for i in range(100)])
        case.run(f"before-{day}", case.start_ms)
        shutil.rmtree(case.path)
    case.start_ms = case.options["now_ms"] = START_MS + 28 * 86_400_000
    case.put([300 + i for i in range(201 if bad else 200)])
    return {"drift_trend": {"warn": 1.5, "fail": 2, "least": 10}}


@planted("late_fired")
def _(case: Case, bad: bool) -> Limits:
    """Two of a hundred are five seconds late, or six."""
    _fired(case, 98, 2, down_ms=8_000 + 1_000 * bad)
    return {"late_fired": {"warn": 1, "fail": 5}}


@planted("drift_pending")
def _(case: Case, bad: bool) -> Limits:
    case.put([300 + i for i in range(100)])
    case.run_before()
    case.put([300 + i for i in range(201 if bad else 200)])
    return {"drift_pending": {"warn": 1.5, "fail": 2, "least": 10}}


# --- age


@planted("age_overdue")
def _(case: Case, bad: bool) -> Limits:
    """A copy of a store that was killed, looked at an hour and a minute after its timer was due."""
    clock = ManualClock(START_MS)
    live = case.folder / "live"
    with timerstore.open(live, config=CONFIG, clock=clock) as store:
        store.put(b"x", delay=600 * SECOND)
        store.flush()
        copy_tree(live, case.path)
    case.options["now_ms"] = START_MS + 600_000 + MINUTE_MS + 3_600_000 + (1 if bad else 0)
    return {}


@planted("age_unread")
def _(case: Case, bad: bool) -> Limits:
    """One of two messages is read, and a day passes."""
    with case.store() as (store, clock):
        store.put_many([b"x"] * 2, delay_ms=[1_000, 2_000])
        clock.advance(2 * SECOND)
        store.pull("default", max_count=1, timeout=0).ack()
        clock.advance(86_400 * SECOND + (SECOND if bad else 0 * SECOND))
    return {}


@planted("age_dead")
def _(case: Case, bad: bool) -> Limits:
    with case.store() as (store, _):
        consumer = Consumer(store, "g", max_attempts=0)
        consumer.subscribe("t", lambda _: Retry(delay_level=-1))
        for _ in range(3 if bad else 2):
            store.put(b"x", topic="t")
        consumer.step()
        store.retry_dead_letters("g", ids=[store.dead_letters("g")[1].id])
    return {"age_dead": {"fail": 1}}
