"""How late an event loop's own heartbeat is while timers fall due in it.

A task asks to be woken each few milliseconds, and notes how much later it was. Beside it the loop
consumes: with `async for`, with `pull`, or with a Consumer whose handlers are coroutines. Timers
are put before, evenly over the seconds that are measured.

If other programs want the processors too, a late beat says little about the loop. So Linux is asked
how long the loop's thread was ready to run and did not: "own" is late without that.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TextIO

import machine
import numpy as np

import timerstore
import timerstore.aio

TOPIC = "due"
BEAT_S = 0.002
BEFORE_S = 3.0
WAYS = ("nothing", "consume", "pull", "consumer")


@dataclass(frozen=True)
class Beats:
    """Milliseconds by which the heartbeat was late; how many messages were handled, how late."""

    median: float
    p99: float
    own_p99: float
    own_max: float
    handled: int
    handled_p99: float


def waited_ms(schedstat: TextIO) -> float:
    """Return for how many milliseconds a thread was ready to run, and did not, so far."""
    schedstat.seek(0)
    return int(schedstat.read().split()[1]) / 1e6


async def beat(start_s: float, stop_s: float) -> tuple[list[float], list[float]]:
    """Return by how many milliseconds each beat between two instants was late, and its own part."""
    late, own = list[float](), list[float]()  # uvloop's own clock counts milliseconds
    await asyncio.sleep(start_s - time.monotonic())
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as schedstat:
        due_s, waited = time.monotonic() + BEAT_S, waited_ms(schedstat)
        while due_s < stop_s:
            await asyncio.sleep(due_s - time.monotonic())
            now_s, before = time.monotonic(), waited
            waited = waited_ms(schedstat)
            late.append((now_s - due_s) * 1_000)
            own.append(max(0.0, late[-1] - (waited - before)))
            due_s = now_s + BEAT_S
    return late, own


async def handle(store: timerstore.aio.TimerStore, way: str, seen: list[int]) -> None:
    """Consume for good; note in `seen` how late each message came, in milliseconds."""

    def note(d: timerstore.Delivery) -> None:
        seen.append(time.time_ns() // 1_000_000 - d.due_ms)

    if way == "consume":
        async for d in store.consume(TOPIC):
            note(d)
            d.ack()
    elif way == "pull":
        while True:
            batch = await store.pull(TOPIC)
            seen += (time.time_ns() // 1_000_000 - batch.due_ms).tolist()
            batch.ack()
    elif way == "consumer":
        consumer = timerstore.aio.Consumer(store, "default")

        @consumer.on(TOPIC)
        async def take(d: timerstore.aio.Delivery) -> None:
            note(d)

        await consumer.run(close_store=False)


async def measure(way: str, durability: str, per_s: int, seconds: float) -> Beats:
    """Measure one way of consuming, `per_s` timers a second for some seconds."""
    with machine.scratch_folder(None) as folder:
        config = timerstore.Config(durability=durability)  # type: ignore[arg-type]
        async with timerstore.aio.open(folder, config=config) as store:
            count = 0 if way == "nothing" else int(per_s * seconds)
            start_ms = time.time() * 1_000 + BEFORE_S * 1_000
            due_ms = (start_ms + np.arange(count) * (1_000 / per_s)).astype(np.int64)
            for at in range(0, count, 50_000):
                part = due_ms[at : at + 50_000]
                await store.put_many([b"x" * 100] * len(part), topic=TOPIC, at_ms=part)
            start_s = time.monotonic() + start_ms / 1_000 - time.time()
            seen: list[int] = []
            handling = asyncio.create_task(handle(store, way, seen))
            late, own = await beat(start_s, start_s + seconds)
            handled = len(seen)
            handling.cancel()
            await asyncio.gather(handling, return_exceptions=True)
    median, p99 = np.percentile(late, [50, 99])
    handled_p99 = float(np.percentile(seen, 99)) if seen else 0.0
    own_p99 = float(np.percentile(own, 99))
    return Beats(float(median), float(p99), own_p99, max(own), handled, handled_p99)


def run(kind: str, way: str, durability: str, per_s: int, seconds: float) -> Beats:
    """Measure in a loop of one kind."""

    def new_loop() -> asyncio.AbstractEventLoop:
        if kind == "uvloop":
            import uvloop

            return uvloop.new_event_loop()
        return asyncio.new_event_loop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(measure(way, durability, per_s, seconds))


def main() -> None:
    """Print a line for each loop and way."""
    parser = argparse.ArgumentParser(prog="./run bench --aio", description=__doc__)
    parser.add_argument("--per-second", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--loops", nargs="+", default=["asyncio", "uvloop"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--durability", choices=["group", "process"], default="group")
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    print(f"{asked.per_second} timers a second, {asked.durability}; the heartbeat is late by, ms")
    print("loop     way        median    99 %  own 99 %  own max   handled/s  handled late, 99 %")
    for _ in range(asked.rounds):  # in turns, so that what else the machine does meets all
        for kind in asked.loops:
            for way in asked.ways:
                found = run(kind, way, asked.durability, asked.per_second, asked.seconds)
                print(
                    f"{kind:8} {way:9} {found.median:7.2f} {found.p99:7.2f}"
                    f" {found.own_p99:9.2f} {found.own_max:8.2f}"
                    f" {found.handled / asked.seconds:11,.0f} {found.handled_p99:10.0f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
