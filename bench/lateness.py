"""How late timers are under a steady load, into the log or at the moment `pull` returns."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ours
from results import Row
from sizes import Ground

import timerstore
from timerstore import Config, TimerStore, Tuning

TOPIC = "late"
PERIOD_S = 0.02
AHEAD_MS = 500
OVER_MS = 1_000
PER_SECOND = 50_000
FAR_COUNT = 100_000
"""Far timers, some 33 MB: with a factor of 1 and no slack the next pass is always worth it."""
_COPYING: dict[str, Any] = {
    # Filled each half second, so that there is always one to pass over.
    "commitlog_segment_bytes": 16 << 20,
    "cleaning_factor": 1,
    "cleaning_slack_bytes": 0,
}
_WARM_S = 3.0
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Lateness:
    """Quantiles in milliseconds."""

    median: float
    p99: float
    maximum: float
    count: int

    def __str__(self) -> str:
        return f"median {self.median:.2f}, p99 {self.p99:.2f}, max {self.maximum:.1f} ms"


def quantiles(parts: list[np.ndarray]) -> Lateness:
    late = np.concatenate(parts)
    median, p99 = np.percentile(late, [50, 99])
    return Lateness(float(median), float(p99), float(late.max()), len(late))


def measure(store: TimerStore, duration_s: float, *, at_pull: bool, busy: bool = False) -> Lateness:
    """Put PER_SECOND timers a second that fall due at random milliseconds, and pull them.

    `busy`: beside it a thread of pure Python never sleeps. `at_pull`: late is what the wall clock
    says when `pull` returns, else what the log says. The first second is left out.
    """
    stop = threading.Event()
    bodies = [b"%0100d" % i for i in range(round(PER_SECOND * PERIOD_S))]

    def put() -> None:
        next_s = time.monotonic()
        while not stop.is_set():
            delay_ms = np.random.randint(AHEAD_MS, AHEAD_MS + OVER_MS, len(bodies))
            store.put_many(bodies, topic=TOPIC, delay_ms=delay_ms)
            next_s += PERIOD_S
            time.sleep(max(0.0, next_s - time.monotonic()))

    def spin() -> None:
        count = 0
        while not stop.is_set():
            for _ in range(10_000):
                count += 1

    threads = [threading.Thread(target=each) for each in ((put, spin) if busy else (put,))]
    start_ms = time.time() * 1_000 + AHEAD_MS + 1_000
    end_s = time.monotonic() + duration_s + AHEAD_MS / 1_000 + 1
    for thread in threads:
        thread.start()
    parts: list[np.ndarray] = []
    while time.monotonic() < end_s:
        batch = store.pull(TOPIC, max_count=16_384, timeout=0.1)
        now_ms = time.time() * 1_000
        batch.ack()
        late = (now_ms if at_pull else batch.fired_ms) - batch.due_ms
        parts.append(late[batch.due_ms >= start_ms])
    stop.set()
    for thread in threads:
        thread.join()
    return quantiles(parts)


def while_copying(
    path: Path, duration_s: float, *, cleaning: bool, at_pull: bool
) -> tuple[Lateness, float]:
    """Measure beside far timers, which with `cleaning` are copied all the while.

    Returns also the bytes that cleaning copied a second.
    """
    config = Config(durability="process", tuning=Tuning(cleaning=cleaning, **_COPYING))
    with timerstore.open(path / "store", config=config) as store:
        for part in ours.batches(ours.make_bodies(FAR_COUNT)):
            store.put_many(part, delay_ms=np.random.randint(_DAY_MS, 30 * _DAY_MS, len(part)))
        ours.settle(store)
        measure(store, _WARM_S, at_pull=at_pull)
        before, start_s = store.stats().cleaning.copied_bytes, time.perf_counter()
        late = measure(store, duration_s, at_pull=at_pull)
        copied = store.stats().cleaning.copied_bytes - before
        return late, copied / (time.perf_counter() - start_s)


# --- parts

WHERE = {False: "into the log", True: "when `pull` returns"}
_WHAT = "lateness {}, 50,000 a second"


def row(folder: Path, seconds: float, *, at_pull: bool, busy: bool, p99_ms: float) -> Row:
    """Measure in a store of its own."""
    with ours.open_store(folder / "store", "process") as store:
        ours.whole_life(store, ours.make_bodies(1_000))  # kernels are compiled
        late = measure(store, seconds, at_pull=at_pull, busy=busy)
    what = _WHAT.format(WHERE[at_pull]) + (", beside a busy Python thread" if busy else "")
    reached = late.median <= 1 and late.p99 <= p99_ms
    reach = f"median ≤ 1 ms, p99 ≤ {p99_ms:g} ms"
    return Row(what, reach, str(late), reached, asdict(late))


def late_log(ground: Ground) -> list[Row]:
    ground.warm()
    with ground.path() as path:
        seconds = ground.sizes.lateness_s
        return [row(path, seconds, at_pull=False, busy=True, p99_ms=2)]


def late_pull(ground: Ground) -> list[Row]:
    ground.warm()
    with ground.path() as path:
        seconds = ground.sizes.lateness_s
        return [row(path, seconds, at_pull=True, busy=False, p99_ms=5)]


def late_clean(ground: Ground) -> list[Row]:
    """Lateness while cleaning copies all the while, beside the same without cleaning."""
    rows = []
    for at_pull, where in WHERE.items():
        played = dict[bool, list[tuple[Lateness, float]]]({True: [], False: []})
        for _ in range(max(1, ground.sizes.rounds // 2)):
            for cleaning, rounds in played.items():
                ground.warm()
                with ground.path() as path:
                    seconds = ground.sizes.lateness_s
                    rounds.append(while_copying(path, seconds, cleaning=cleaning, at_pull=at_pull))
        late = {name: [each for each, _ in rounds] for name, rounds in played.items()}
        medians = {name: _median(rounds) for name, rounds in late.items()}
        copied = statistics.median(each for _, each in played[True])
        told = f"{medians[True]}, copying {copied / 1e6:.1f} MB/s; without {medians[False]}"
        reached = copied > 0 and medians[True].p99 <= medians[False].p99 + 1
        what = _WHAT.format(where) + ", while cleaning copies all the while"
        figures = {str(name): [asdict(each) for each in rounds] for name, rounds in late.items()}
        rows.append(Row(what, "p99 as without, to 1 ms", told, reached, figures=figures))
    return rows


def _median(rounds: list[Lateness]) -> Lateness:
    median, p99 = (
        statistics.median(getattr(r, name) for r in rounds) for name in ("median", "p99")
    )
    return Lateness(median, p99, max(r.maximum for r in rounds), sum(r.count for r in rounds))
