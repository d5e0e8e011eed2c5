"""What a put costs that is durable on return: alone beside the bare disk; of 32 threads."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import ours
from bare import BareFile
from peers.embedded import Sqlite
from peers.timers import now_ms
from results import Row

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
    due_ms = now_ms() + _AHEAD_MS
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


def rows(folder: Path, count: int, rounds: int) -> list[Row]:
    """Measure so many puts alone, then rounds of one thread and of many, in turns."""
    due_ms = now_ms() + _AHEAD_MS
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        closing(BareFile(Path(name) / "bare")) as bare,
        closing(Sqlite(Path(name), True)) as peer,
        ours.open_store(Path(name) / "store", "group") as store,
    ):
        calls: dict[str, Callable[[], object]] = {
            "bare": bare.append,
            "put": lambda: store.put(_BODY, at_ms=due_ms),
            "peer": lambda: peer.put_one(due_ms, _BODY),
        }
        _median_us(calls, _AT_ONCE)
        us = _median_us(calls, count)
        turns = [(_together(store, 1, 1.0), _together(store, THREADS, 1.0)) for _ in range(rounds)]
    ratio = us["put"] / us["bare"]
    alone = statistics.median(rate for (rate, _), _ in turns)
    per_second, fsyncs = (
        statistics.median(each) for each in zip(*(b for _, b in turns), strict=True)
    )
    told = (
        f"{ratio:.2f} ×: {us['put']:.0f} µs beside {us['bare']:.0f}; SQLite `FULL` {us['peer']:.0f}"
    )
    reach, what = "≤ 1.2 × write and `fdatasync`", f"{THREADS} threads"
    many_told = f"{per_second / alone:.1f} ×: {per_second:,.0f}/s beside {alone:,.0f}"
    reached = per_second >= 10 * alone
    return [
        Row("`put`, `group`, one thread", reach, told, ratio <= 1.2, figures=us),
        Row(f"`put`, `group`, {what}", "≥ 10 × one thread", many_told, reached, turns),
        Row(f"fsyncs a put, {what}", "≤ 0.1", f"{fsyncs:.3f}", fsyncs <= 0.1),
    ]
