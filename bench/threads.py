"""What each thread of a steady store costs, beside its budget.

Processor time is read from /proc/self/task for each thread by its name, and divided by the timers
that it moved between two readings of a store that is putting, firing and pulling all the while.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import lateness
import machine
import numpy as np
import ours
import report

import timerstore
from timerstore import Config, ManualClock, Stats, TimerStore

FILL_BEGIN = "<!-- threads: begin -->"
FILL_END = "<!-- threads: end -->"
SERVICES = ("enqueue-get", "enqueue-put", "dequeue-get", "dequeue-put", "deliver-levels")
TOPIC = "steady"
AHEAD_COUNT = 500_000
"""Timers that are put and not pulled yet: if the services fall behind, the putter waits."""


@dataclass(frozen=True)
class Sizes:
    """How much of each thing is done."""

    rounds: int
    steady_s: float
    lateness_s: float
    lonely: int
    idle_s: float
    overdue: int


FULL = Sizes(rounds=5, steady_s=6, lateness_s=15, lonely=300, idle_s=20, overdue=2_300_000)
QUICK = Sizes(rounds=3, steady_s=2, lateness_s=4, lonely=100, idle_s=5, overdue=300_000)


@dataclass(frozen=True)
class Cost:
    """Nanoseconds of processor time a timer."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """Both together."""
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
def _store(folder: Path) -> Iterator[TimerStore]:
    """Open a store of its own, and remove it."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as path,
        ours.open_store(Path(path) / "store", "process") as store,
    ):
        yield store


def steady(folder: Path, sizes: Sizes, warm_bytes: int) -> list[Steady]:
    """Play rounds of a steady store; the first one, which warms, is left out."""
    rounds = []
    for _ in range(sizes.rounds + 1):
        machine.warm_memory(warm_bytes)
        with _store(folder) as store, Feeding(store) as feeding:
            time.sleep(1)
            first = feeding.read()
            time.sleep(sizes.steady_s)
            rounds.append(between(first, feeding.read()))
    return rounds[1:]


def _median_cost(costs: list[Cost]) -> Cost:
    """Return the medians of both parts."""
    user, system = ([getattr(cost, part) for cost in costs] for part in ("user", "system"))
    return Cost(statistics.median(user), statistics.median(system))


def steady_rows(rounds: list[Steady]) -> list[report.Row]:
    """Return a row for each thread, for the services together, and for the whole."""
    rows = []
    for name, threads, reach, stretch in (
        ("putter", ("putter",), 110, 90),
        ("enqueue-get", SERVICES[:1], None, None),
        ("enqueue-put", SERVICES[1:2], None, None),
        ("enqueue-get and enqueue-put", SERVICES[:2], 90, 60),
        ("dequeue-get", SERVICES[2:3], 50, 40),
        ("dequeue-put", SERVICES[3:4], 190, 150),
        ("deliver-levels", SERVICES[4:], None, None),
        ("all services", SERVICES, 330, 250),
        ("puller", ("puller",), 80, 50),
        ("flush", ("flush",), 60, 40),
    ):
        costs = [
            Cost(
                sum(each.costs[thread].user for thread in threads),
                sum(each.costs[thread].system for thread in threads),
            )
            for each in rounds
        ]
        cost = _median_cost(costs)
        measured = f"{cost} ns"
        if threads[0] in SERVICES:
            busy = statistics.median(sum(r.busy[thread] for thread in threads) for r in rounds)
            measured += f" (busy {busy:.0f})"
        rows.append(
            report.Row(
                name,
                "" if reach is None else f"≤ {reach} ns",
                "" if stretch is None else f"≤ {stretch} ns",
                measured,
                None if reach is None else cost.total <= reach,
                {"rounds": [asdict(each) for each in costs]},
            )
        )
    rates = [each.per_second for each in rounds]
    batch_count = statistics.median(each.batch_count for each in rounds)
    measured = f"{statistics.median(rates) / 1e6:.2f} M/s, {batch_count:.0f} a pull"
    rows.append(report.Row("whole lives", "", "", measured, None, {"rounds": rates}))
    faults = [each.faults for each in rounds]
    median, measured = statistics.median(faults), f"{statistics.median(faults):.3f}"
    figures = {"rounds": faults}
    rows.append(report.Row("page faults a timer", "≤ 0.01", "", measured, median <= 0.01, figures))
    return rows


# --- lateness


def late_rows(folder: Path, sizes: Sizes) -> list[report.Row]:
    """Return how late timers are beside a busy Python thread, into the log and at `pull`."""
    rows = []
    for at_pull, what in ((False, "into the log"), (True, "when `pull` returns")):
        with _store(folder) as store:
            ours.whole_life(store, ours.make_bodies(1_000))  # kernels are compiled
            late = lateness.measure(
                store,
                per_second=50_000,
                duration_s=sizes.lateness_s,
                busy=True,
                at_pull=at_pull,
            )
        measured = f"median {late.median:.2f}, p99 {late.p99:.2f}, max {late.maximum:.1f} ms"
        name = f"lateness {what}, 50,000 a second, beside a busy Python thread"
        row = report.Row(name, "p99 ≤ 1 ms", "", measured, late.p99 <= 1, asdict(late))
        rows.append(row)
    return rows


def lonely_row(folder: Path, sizes: Sizes) -> report.Row:
    """Return how late a single timer is handed out, put 5 ms ahead into an idle store."""
    late_ms = []
    with _store(folder) as store:
        for turn in range(sizes.lonely + 10):
            at_ms = time.time_ns() // 1_000_000 + 5
            store.put(b"lonely", topic="lonely", at_ms=at_ms)
            batch = store.pull("lonely", timeout=10)
            if turn >= 10:
                late_ms.append(time.time() * 1_000 - at_ms)
            assert len(batch) == 1
            batch.ack()
            time.sleep(0.005)
    median, p99 = np.percentile(late_ms, [50, 99])
    return report.Row(
        "a lonely timer, put 5 ms ahead into an idle store, at `pull`",
        "median ≤ 0.3 ms",
        "",
        f"median {median:.3f}, p99 {p99:.2f}, max {max(late_ms):.2f} ms",
        bool(median <= 0.3),
        {"late_ms": late_ms},
    )


def idle_row(folder: Path, sizes: Sizes) -> report.Row:
    """Return what an idle store costs."""
    with _store(folder) as store:
        ours.whole_life(store, ours.make_bodies(10_000))
        time.sleep(3)
        first, first_s = machine.thread_times(), time.perf_counter()
        time.sleep(sizes.idle_s)
        last, elapsed_s = machine.thread_times(), time.perf_counter() - first_s
    wakes = {name: (last[name] - first[name]).sleeps / elapsed_s for name in last if name in first}
    ns = sum((last[name] - first[name]).ns for name in last if name in first)
    percent = 100 * ns / 1e9 / elapsed_s
    most = ", ".join(
        f"{name} {wakes[name]:.1f}" for name in sorted(wakes, key=lambda each: -wakes[each])[:3]
    )
    return report.Row(
        "an idle store: wake-ups a second of all threads, share of a core",
        "≤ 20, ≤ 0.3 %",
        "",
        f"{sum(wakes.values()):.1f} ({most}), {percent:.2f} %",
        sum(wakes.values()) <= 20 and percent <= 0.3,
        {"wakes": wakes, "percent": percent},
    )


# --- after a stop


def overdue_row(folder: Path, sizes: Sizes) -> report.Row:
    """Return how soon one slot of overdue timers begins to fire, and what falls due meanwhile."""
    due_ms = int(time.time()) * 1_000 - 60_000
    with tempfile.TemporaryDirectory(dir=folder) as path:
        where = Path(path) / "store"
        config = Config(durability="process")
        clock = ManualClock(due_ms - 3_600_000)
        with timerstore.open(where, config=config, clock=clock) as store:
            for bodies in ours.batches(ours.make_bodies(sizes.overdue)):
                at_ms = due_ms + np.random.randint(0, 1_000, len(bodies))
                store.put_many(bodies, topic="overdue", at_ms=at_ms)
        begin_s = time.perf_counter()
        with ours.open_store(where, "process") as store:
            opened_s = time.perf_counter()
            late_ms: list[float] = []
            done = threading.Event()
            prober = threading.Thread(target=_probe, args=(store, late_ms, done))
            prober.start()
            first_s, got = 0.0, 0
            while got < sizes.overdue:
                batch = store.pull("overdue", max_count=ours.BATCH_COUNT, timeout=60)
                first_s = first_s or time.perf_counter()
                assert len(batch), f"only {got} of {sizes.overdue} came"
                batch.ack()
                got += len(batch)
            all_s = time.perf_counter() - opened_s
            done.set()
            prober.join()
    wait_s, open_s = first_s - opened_s, opened_s - begin_s
    worst_ms = max(late_ms)
    return report.Row(
        f"after a stop, {sizes.overdue:,} overdue timers in one slot: the first one; what falls "
        "due meanwhile",
        "≤ 0.5 s; ≤ 50 ms late",
        "",
        f"{wait_s:.2f} s after opening ({open_s:.2f} s), all after {all_s:.1f}; "
        f"{worst_ms:.0f} ms late at most",
        wait_s <= 0.5 and worst_ms <= 50,
        {"first_s": wait_s, "open_s": open_s, "all_s": all_s, "late_ms": late_ms},
    )


def _probe(store: TimerStore, late_ms: list[float], done: threading.Event) -> None:
    """Put a timer that is due soon, wait for it, and note how late it was fired; until `done`."""
    while not late_ms or not done.is_set():
        store.put(b"meanwhile", topic="meanwhile", at_ms=time.time_ns() // 1_000_000 + 20)
        batch = store.pull("meanwhile", timeout=60)
        late_ms.extend((batch.fired_ms - batch.due_ms).tolist())
        batch.ack()


# --- all of it

PARTS = ("steady", "late", "lonely", "idle", "overdue")


def main() -> None:
    """Measure the parts that were asked for."""
    parser = report.new_parser(
        "./run bench --threads", __doc__, "small sizes: a minute", "--parts", PARTS
    )
    report.add_warm(parser)
    arguments = parser.parse_args()
    parts = report.chosen(parser, arguments.parts, PARTS)
    report.check_files(parser, arguments, (FILL_BEGIN, FILL_END))
    report.check_whole(parser, arguments, parts, PARTS)
    sizes = report.sizes_of(arguments, FULL, QUICK)
    header = machine.headline()
    rows: list[report.Row] = []
    with machine.scratch_folder(arguments.folder) as folder:
        measure: dict[str, Callable[[], list[report.Row]]] = {
            "steady": lambda: steady_rows(
                steady(folder, sizes, int(arguments.warm_gib * (1 << 30)))
            ),
            "late": lambda: late_rows(folder, sizes),
            "lonely": lambda: [lonely_row(folder, sizes)],
            "idle": lambda: [idle_row(folder, sizes)],
            "overdue": lambda: [overdue_row(folder, sizes)],
        }
        for part in parts:
            rows += measure[part]()
    figures = {"sizes": asdict(sizes), "rows": [asdict(row) for row in rows]}
    report.deliver(arguments, header, rows, figures, (FILL_BEGIN, FILL_END))


if __name__ == "__main__":
    main()
