"""What a store takes of memory, disk and time, and how late jobs begin, row by row.

With `--json FILE` each row is kept as soon as it is measured, beside those that the file has from
other runs; `--fill` then puts all of them into a page. With `--rows ''` it measures nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import machine
import numpy as np
import ours
from harness import sized
from peers.queues import QUEUES, play
from peers.timers import MissingError, now_ms
from results import Row, short

import timerstore
from timerstore import Config, ManualClock, TimerStore

SOON_MS = 200
PUT_PER_SECOND = 200_000
DISK_BYTES = 650_000_000


@dataclass(frozen=True)
class Sizes:
    """How much of each thing is done: in full, and with `--quick`."""

    far: int = sized(10_000, 1_000)
    """Timers due within 30 days, which stay while others come and go."""
    short: int = sized(3_000_000, 1_000_000)
    """Timers due within 200 ms."""
    pending: int = sized(10_000_000, 1_000_000)
    first: int = sized(3, 1)
    """How often a first timer is played."""
    overdue: int = sized(2_300_000, 300_000)
    jobs: int = sized(10_000, 2_000)
    jobs_ms: int = sized(40_000, 8_000)
    """The time over which jobs fall due whose lateness is measured."""


Ground = harness.Ground[Sizes]


def disk(ground: Ground) -> list[Row]:
    """Disk at most while timers are put, fire and are consumed, beside others that stay."""
    s, random, most_bytes, ended = ground.sizes, np.random.default_rng(1), 0, threading.Event()
    config = Config(durability="process", retention_ms=1)
    with ground.path() as path, timerstore.open(path / "store", config=config) as store:
        far_ms = random.integers(2 * 60_000, 30 * 86_400_000, s.far)
        store.put_many(ours.make_bodies(s.far), topic="far", delay_ms=far_ms)

        def put() -> None:
            for at in range(0, s.short, ours.BATCH_COUNT):
                part = ours.make_bodies(min(ours.BATCH_COUNT, s.short - at))
                store.put_many(part, topic="soon", delay_ms=random.integers(1, SOON_MS, len(part)))
                time.sleep(max(0, start_s + at / PUT_PER_SECOND - time.perf_counter()))

        def look() -> None:
            nonlocal most_bytes
            while not ended.wait(0.05):
                most_bytes = max(most_bytes, machine.disk_bytes(path))

        start_s = time.perf_counter()
        threads = [threading.Thread(target=each) for each in (put, look)]
        for thread in threads:
            thread.start()
        ours.drain(store, "soon", s.short)
        per_second = s.short / (time.perf_counter() - start_s)
        ended.set()
        for thread in threads:
            thread.join()
    what = f"disk: {short(s.short)} timers due within {SOON_MS} ms, {short(PUT_PER_SECOND)} a "
    what += f"second, beside {short(s.far)} due within 30 days"
    told = f"{most_bytes / 1e6:,.1f} MB at most, with {short(per_second)} fired a second"
    reach = f"≤ {DISK_BYTES / 1e6:,.0f} MB at any time"
    return [Row(what, reach, told, most_bytes <= DISK_BYTES, figures=most_bytes)]


def pending(ground: Ground) -> list[Row]:
    """Memory and opening time of many pending timers."""
    large = ground.sizes.pending
    small = large // 10
    with ground.path() as path:
        first = _child("pending", str(path / "small"), str(small))
        second = _child("pending", str(path / "large"), str(large))
        more = (second["private_bytes"] - first["private_bytes"]) / 1e6
        opened = [_child("open", str(path / "large")) for _ in range(3)]
    assert all(one["count"] == large for one in opened)
    open_s = statistics.median(one["open_s"] for one in opened)
    what = f"private memory, {short(large)} pending over {short(small)}"
    told = f"{more:+.1f} MB ({second['private_bytes'] / 1e6:.0f} MB in all, "
    told += f"{second['disk_bytes'] / 1e9:.1f} GB of files)"
    memory = Row(what, "+ ≤ 20 MB", told, more <= 20, figures=[first, second])
    what = f"opening {short(large)} pending timers, closed cleanly"
    told = f"{open_s:.2f} s (imports {opened[-1]['import_s']:.2f} s)"
    return [memory, Row(what, "≤ 1 s", told, open_s <= 1, figures=opened)]


def first(ground: Ground) -> list[Row]:
    """Time the first timer of a new process."""
    rows, rounds = [], range(ground.sizes.first)
    with ground.path() as path:
        cold, *runs = (
            _child("first", str(path / str(number)), cache=path / "cache")
            for number in (-1, *rounds)
        )
    warm = sorted(runs, key=lambda each: each["total_s"])[len(runs) // 2]
    for name, reach_s, of in (("kernels cached", 1.5, warm), ("cold cache", 12, cold)):
        parts = ", ".join(f"{k[:-2]} {v:.2f}" for k, v in of.items() if k != "total_s")
        told, reached = f"{of['total_s']:.2f} s ({parts})", of["total_s"] <= reach_s
        what = f"import, open, first put, fire, close, {name}"
        rows.append(Row(what, f"≤ {reach_s} s", told, reached, of))
    open_s = statistics.median(each["import_s"] + each["open_s"] for each in runs)
    what, told = "import and open, kernels cached", f"{open_s:.2f} s"
    return [*rows, Row(what, "≤ 0.4 s", told, open_s <= 0.4, figures=runs)]


def _child(*arguments: str, cache: Path | None = None) -> dict[str, Any]:
    more = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, str(Path(__file__).with_name("child.py")), *arguments]
    done = subprocess.run(
        command, env=os.environ | more, stdout=subprocess.PIPE, check=True, text=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def jobs(ground: Ground) -> list[Row]:
    """Lateness of delayed jobs, beside huey and APScheduler."""
    s, played, told = ground.sizes, dict[str, list[float]](), list[str]()
    for name in QUEUES:
        with ground.path() as path:
            try:
                # So long that all have put theirs before the first one is due.
                late_ms = play(name, path, s.jobs, delay_ms=3_000 + 4 * s.jobs, over_ms=s.jobs_ms)
            except MissingError as e:
                print(f"{name} is not played: {e}", flush=True)
                continue
        played[name] = np.percentile(late_ms, [50, 99]).tolist()
        told.append(f"{name} {played[name][0]:.1f} / {played[name][1]:.1f} ms")
    rate = round(1_000 * s.jobs / s.jobs_ms)
    what = f"lateness in the handler, median / p99, {rate} jobs a second"
    return [Row(what, "", "; ".join(told), figures=played)]


def overdue(ground: Ground) -> list[Row]:
    """Tell how soon one slot of overdue timers fires, and how late what falls due meanwhile is."""
    count, due_ms = ground.sizes.overdue, int(time.time()) * 1_000 - 60_000
    with ground.path() as path:
        config, clock = Config(durability="process"), ManualClock(due_ms - 3_600_000)
        with timerstore.open(path / "store", config=config, clock=clock) as store:
            for bodies in ours.batches(ours.make_bodies(count)):
                at_ms = due_ms + np.random.randint(0, 1_000, len(bodies))
                store.put_many(bodies, topic="overdue", at_ms=at_ms)
        with ours.open_store(path / "store", "process") as store:
            opened_s = time.perf_counter()
            late_ms: list[float] = []
            done = threading.Event()
            prober = threading.Thread(target=_probe, args=(store, late_ms, done))
            prober.start()
            got = ours.drain(store, "overdue", 1)
            first_s = time.perf_counter() - opened_s
            ours.drain(store, "overdue", count - got)
            all_s = time.perf_counter() - opened_s
            done.set()
            prober.join()
    told = f"{first_s:.2f} s after opening, all after {all_s:.1f}; "
    told += f"{max(late_ms):.0f} ms late at most"
    what = f"after a stop, {count:,} overdue timers in one slot: the first one; what falls due "
    reached = first_s <= 0.5 and max(late_ms) <= 50
    return [Row(what + "meanwhile", "≤ 0.5 s; ≤ 50 ms late", told, reached, figures=late_ms)]


def _probe(store: TimerStore, late_ms: list[float], done: threading.Event) -> None:
    """Put a timer that is due soon, wait for it, and note how late it was fired; until `done`."""
    while not late_ms or not done.is_set():
        store.put(b"meanwhile", topic="meanwhile", at_ms=now_ms() + 20)
        batch = store.pull("meanwhile", timeout=60)
        late_ms.extend((batch.fired_ms - batch.due_ms).tolist())
        batch.ack()


ROWS: dict[str, Callable[[Ground], list[Row]]] = {
    each.__name__: each for each in (disk, pending, overdue, first, jobs)
}

if __name__ == "__main__":
    harness.main("", __doc__, Sizes, ROWS, option="--rows")
