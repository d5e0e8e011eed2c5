"""A stage beside its reference, in rounds: their ratio holds on another machine.

Each round makes ready what the stage works on, times the reference, then times the stage. Both are
processor time: a round that waits for a processor is not longer by that. Most stages work on a
store whose clock stands still: no thread runs, and a stage does nothing but its own work. A
program's calls take a shorter way in a store that runs: there it is the time of the calling thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import timerstore
from timerstore import TimerStore
from timerstore.jit.kernel import Kernel
from timerstore.jit.record import Words
from timerstore.services.running.runner import provide
from timerstore.services.running.steps import ONE_STEP, run
from timerstore.services.world import needs

COUNT = 20_000
BODIES = [b"%0100d" % i for i in range(COUNT)]
ROUNDS = int(os.environ.get("SUITE_ROUNDS", "7"))
START_MS = 1_800_000_000_000
FAR_MS = START_MS + 3_600_000
COMPILED, PYTHON = "compiled", "python"
_TURNS = 3
_MIXES = 400_000
_WORDS = np.zeros(1 << 17, np.int64)  # 1 MiB: more than a core's first cache


@Kernel
def _mix(words: Words, count: int) -> int:
    """Compute, read and write: what a kernel does that stays in a core's cache."""
    state, mask = 88_172_645_463_325_252, len(words) - 1
    for _ in range(count):
        state ^= (state << 13) & 0x7FFFFFFFFFFFFFFF
        state ^= state >> 7
        state ^= (state << 17) & 0x7FFFFFFFFFFFFFFF
        words[state & mask] += state >> 40
    return state


class _Thing:
    """Something with an attribute that a call changes."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}

    def take(self, number: int, *, name: str) -> int:
        self.seen[number & 255] = name
        return number + len(name)


def _interpret() -> int:
    """Call, format, look up: what the Python of a call does."""
    thing, total = _Thing(), 0
    for number in range(8_000):
        total = thing.take(total + number, name=f"{number}") & 0xFFFF
    return total


_REFERENCES: dict[str, Callable[[], int]] = {
    COMPILED: lambda: int(_mix(_WORDS, _MIXES)),
    PYTHON: _interpret,
}


def reference_s(kind: str) -> float:
    """Return the processor time of a reference: the least of a few turns of milliseconds."""
    taken = []
    for _ in range(_TURNS):
        start_s = time.thread_time()
        _REFERENCES[kind]()
        taken.append(time.thread_time() - start_s)
    return min(taken)


def play(
    benchmark: Any,
    stage: Callable[..., Any],
    prepare: Callable[[], Any] = lambda: None,
    *,
    count: int = COUNT,
    beside: str = COMPILED,
) -> None:
    """Time `stage` on what `prepare` made ready, which is how many timers; a round before warms.

    `beside`: the reference, `COMPILED` for kernels, `PYTHON` where most is Python.
    """
    references: list[float] = []

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        prepared = prepare()
        references.append(reference_s(beside))
        return (() if prepared is None else (prepared,)), {}

    benchmark.pedantic(stage, setup=setup, rounds=ROUNDS, warmup_rounds=1)
    taken = benchmark.stats.stats.data
    references = references[-len(taken) :]
    benchmark.extra_info |= {
        "count": count,
        "beside": beside,
        "ratios": [t / r / count * COUNT for t, r in zip(taken, references, strict=True)],
    }


def drive(store: TimerStore, services: tuple[int, ...], now_ms: int) -> None:
    """Step services until none has work left."""
    engine = store.core.engine
    while True:
        done = 0
        for service in services:
            done += int(run(engine.world, service, service, now_ms, ONE_STEP))
            need = engine.need(service)
            if need != needs.NOTHING:
                provide(engine, service)
                done += 1
        if done == 0:
            return


def settle(store: TimerStore) -> None:
    """Wait until a store that runs has linked all that was put."""
    while (stats := store.stats()).queue_index < stats.queue_end:
        time.sleep(0.001)


def put(store: TimerStore, ahead_ms: int, **more: Any) -> timerstore.TimerIds:
    """Put COUNT timers that fall due within the second after `ahead_ms`."""
    at_ms = store.core.clock.now_ms + ahead_ms + np.random.randint(0, 1_000, COUNT)
    return store.put_many(BODIES, at_ms=at_ms, **more)
