"""How long the rules take: a run of the pipeline over one store, or many, on DuckDB and on Spark.

A tenth of the timers has fired, and a tenth of the others was cancelled. Beside the wall time stand
the processor time of all processes, and the private memory of the largest Python and Java.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import harness
import machine
import numpy as np
from harness import sized
from results import Row

import timerstore
from timerstore import pipeline

BATCH = 100_000
BODY_BYTES = 100
START_MS = 1_800_000_000_000
SAMPLE_S = 0.2


@dataclass(frozen=True)
class Sizes:
    """What is audited."""

    timers: int = sized(1_000_000, 20_000)
    """Of each store."""
    stores: int = sized(1, 1)
    slowest: int = sized(8, 8)
    """Parts of a run that are told of."""


Ground = harness.Ground[Sizes]


def fill(path: Path, count: int) -> None:
    """Make a store of timers that are due within two days, by chance."""
    rng, clock = np.random.default_rng(1), timerstore.ManualClock(START_MS)
    config = timerstore.Config(durability="process")
    with timerstore.open(path, config=config, clock=clock) as store:
        for first in range(0, count, BATCH):
            part = min(BATCH, count - first)
            bodies = rng.integers(0, 255, (part, BODY_BYTES), np.uint8)
            delays_ms = rng.integers(1_000, 48 * 3_600_000, part)
            ids = store.put_many(bodies, topic=f"topic-{first // BATCH % 5}", delay_ms=delays_ms)
            store.cancel_many(ids[: part // 10])
        clock.advance(timedelta(hours=4.8))


@contextmanager
def largest() -> Iterator[dict[str, int]]:
    """Yield the most private memory that a process of ours has, by the name of its program."""
    found, over = dict[str, int](), threading.Event()

    def look() -> None:
        while not over.wait(SAMPLE_S):
            for pid in machine.with_children([os.getpid()]):
                try:
                    is_java = Path(f"/proc/{pid}/exe").readlink().name == "java"
                    name = "Java" if is_java else "Python"
                    found[name] = max(found.get(name, 0), machine.private_bytes(str(pid)))
                except (OSError, AssertionError):  # it has ended
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def processor_s() -> float:
    """Return what this process and those that it has started have taken."""
    found = 0.0
    for pid in machine.with_children([os.getpid()]):
        with suppress(OSError):  # it has ended
            found += machine.cpu_s(pid)
    return found


def audit(on_spark: bool, ground: Ground) -> Iterator[Row]:
    """Make stores, run the pipeline over them, tell what took longest."""
    s, spark = ground.sizes, None
    with ground.path() as path:
        for number in range(s.stores):
            fill(path / f"store-{number:03d}", s.timers)
        if on_spark:
            from timerstore.spark import session

            spark = session()
        before_s, began_s = processor_s(), time.perf_counter()
        with largest() as memory:
            found = pipeline.run(path / "*", spark=spark)
        took_s = time.perf_counter() - began_s
        told = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in sorted(memory.items()))
        used_s = processor_s() - before_s
        yield Row("a run", "", f"{took_s:.1f} s, processor {used_s:.1f} s, {told}")
        rows: list[dict[str, Any]] = found.read("metrics").to_pylist()
        rows.sort(key=lambda row: -row["seconds"])
        for row in rows[: s.slowest]:
            yield Row(f"{row['part']} {row['name']}", "", f"{row['seconds']:.2f} s")
        if spark is not None:
            spark.stop()


PARTS: dict[str, Callable[[Ground], Iterator[Row]]] = {
    "duckdb": partial(audit, False),
    "spark": partial(audit, True),
}

if __name__ == "__main__":
    harness.main("--audit", __doc__, Sizes, PARTS)
