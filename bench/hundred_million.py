"""What each call and command takes in a store of a hundred million pending timers.

A store is filled, closed, dropped from the page cache and opened; then each call is made a few
times, and each command once, beside a store of a million. A call that reads all that is pending
shows here, and nowhere else. 45 GB of disk, half an hour.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import harness
import machine
import numpy as np
import ours
from cold import drop_pages
from harness import sized
from results import Row

import timerstore

DAYS = 60
STEP = 1 << 16
SLOW_S = 20.0
"""A call that takes longer is made once."""
COMMAND_S = 120
"""A command that takes longer is ended."""
Took = tuple[str, float]
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Sizes:
    """How many timers are pending."""

    rounds: int = sized(5, 5)
    count: int = sized(100_000_000, 200_000)
    beside: int = sized(1_000_000, 50_000)


def fill(path: Path, count: int) -> Iterator[Took]:
    """Put timers due at random within DAYS; every thousandth has a key."""
    rng = np.random.default_rng(1)
    body = rng.integers(0, 255, (STEP, 100), np.uint8)
    began_s = time.perf_counter()
    store = ours.open_store(path, "process")
    for first in range(0, count, STEP):
        delay_ms = rng.integers(0, DAYS * 86_400_000, STEP)
        store.put_many(body, topic=f"t{first // STEP % 4}", delay_ms=delay_ms)
    for i in range(1_000):
        store.put(b"keyed", topic="keyed", key=f"k{i}", delay=timedelta(days=1, seconds=i))
    ids = [
        store.put(b"known", topic="known", delay=timedelta(days=30, seconds=i)) for i in range(9)
    ]
    store.cancel(ids[0])
    yield "put_many, a timer", (time.perf_counter() - began_s) / count
    began_s = time.perf_counter()
    store.close()
    yield "close, at once behind the last put", time.perf_counter() - began_s
    (path.parent / "ids").write_text("\n".join(ids))


def put_and_pull(store: timerstore.TimerStore) -> None:
    """Put a timer that is due at once, and wait for it."""
    store.put(b"b", topic="soon", delay_ms=10)
    store.pull("soon", timeout=60).ack()


def calls(store: timerstore.TimerStore, ids: list[str]) -> dict[str, Callable[[int], Any]]:
    """Return each call by its name; it is given how often it was made before."""
    now_ms = time.time_ns() // 1_000_000
    return {
        "count()": lambda _: store.count(),
        "count(topic)": lambda _: store.count("known"),
        "stats()": lambda _: store.stats(),
        "health()": lambda _: store.health(),
        "upcoming()": lambda _: store.upcoming(),
        "horizon, minutes of the next hour": lambda _: store.horizon(
            60_000, end_ms=now_ms + 3_600_000
        ),
        "next(store.pending())": lambda _: next(iter(store.pending())),
        "pending(limit=10)": lambda _: list(store.pending(limit=10)),
        "pending(topic, limit=10)": lambda _: list(store.pending(topic="t1", limit=10)),
        "pending, a second a day ahead": lambda _: list(
            store.pending(start_ms=now_ms + 86_400_000, end_ms=now_ms + 86_401_000)
        ),
        "pending_columns(limit=1_000)": lambda _: store.pending_columns(limit=1_000),
        "get(id)": lambda i: store.get(ids[1 + i]),
        "find(id)": lambda i: store.find(ids[1 + i]),
        "get_key": lambda i: store.get_key("keyed", f"k{i}"),
        "cancel_key": lambda i: store.cancel_key("keyed", f"k{900 + i}"),
        "put": lambda _: store.put(b"b", topic="t1", delay=HOUR),
        "put, replace=True": lambda i: store.put(
            b"b", topic="keyed", key=f"k{i}", replace=True, delay=HOUR
        ),
        "reschedule": lambda i: store.reschedule(ids[1 + i], delay=HOUR),
        "put and pull, due in 10 ms": lambda _: put_and_pull(store),
        "flush()": lambda _: store.flush(),
        "clean()": lambda _: store.clean(),
    }


def play(path: Path, times: int) -> Iterator[Took]:
    """Open the store, and make each call so many times; the median."""
    ids = (path.parent / "ids").read_text().split()
    drop_pages(path)
    began_s = time.perf_counter()
    store = ours.open_store(path, "process")
    yield "open, nothing of it in memory", time.perf_counter() - began_s
    for name, call in calls(store, ids).items():
        took_s = []
        for i in range(times):
            began_s = time.perf_counter()
            with suppress(timerstore.TimerStoreError):
                call(i)
            took_s.append(time.perf_counter() - began_s)
            if took_s[0] > SLOW_S:
                break
        yield f"{name}, first", took_s[0]
        yield name, float(np.median(took_s))
    print(f"{machine.private_bytes() >> 20:,} MiB of private memory")
    yield from commands(path, ids, "beside a program that has it open")
    store.close()
    yield from commands(path, ids, "closed")
    began_s = time.perf_counter()
    timerstore.open(path, read_only=True).close()
    yield "open(read_only=True)", time.perf_counter() - began_s


def commands(path: Path, ids: list[str], when: str) -> Iterator[Took]:
    """Run commands, each in a process of its own."""
    command = str(Path(sys.executable).parent / "timerstore")
    for words in (
        ["info"],
        ["count"],
        ["pending", "--limit", "10"],
        ["get", "--", ids[8]],
        ["horizon"],
        ["health"],
        ["find", "--", ids[8]],
    ):
        began_s = time.perf_counter()
        run = [command, words[0], str(path), *words[1:]]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(run, capture_output=True, check=False, timeout=COMMAND_S)
        yield f"timerstore {words[0]}, {when}", time.perf_counter() - began_s


def shown(seconds: float) -> str:
    """Return a duration with three digits and its unit."""
    factor, unit = (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 0.001 else (1e6, "µs")
    return f"{seconds * factor:.3g} {unit}"


def calls_and_commands(ground: harness.Ground[Sizes]) -> Iterator[Row]:
    s, small = ground.sizes, dict[str, float]()
    for count in (s.beside, s.count):
        with ground.path() as path:
            for took in (fill(path / "s", count), play(path / "s", s.rounds)):
                for name, took_s in took:
                    if count == s.count:
                        told = f"{shown(small[name])}, {shown(took_s)}"
                        yield Row(name, "", told, figures=[small[name], took_s])
                    small[name] = took_s


if __name__ == "__main__":
    harness.main("--hundred-million", __doc__, Sizes, {"calls": calls_and_commands})
