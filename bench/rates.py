"""What a consumer's rate costs, and how it is kept: a burst, tenants, a call without a rate."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import harness
from harness import sized
from results import Row

import timerstore


@dataclass(frozen=True)
class Sizes:
    """How many messages fall due at once, of how many tenants."""

    count: int = sized(10_000, 1_000)
    tenants: int = sized(1_000, 100)
    calls: int = sized(100_000, 10_000)
    """Handler calls of a round."""
    rounds: int = sized(3, 1)


Ground = harness.Ground[Sizes]


def manual(ground: Ground) -> Iterator[Row]:
    """All at once, at 100 a second, on a manual clock."""
    count, clock, came = ground.sizes.count, timerstore.ManualClock(), list[int]()
    with ground.path() as folder, timerstore.open(folder / "s", clock=clock) as store:
        store.put_many([b"x"] * count, topic="t", delay=timedelta(hours=1))
        consumer = timerstore.Consumer(store, "g", rate="100/s", burst=1)
        consumer.subscribe("t", lambda d: came.append(clock.now_ms))
        with consumer:
            began_s = time.process_time()
            clock.advance(timedelta(hours=2))
            cost_us = 1e6 * (time.process_time() - began_s) / count
    exact = [b - a for a, b in pairwise(came)] == [10] * (count - 1)
    told = f"{(came[-1] - came[0]) / 1e3:,.2f} s by the clock, {cost_us:.0f} µs of processor each"
    yield Row(f"{count:,} at once, 100/s, burst 1", "one each 10 ms", told, exact)


def tenants(ground: Ground) -> Iterator[Row]:
    """All at once, of many tenants, each with a rate, in real time."""
    size, came, lock = ground.sizes, defaultdict[str, list[float]](list), threading.Lock()
    done, each_count = threading.Event(), size.count // size.tenants

    def note(d: timerstore.Delivery) -> None:
        with lock:
            came[d.properties["tenant"]].append(time.monotonic())
            if sum(map(len, came.values())) == size.count:
                done.set()

    config = timerstore.Config(durability="process")
    with ground.path() as folder, timerstore.open(folder / "s", config=config) as store:
        due_ms = int(time.time() * 1_000) + 10_000
        for i in range(size.count):
            tenant = {"tenant": str(i % size.tenants)}
            store.put(b"x", topic="t", at_ms=due_ms, properties=tenant)
        consumer = timerstore.Consumer(store, "g", rate="2/s", burst=1, rate_by="tenant")
        consumer.subscribe("t", note)
        with consumer:
            time.sleep(max(0.0, due_ms / 1_000 - time.time()))
            began_s, cost_s = time.monotonic(), time.process_time()
            done.wait()
            cost_us = 1e6 * (time.process_time() - cost_s) / size.count
    gaps_ms = [1_000 * (b - a) for each in came.values() for a, b in pairwise(each)]
    took_s, least_s = time.monotonic() - began_s, (each_count - 1) / 2
    told = f"{took_s:.2f} s, {cost_us:.0f} µs of processor each; shortest gap {min(gaps_ms):.0f} ms"
    yield Row(f"{size.count:,} of {size.tenants:,} tenants, 2/s each", f"{least_s:.1f} s", told)


def calls(ground: Ground) -> Iterator[Row]:
    """Call a handler in one thread, without a rate and with one that is never reached."""
    size = ground.sizes
    options: dict[str, dict[str, Any]] = {
        "no rate": {},
        "a rate": {"rate": "1000000/s", "burst": 1_000_000},
        "a rate by tenant": {"rate": "1000000/s", "burst": 1_000_000, "rate_by": "tenant"},
    }
    found = {
        name: [calling(ground, given) for _ in range(size.rounds)]
        for name, given in options.items()
    }
    for name, costs in found.items():
        yield Row(
            f"a handler call, {name}", "", f"{sorted(costs)[len(costs) // 2]:.1f} µs", None, costs
        )


def calling(ground: Ground, given: dict[str, Any]) -> float:
    """Return µs of processor for each call."""
    left, done = [ground.sizes.calls], threading.Event()

    def count(d: timerstore.Delivery) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    config = timerstore.Config(durability="process")
    with ground.path() as folder, timerstore.open(folder / "s", config=config) as store:
        store.put_many([b"x"] * left[0], topic="t")
        while store.stats().pending_count:
            time.sleep(0.05)
        consumer = timerstore.Consumer(store, "g", threads=1, **given)
        consumer.subscribe("t", count)
        began_s = time.process_time()
        with consumer:
            done.wait()
            return 1e6 * (time.process_time() - began_s) / ground.sizes.calls


PARTS: dict[str, Callable[[Ground], Iterator[Row]]] = {
    "manual": manual,
    "tenants": tenants,
    "calls": calls,
}

if __name__ == "__main__":
    harness.main("--rates", __doc__, Sizes, PARTS)
