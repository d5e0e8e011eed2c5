"""What a put costs through a RocketMQ cluster, beside a store's own calls.

A name server, a broker and a proxy run on this machine, in one JVM; each put of theirs crosses the
loopback twice. The same bodies are put one by one and by `put_many`, into the cluster and into a
store, in rounds that take turns. A ratio is that of the rounds' medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import machine
import ours
import report
from peers.rocketmq import load_brokers

import timerstore.rocketmq
from timerstore.rocketmq import CommonCalls

TOPIC = "bench"
PARTS = ("group", "process")
FILL_BEGIN = "<!-- sending: begin -->"
FILL_END = "<!-- sending: end -->"
_CLUSTER = "cluster"
_SETTINGS = {"brokerName": "broker-a", "timerWheelEnable": "true", "timerMaxDelaySec": 86_400}


@dataclass(frozen=True)
class Sizes:
    """How much is put in a round."""

    count: int
    """One by one."""
    batch_count: int
    """By `put_many`."""
    rounds: int


FULL = Sizes(1_000, 5_000, 5)
QUICK = Sizes(200, 1_000, 2)
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


def rows_of(rates: Rates) -> list[report.Row]:
    """Return a row for each way and call; a store's says how many times the cluster's it is."""
    rows = []
    for name, calls in rates.items():
        for call, each in calls.items():
            rate = statistics.median(each)
            told = f"{rate:,.0f} a second ({min(each):,.0f} to {max(each):,.0f})"
            if name != _CLUSTER:
                told += f", {rate / statistics.median(rates[_CLUSTER][call]):,.1f} × the cluster's"
            rows.append(report.Row(f"`{call}`, {name}", "", "", told, figures={"rates": each}))
    return rows


def way_into(into: CommonCalls, due_ms: int) -> Way:
    """Return both calls of a cluster or a store."""

    def put_one(count: int) -> None:
        for body in ours.make_bodies(count):
            into.put(body, topic=TOPIC, at_ms=due_ms)

    def put_many(count: int) -> None:
        into.put_many(ours.make_bodies(count), topic=TOPIC, at_ms=due_ms)

    return Way(put_one, put_many)


def measure(folder: Path, parts: list[str], sizes: Sizes) -> Rates:
    """Start a cluster, open a store for each durability that was asked for, and measure."""
    due_ms = time.time_ns() // 1_000_000 + ours.FAR_MS
    broker = folder / "broker"
    broker.mkdir()
    with ExitStack() as stack:
        brokers = stack.enter_context(load_brokers().Brokers(folder / "home"))
        brokers.ask("names")
        brokers.start(broker, **_SETTINGS)
        brokers.ask("topics", broker, TOPIC)
        os.environ["HOME"] = str(folder)  # RocketMQ's client writes its log there
        cluster = stack.enter_context(timerstore.rocketmq.connect(brokers.proxy()))
        ways = {_CLUSTER: way_into(cluster, due_ms)}
        for part in parts:
            store = stack.enter_context(ours.open_store(folder / part, part))
            ways[f"store, durability {part}"] = way_into(store, due_ms)
        return rates_of(ways, sizes)


def main() -> None:
    """Measure, show, and fill a table if that is asked for."""
    parser = report.new_parser(
        "./run bench --cluster", __doc__, "small sizes: half a minute", "--durabilities", PARTS
    )
    arguments: argparse.Namespace = parser.parse_args()
    parts = report.chosen(parser, arguments.durabilities, PARTS)
    report.check_files(parser, arguments, (FILL_BEGIN, FILL_END))
    report.check_whole(parser, arguments, parts, PARTS)
    sizes = report.sizes_of(arguments, FULL, QUICK)
    header = machine.headline(f"{ours.BODY_BYTES} bytes each, medians of {sizes.rounds} rounds")
    with machine.scratch_folder(arguments.folder) as folder:
        rates = measure(folder, parts, sizes)
    figures = {"sizes": asdict(sizes), "rates": rates}
    report.deliver(arguments, header, rows_of(rates), figures, (FILL_BEGIN, FILL_END))


if __name__ == "__main__":
    main()
