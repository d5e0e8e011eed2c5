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
from functools import partial

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


def calls_of(into: CommonCalls, due_ms: int, sizes: Sizes) -> dict[str, Callable[[], float]]:
    """Return both calls of a cluster or a store; each tells how many timers a second it put."""

    def put() -> None:
        for body in ours.make_bodies(sizes.count):
            into.put(body, topic=TOPIC, at_ms=due_ms)

    def put_many() -> None:
        into.put_many(ours.make_bodies(sizes.batch_count), topic=TOPIC, at_ms=due_ms)

    def rate(call: Callable[[], None], count: int) -> float:
        began_s = time.perf_counter()
        call()
        return count / (time.perf_counter() - began_s)

    return {
        "put": partial(rate, put, sizes.count),
        "put_many": partial(rate, put_many, sizes.batch_count),
    }


def puts(ground: harness.Ground[Sizes]) -> Iterator[Row]:
    """Start a cluster, open a store for each durability, and measure."""
    due_ms, folder, s = now_ms() + ours.FAR_MS, ground.folder, ground.sizes
    broker = folder / "broker"
    broker.mkdir()
    with ExitStack() as stack:
        brokers = stack.enter_context(load_brokers().Brokers(folder / "home"))
        brokers.ask("names")
        brokers.start(broker, **_SETTINGS)
        brokers.ask("topics", broker, TOPIC)
        os.environ["HOME"] = str(folder)  # RocketMQ's client writes its log there
        cluster = stack.enter_context(timerstore.rocketmq.connect(brokers.proxy()))
        ways = {(CLUSTER, call): way for call, way in calls_of(cluster, due_ms, s).items()}
        for durability in STORES:
            store = stack.enter_context(ours.open_store(folder / durability, durability))
            name = f"store, durability {durability}"
            ways |= {(name, call): way for call, way in calls_of(store, due_ms, s).items()}
        yield from rows_of(harness.in_turns(ways, s.rounds))


def rows_of(rates: dict[tuple[str, str], list[float]]) -> Iterator[Row]:
    """Return a row for each way and call; a store's says how many times the cluster's it is."""
    for (name, call), each in rates.items():
        rate = statistics.median(each)
        told = f"{rate:,.0f} a second ({min(each):,.0f} to {max(each):,.0f})"
        if name != CLUSTER:
            told += f", {rate / statistics.median(rates[CLUSTER, call]):,.1f} × the cluster's"
        yield Row(f"`{call}`, {name}", "", told, figures=each)


if __name__ == "__main__":
    harness.main("--cluster", __doc__, Sizes, {"puts": puts})
