"""What the calls of a served store cost its clients: one alone, then four together.

An owner serves a store with the durability that is asked for. A client puts one timer after the
other, and asks for what it put; then four processes put batches at the same time, each for as long
as the others. The owner's processor time says what all of them cost it.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import harness
from harness import sized
from peers.timers import now_ms
from results import Row

import timerstore

BODY = bytes(100)
CLIENTS = 4
BATCH_COUNT = 100
DUE_MS = now_ms() + 86_400_000


@dataclass(frozen=True)
class Sizes:
    """How much is played."""

    rounds: int = sized(3, 1)
    count: int = sized(5_000, 500)
    """Calls of one client; a tenth under `group`."""
    seconds: float = sized(5.0, 1.0)
    """Of the four together."""


spawned = multiprocessing.get_context("spawn")


def own(path: Path, durability: Any, told: Connection) -> None:
    """Serve a store; answer each word with the processor seconds used since the last one."""
    config = timerstore.Config(durability=durability)
    with timerstore.open(path, config=config) as store, timerstore.serve(store):
        told.send(None)
        before_s = 0.0
        while told.recv():
            now_s = time.process_time()
            told.send(now_s - before_s)
            before_s = now_s


def median_us(call: Callable[[], object], count: int) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1_000


def put_batches(path: Path, seconds: float, barrier: Barrier, told: Connection) -> None:
    """Put batches for so long; tell how many timers a second that were."""
    with timerstore.connect(path) as store:
        bodies = [BODY] * BATCH_COUNT
        store.put_many(bodies, at_ms=DUE_MS)
        barrier.wait()
        began_s, count = time.monotonic(), 0
        while time.monotonic() - began_s < seconds:
            store.put_many(bodies, at_ms=DUE_MS)
            count += BATCH_COUNT
        told.send(count / (time.monotonic() - began_s))


def together(path: Path, seconds: float) -> list[float]:
    barrier, ends = spawned.Barrier(CLIENTS), [spawned.Pipe() for _ in range(CLIENTS)]
    clients = [
        spawned.Process(target=put_batches, args=(path, seconds, barrier, mine), daemon=True)
        for _, mine in ends
    ]
    for client in clients:
        client.start()
    rates = [ours.recv() for ours, _ in ends]
    for client in clients:
        client.join()
    return rates


def play(durability: str, ground: harness.Ground[Sizes]) -> Iterator[Row]:
    """Measure clients of a store of one durability."""
    s, figures = ground.sizes, list[tuple[float, ...]]()
    count = s.count if durability == "process" else s.count // 10
    with ExitStack() as stack:
        path, (ours, theirs) = stack.enter_context(ground.path()) / "timers", spawned.Pipe()
        owner = spawned.Process(target=own, args=(path, durability, theirs), daemon=True)
        owner.start()
        stack.callback(owner.kill)
        ours.recv()
        with timerstore.connect(path) as store:
            for _ in range(s.rounds):
                id = store.put(BODY, at_ms=DUE_MS)
                put_us = median_us(lambda: store.put(BODY, at_ms=DUE_MS), count)
                get_us = median_us(partial(store.get, id), count)
                ours.send(True)
                ours.recv()
                rates = together(path, s.seconds)
                ours.send(True)
                spent_us = ours.recv() * 1e6 / (sum(rates) * s.seconds)
                figures.append((put_us, get_us, sum(rates), spent_us))
        ours.send(False)
        owner.join()
    of = [*zip(*figures, strict=True)]
    put_us, get_us, per_second, spent_us = map(statistics.median, of)
    what = f"`{durability}`, a client alone"
    yield Row(what, "", f"put {put_us:.0f} µs, get {get_us:.0f} µs", figures=figures)
    told = f"{per_second:,.0f} timers a second ({min(of[2]):,.0f} to {max(of[2]):,.0f}), "
    told += f"{spent_us:.1f} µs of the owner's processor each"
    yield Row(f"`{durability}`, {CLIENTS} clients in batches of {BATCH_COUNT}", "", told)


PARTS = {each: partial(play, each) for each in ("process", "group")}

if __name__ == "__main__":
    harness.main("--serving", __doc__, Sizes, PARTS)
