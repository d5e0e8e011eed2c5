"""What a put costs through a RocketMQ cluster, beside a store's own calls.

A name server, a broker and a proxy run on this machine, in one JVM; each put of theirs crosses the
loopback twice. The same bodies are put one by one and by `put_many`, into the cluster and into a
store, in rounds that take turns. A ratio is that of the rounds' medians.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import harness
import ours
from harness import sized
from peers.rocketmq import load_brokers
from peers.timers import now_ms
from results import Row

import timerstore.rocketmq
from timerstore.rocketmq import CommonCalls

TOPIC = "bench"
CLUSTER, STORES = "cluster", ("group", "process")
_SETTINGS = {"brokerName": "broker-a", "timerWheelEnable": "true", "timerMaxDelaySec": 86_400}


@dataclass(frozen=True)
class Sizes:
    """How much is put in a round."""

    rounds: int = sized(5, 2)
    count: int = sized(1_000, 200)
    """One by one."""
    batch_count: int = sized(5_000, 1_000)
    """By `put_many`."""


Puts = Callable[[int], object]
Rates = dict[str, dict[str, list[float]]]
"""Timers a second of each round, by way and call."""


@dataclass(frozen=True)
class Way:
    """What is measured: `put_one` gets how many are put one after the other."""

    put_one: Puts
    put_many: Puts


def rates_of(ways: dict[str, Way], sizes: Sizes) -> Rates:
    """Return timers a second of each round, by way and call; the first round is left out."""
    found: Rates = {}
    for at in range(sizes.rounds + 1):
        for name, way in ways.items():
            calls = {
                "put": (way.put_one, sizes.count),
                "put_many": (way.put_many, sizes.batch_count),
            }
            for call, (play, count) in calls.items():
                began_s = time.perf_counter()
                play(count)
                rate = count / (time.perf_counter() - began_s)
                if at:
                    found.setdefault(name, {}).setdefault(call, []).append(rate)
    return found


def rows_of(rates: Rates) -> Iterator[Row]:
    """Return a row for each way and call; a store's says how many times the cluster's it is."""
    for name, calls in rates.items():
        for call, each in calls.items():
            rate = statistics.median(each)
            told = f"{rate:,.0f} a second ({min(each):,.0f} to {max(each):,.0f})"
            if name != CLUSTER:
                told += f", {rate / statistics.median(rates[CLUSTER][call]):,.1f} × the cluster's"
            yield Row(f"`{call}`, {name}", "", told, figures=each)


def way_into(into: CommonCalls, due_ms: int) -> Way:
    """Return both calls of a cluster or a store."""

    def put_one(count: int) -> None:
        for body in ours.make_bodies(count):
            into.put(body, topic=TOPIC, at_ms=due_ms)

    def put_many(count: int) -> None:
        into.put_many(ours.make_bodies(count), topic=TOPIC, at_ms=due_ms)

    return Way(put_one, put_many)


def puts(ground: harness.Ground[Sizes]) -> list[Row]:
    """Start a cluster, open a store for each durability, and measure."""
    due_ms, folder = now_ms() + ours.FAR_MS, ground.folder
    broker = folder / "broker"
    broker.mkdir()
    with ExitStack() as stack:
        brokers = stack.enter_context(load_brokers().Brokers(folder / "home"))
        brokers.ask("names")
        brokers.start(broker, **_SETTINGS)
        brokers.ask("topics", broker, TOPIC)
        os.environ["HOME"] = str(folder)  # RocketMQ's client writes its log there
        cluster = stack.enter_context(timerstore.rocketmq.connect(brokers.proxy()))
        ways = {CLUSTER: way_into(cluster, due_ms)}
        for durability in STORES:
            store = stack.enter_context(ours.open_store(folder / durability, durability))
            ways[f"store, durability {durability}"] = way_into(store, due_ms)
        return list(rows_of(rates_of(ways, ground.sizes)))


if __name__ == "__main__":
    harness.main("--cluster", __doc__, Sizes, {"puts": puts})
