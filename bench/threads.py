"""What each thread of a steady store costs, beside its budget.

Processor time is read from /proc/self/task for each thread by its name, and divided by the timers
that it moved between two readings of a store that is putting, firing and pulling all the while.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import harness
import machine
import numpy as np
import ours
from harness import sized
from peers.timers import now_ms
from results import Row

import timerstore
from timerstore import Config, ManualClock, Stats, TimerStore

SERVICES = ("enqueue-get", "enqueue-put", "dequeue-get", "dequeue-put", "deliver-levels")
TOPIC = "steady"
AHEAD_COUNT = 500_000
"""Timers that are put and not pulled yet: if the services fall behind, the putter waits."""


@dataclass(frozen=True)
class Sizes:
    """How much of each thing is done."""

    rounds: int = sized(5, 3)
    steady_s: float = sized(6, 2)
    overdue: int = sized(2_300_000, 300_000)


Ground = harness.Ground[Sizes]


@dataclass(frozen=True)
class Cost:
    """Nanoseconds of processor time a timer."""

    user: float = 0
    system: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.user + other.user, self.system + other.system)

    @property
    def total(self) -> float:
        return self.user + self.system

    def __str__(self) -> str:
        return f"{self.user:.0f} + {self.system:.0f}"


# --- the steady store


@dataclass(frozen=True)
class Reading:
    """What threads, and counters, said at one moment."""

    at_s: float
    open_s: float
    threads: dict[str, machine.ThreadTime]
    stats: Stats
    put: int
    pulled: int
    pulls: int
    faults: int


@dataclass(frozen=True)
class Steady:
    """One round of a steady store."""

    per_second: float
    batch_count: float
    costs: dict[str, Cost]
    busy: dict[str, float]
    faults: float
    """Page faults a timer, all threads together."""


class Feeding:
    """A thread that puts lists without end, and one that pulls and acknowledges."""

    def __init__(self, store: TimerStore) -> None:
        self._store, self._stop = store, threading.Event()
        self.put = self.pulled = self.pulls = 0
        self._lists = ours.batches(ours.make_bodies(8 * ours.BATCH_COUNT))
        random = np.random.default_rng(1)
        self._delays = [random.integers(1, ours.SPREAD_MS, ours.BATCH_COUNT) for _ in range(64)]
        self._threads = [
            threading.Thread(target=self._run, args=("putter", self._putting)),
            threading.Thread(target=self._run, args=("puller", self._pulling)),
        ]

    def __enter__(self) -> Feeding:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop; what is under way is pulled."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def read(self) -> Reading:
        """Read all clocks and counters."""
        return Reading(
            time.perf_counter(),
            time.monotonic() - self._store.core.opened_s,
            machine.thread_times(),
            self._store.stats(),
            self.put,
            self.pulled,
            self.pulls,
            machine.fault_count(),
        )

    def _run(self, name: str, body: Callable[[], None]) -> None:
        machine.name_thread(name)
        body()

    def _putting(self) -> None:
        turn = 0
        while not self._stop.is_set():
            if self.put - self.pulled > AHEAD_COUNT:
                time.sleep(0.001)
                continue
            bodies = self._lists[turn % len(self._lists)]
            delay_ms = self._delays[turn % len(self._delays)]
            self._store.put_many(bodies, topic=TOPIC, delay_ms=delay_ms)
            self.put += len(bodies)
            turn += 1

    def _pulling(self) -> None:
        while not self._stop.is_set() or self.pulled < self.put:
            batch = self._store.pull(TOPIC, max_count=ours.BATCH_COUNT, timeout=0.2)
            assert len(batch.bodies) == len(batch)
            batch.ack()
            self.pulled += len(batch)
            self.pulls += 1


def between(first: Reading, last: Reading) -> Steady:
    """Return what a timer cost between two readings."""
    linked = last.stats.linked_count - first.stats.linked_count
    fired = last.stats.fired_count - first.stats.fired_count
    pulled = last.pulled - first.pulled
    moved = dict.fromkeys(SERVICES[:2], linked) | dict.fromkeys([*SERVICES[2:], "flush"], fired)
    moved |= {"putter": last.put - first.put, "puller": pulled}
    costs = {
        name: Cost(*((last.threads[name] - first.threads[name]).split_ns(max(1, count))))
        for name, count in moved.items()
        if name in first.threads and name in last.threads
    }
    elapsed_s = last.at_s - first.at_s
    busy = {}
    for before, after in zip(first.stats.services, last.stats.services, strict=True):
        busy_s = after.busy_share * last.open_s - before.busy_share * first.open_s
        busy[after.name] = busy_s * 1e9 / max(1, moved[after.name])
    faults = (last.faults - first.faults) / max(1, pulled)
    return Steady(
        pulled / elapsed_s, pulled / max(1, last.pulls - first.pulls), costs, busy, faults
    )


@contextmanager
def _store(ground: Ground) -> Iterator[TimerStore]:
    with ground.path() as path, ours.open_store(path / "store", "process") as store:
        yield store


def steady(ground: Ground) -> list[Row]:
    """Play rounds of a steady store; the first one, which warms, is left out."""
    rounds = []
    for _ in range(ground.sizes.rounds + 1):
        ground.warm()
        with _store(ground) as store, Feeding(store) as feeding:
            time.sleep(1)
            first = feeding.read()
            time.sleep(ground.sizes.steady_s)
            rounds.append(between(first, feeding.read()))
    return steady_rows(rounds[1:])


def _median_cost(costs: list[Cost]) -> Cost:
    user, system = ([getattr(cost, part) for cost in costs] for part in ("user", "system"))
    return Cost(statistics.median(user), statistics.median(system))


def steady_rows(rounds: list[Steady]) -> list[Row]:
    """Return a row for each thread, for the services together, and for the whole."""
    rows = []
    for name, threads, reach in (
        ("putter", ("putter",), 110),
        ("enqueue-get", SERVICES[:1], 0),
        ("enqueue-put", SERVICES[1:2], 0),
        ("enqueue-get and enqueue-put", SERVICES[:2], 90),
        ("dequeue-get", SERVICES[2:3], 50),
        ("dequeue-put", SERVICES[3:4], 190),
        ("deliver-levels", SERVICES[4:], 0),
        ("all services", SERVICES, 330),
        ("puller", ("puller",), 80),
        ("flush", ("flush",), 60),
    ):
        costs = [sum((each.costs[thread] for thread in threads), Cost()) for each in rounds]
        cost = _median_cost(costs)
        told = f"{cost} ns"
        if threads[0] in SERVICES:
            busy = statistics.median(sum(r.busy[thread] for thread in threads) for r in rounds)
            told += f" (busy {busy:.0f})"
        reached = cost.total <= reach if reach else None
        figures = [asdict(each) for each in costs]
        rows.append(Row(name, f"≤ {reach} ns" if reach else "", told, reached, figures))
    rates, faults = [each.per_second for each in rounds], [each.faults for each in rounds]
    batch_count = statistics.median(each.batch_count for each in rounds)
    told = f"{statistics.median(rates) / 1e6:.2f} M/s, {batch_count:.0f} a pull"
    rows.append(Row("whole lives", "", told, figures=rates))
    most = statistics.median(faults)
    rows.append(Row("page faults a timer", "≤ 0.01", f"{most:.3f}", most <= 0.01, figures=faults))
    return rows


# --- after a stop


def overdue(ground: Ground) -> list[Row]:
    """Return how soon one slot of overdue timers begins to fire, and what falls due meanwhile."""
    count, due_ms = ground.sizes.overdue, int(time.time()) * 1_000 - 60_000
    with ground.path() as path:
        config, clock = Config(durability="process"), ManualClock(due_ms - 3_600_000)
        with timerstore.open(path / "store", config=config, clock=clock) as store:
            for bodies in ours.batches(ours.make_bodies(count)):
                at_ms = due_ms + np.random.randint(0, 1_000, len(bodies))
                store.put_many(bodies, topic="overdue", at_ms=at_ms)
        begin_s = time.perf_counter()
        with ours.open_store(path / "store", "process") as store:
            opened_s = time.perf_counter()
            late_ms: list[float] = []
            done = threading.Event()
            prober = threading.Thread(target=_probe, args=(store, late_ms, done))
            prober.start()
            first_s, got = 0.0, 0
            while got < count:
                batch = store.pull("overdue", max_count=ours.BATCH_COUNT, timeout=60)
                first_s = first_s or time.perf_counter()
                assert len(batch), f"only {got} of {count} came"
                batch.ack()
                got += len(batch)
            all_s = time.perf_counter() - opened_s
            done.set()
            prober.join()
    wait_s, worst_ms = first_s - opened_s, max(late_ms)
    told = f"{wait_s:.2f} s after opening ({opened_s - begin_s:.2f} s), all after {all_s:.1f}; "
    told += f"{worst_ms:.0f} ms late at most"
    what = f"after a stop, {count:,} overdue timers in one slot: the first one; what falls due "
    reached = wait_s <= 0.5 and worst_ms <= 50
    return [Row(what + "meanwhile", "≤ 0.5 s; ≤ 50 ms late", told, reached, figures=late_ms)]


def _probe(store: TimerStore, late_ms: list[float], done: threading.Event) -> None:
    """Put a timer that is due soon, wait for it, and note how late it was fired; until `done`."""
    while not late_ms or not done.is_set():
        store.put(b"meanwhile", topic="meanwhile", at_ms=now_ms() + 20)
        batch = store.pull("meanwhile", timeout=60)
        late_ms.extend((batch.fired_ms - batch.due_ms).tolist())
        batch.ack()


PARTS = {each.__name__: each for each in (steady, overdue)}

if __name__ == "__main__":
    harness.main("--threads", __doc__, Sizes, PARTS)
