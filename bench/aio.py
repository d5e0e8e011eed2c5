"""How late an event loop's own heartbeat is while timers fall due in it.

A task asks to be woken each few milliseconds, and notes how much later it was. Beside it the loop
consumes: with `async for`, with `pull`, or with a Consumer whose handlers are coroutines. Timers
are put before, evenly over the seconds that are measured.

If other programs want the processors too, a late beat says little about the loop. So Linux is asked
how long the loop's thread was ready to run and did not: "own" is late without that.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TextIO

import harness
import machine
import numpy as np
from harness import sized
from results import Row

import timerstore
import timerstore.aio

TOPIC = "due"
BEAT_S = 0.002
BEFORE_S = 3.0
WAYS = ("nothing", "consume", "pull", "consumer")


@dataclass(frozen=True)
class Sizes:
    """How many timers fall due, and for how long."""

    rounds: int = sized(2, 1)
    per_second: int = sized(50_000, 10_000)
    seconds: float = sized(4.0, 1.0)
    durability: str = sized("group", "group")


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


def play(loop: str, ground: harness.Ground[Sizes]) -> Iterator[Row]:
    """Measure all ways in loops of one kind, in rounds; the worst of them counts."""
    s = ground.sizes
    found: dict[str, list[Beats]] = {way: [] for way in WAYS}
    for _ in range(s.rounds):
        for way, each in found.items():
            with asyncio.Runner(loop_factory=_LOOPS[loop]) as runner:
                each.append(runner.run(measure(way, s.durability, s.per_second, s.seconds)))
    for way, rounds in found.items():
        b = max(rounds, key=lambda each: each.p99)
        told = f"late by {b.median:.2f} ms, p99 {b.p99:.2f}; own p99 {b.own_p99:.2f}, at most "
        told += f"{b.own_max:.2f}"
        if b.handled:
            told += f"; {b.handled / s.seconds:,.0f} handled a second, p99 {b.handled_p99:.0f} ms"
        yield Row(f"{loop}, {way}", "", told, figures=[asdict(each) for each in rounds])


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


_LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": _uvloop}

if __name__ == "__main__":
    harness.main("--aio", __doc__, Sizes, {loop: partial(play, loop) for loop in _LOOPS})
