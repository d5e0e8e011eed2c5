"""What a put costs that is durable on return: alone beside the bare disk; of 32 threads."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ours
import report
from bare import BareFile
from peer import SqliteTimers

from timerstore import TimerStore

THREADS = 32
_BODY = bytes(100)
_AT_ONCE = 50
_AHEAD_MS = 40 * 3_600_000


def _median_us(calls: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Return the median µs of each call; they take turns, `_AT_ONCE` at a time."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(max(1, count // _AT_ONCE)):
        for name, call in calls.items():
            for _ in range(_AT_ONCE):
                began_s = time.perf_counter()
                call()
                taken[name].append((time.perf_counter() - began_s) * 1e6)
    return {name: statistics.median(each) for name, each in taken.items()}


def _together(store: TimerStore, threads: int, seconds: float) -> tuple[float, float]:
    """Let threads put, each without a pause; return puts a second, and fsyncs a put."""
    due_ms = time.time_ns() // 1_000_000 + _AHEAD_MS
    counts, begin, stop = [0] * threads, threading.Event(), threading.Event()

    def put(i: int) -> None:
        begin.wait()
        while not stop.is_set():
            store.put(_BODY, at_ms=due_ms)
            counts[i] += 1

    workers = [threading.Thread(target=put, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    syncs, began_s = store.stats().sync_count, time.perf_counter()
    begin.set()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    elapsed_s, count = time.perf_counter() - began_s, sum(counts)
    return count / elapsed_s, (store.stats().sync_count - syncs) / count


def rows(folder: Path, count: int, rounds: int) -> list[report.Row]:
    """Measure so many puts alone, then rounds of one thread and of many, in turns."""
    due_ms = time.time_ns() // 1_000_000 + _AHEAD_MS
    with tempfile.TemporaryDirectory(dir=folder) as path:
        bare = BareFile(Path(path) / "bare")
        peer = SqliteTimers(Path(path) / "peer.sqlite", synchronous="FULL")
        with ours.open_store(Path(path) / "store", "group") as store:
            calls: dict[str, Callable[[], object]] = {
                "bare": bare.append,
                "put": lambda: store.put(_BODY, at_ms=due_ms),
                "peer": lambda: peer.put_one(due_ms, _BODY),
            }
            _median_us(calls, _AT_ONCE)
            us = _median_us(calls, count)
            one, many = [], []
            for _ in range(rounds):
                one.append(_together(store, 1, 1.0))
                many.append(_together(store, THREADS, 1.0))
        peer.close()
        bare.close()
    ratio = us["put"] / us["bare"]
    alone, per_second = (statistics.median(rate for rate, _ in each) for each in (one, many))
    fsyncs = statistics.median(each for _, each in many)
    return [
        report.Row(
            "`put`, `group`, one thread",
            "≤ 1.2 × write and `fdatasync`",
            "",
            f"{ratio:.2f} ×: {us['put']:.0f} µs beside {us['bare']:.0f}; "
            f"SQLite `FULL` {us['peer']:.0f}",
            ratio <= 1.2,
            us,
        ),
        report.Row(
            f"`put`, `group`, {THREADS} threads",
            "≥ 10 × one thread",
            "100,000/s",
            f"{per_second / alone:.1f} ×: {per_second:,.0f}/s beside {alone:,.0f}",
            per_second >= 10 * alone,
            {"one": one, "many": many},
        ),
        report.Row(f"fsyncs a put, {THREADS} threads", "≤ 0.1", "", f"{fsyncs:.3f}", fsyncs <= 0.1),
    ]
