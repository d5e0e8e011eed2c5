"""What the calls of a served store cost its clients: one alone, then four together.

An owner serves a store with the durability that is asked for. A client puts one timer after the
other, and asks for what it put; then four processes put batches at the same time, each for as long
as the others. The owner's processor time says what all of them cost it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import machine

import timerstore

BODY = bytes(100)
CLIENTS = 4
BATCH_COUNT = 100
DUE_MS = time.time_ns() // 1_000_000 + 86_400_000

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
    """Return the median microseconds of a call."""
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
    """Return each client's timers a second."""
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


def main() -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(prog="./run bench --serving", description=__doc__)
    parser.add_argument("--durability", choices=("process", "group"), default="process")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the four together")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    count = 5_000 if arguments.durability == "process" else 500
    print(f"{os.cpu_count()} processors, durability {arguments.durability}")
    with ExitStack() as stack:
        folder = stack.enter_context(machine.scratch_folder(None))
        path, (ours, theirs) = folder / "timers", spawned.Pipe()
        owner = spawned.Process(target=own, args=(path, arguments.durability, theirs), daemon=True)
        owner.start()
        stack.callback(owner.kill)
        ours.recv()
        with timerstore.connect(path) as store:
            for _ in range(arguments.rounds):
                id = store.put(BODY, at_ms=DUE_MS)
                put_us = median_us(lambda: store.put(BODY, at_ms=DUE_MS), count)
                get_us = median_us(lambda id=id: store.get(id), count)  # type: ignore[misc]
                ours.send(True)
                ours.recv()
                rates = together(path, arguments.seconds)
                ours.send(True)
                spent_us = ours.recv() * 1e6 / (sum(rates) * arguments.seconds)
                print(
                    f"put {put_us:.0f} µs, get {get_us:.0f} µs; {CLIENTS} clients in batches of "
                    f"{BATCH_COUNT}: {sum(rates):,.0f} a second ({min(rates):,.0f} to "
                    f"{max(rates):,.0f} each), {spent_us:.1f} µs of the owner's processor a timer"
                )
        ours.send(False)
        owner.join()


if __name__ == "__main__":
    main()
