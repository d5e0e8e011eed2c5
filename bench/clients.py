"""What single puts of the threads of one client cost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import harness
import machine
import ours
from harness import sized
from results import Row

import timerstore

OWNER = """
import sys, timerstore
config = timerstore.Config(durability=sys.argv[2])
with timerstore.open(sys.argv[1], config=config) as store, timerstore.serve(store):
    print("ready", flush=True)
    sys.stdin.read()
"""
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Sizes:
    """How many threads, for how long."""

    threads: int = sized(64, 16)
    rounds: int = sized(5, 1)
    seconds: float = sized(2.0, 0.5)
    """Of a round."""


Ground = harness.Ground[Sizes]


def putting(path: Path, durability: str, threads: int, seconds: float) -> tuple[float, float]:
    """Return timers a second, and µs of both processes for each."""
    counts, stop, at_ms = [0] * threads, threading.Event(), int(time.time() * 1_000) + HOUR_MS
    body, begin = b"x" * ours.BODY_BYTES, threading.Barrier(threads + 1)
    command = [sys.executable, "-P", "-c", OWNER, str(path), durability]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
        with timerstore.connect(path) as client:

            def put(number: int) -> None:
                client.put(body, topic="t", at_ms=at_ms)
                begin.wait()
                while not stop.is_set():
                    client.put(body, topic="t", at_ms=at_ms)
                    counts[number] += 1

            working = [threading.Thread(target=put, args=(number,)) for number in range(threads)]
            for each in working:
                each.start()
            begin.wait()
            before_s, began_s = machine.cpu_s(owner.pid) + time.process_time(), time.perf_counter()
            time.sleep(seconds)
            stop.set()
            for each in working:
                each.join()
            taken_s = machine.cpu_s(owner.pid) + time.process_time() - before_s
            return sum(counts) / (time.perf_counter() - began_s), 1e6 * taken_s / sum(counts)


def part(durability: str, ground: Ground) -> Iterator[Row]:
    """Put for some rounds."""
    size, rates, costs = ground.sizes, list[float](), list[float]()
    for _ in range(size.rounds):
        with ground.path() as folder:
            rate, cost_us = putting(folder / "s", durability, size.threads, size.seconds)
        rates.append(rate)
        costs.append(cost_us)
    what = f"puts of {size.threads} threads of a client, {durability}"
    rate, cost_us = sorted(rates)[len(rates) // 2], sorted(costs)[len(costs) // 2]
    told = f"{rate:,.0f} a second, {cost_us:.1f} µs of both processes each"
    yield Row(what, "≥ 200,000/s" if durability == "process" else "", told, None, rates)


PARTS: dict[str, Callable[[Ground], Iterator[Row]]] = {
    durability: partial(part, durability) for durability in ("process", "group")
}

if __name__ == "__main__":
    harness.main("--clients", __doc__, Sizes, PARTS)
