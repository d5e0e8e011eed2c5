"""How late timers are under a steady load, into the log or at the moment `pull` returns."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from timerstore import TimerStore

TOPIC = "late"
PERIOD_S = 0.02
AHEAD_MS = 500
OVER_MS = 1_000


@dataclass(frozen=True)
class Lateness:
    """Quantiles in milliseconds."""

    median: float
    p99: float
    maximum: float
    count: int


def quantiles(parts: list[np.ndarray]) -> Lateness:
    """Return the quantiles of all parts together."""
    late = np.concatenate(parts)
    median, p99 = np.percentile(late, [50, 99])
    return Lateness(float(median), float(p99), float(late.max()), len(late))


def measure(
    store: TimerStore, *, per_second: int, duration_s: float, busy: bool, at_pull: bool
) -> Lateness:
    """Put `per_second` timers a second that fall due at random milliseconds, and pull them.

    `busy`: beside it a thread of pure Python never sleeps. `at_pull`: late is what the wall clock
    says when `pull` returns, else what the log says. The first second is left out.
    """
    stop = threading.Event()
    bodies = [b"%0100d" % i for i in range(round(per_second * PERIOD_S))]

    def put() -> None:
        next_s = time.monotonic()
        while not stop.is_set():
            delay_ms = np.random.randint(AHEAD_MS, AHEAD_MS + OVER_MS, len(bodies))
            store.put_many(bodies, topic=TOPIC, delay_ms=delay_ms)
            next_s += PERIOD_S
            time.sleep(max(0.0, next_s - time.monotonic()))

    def spin() -> None:
        count = 0
        while not stop.is_set():
            for _ in range(10_000):
                count += 1

    threads = [threading.Thread(target=put, name="bench-put")]
    if busy:
        threads.append(threading.Thread(target=spin, name="bench-busy"))
    start_ms = time.time() * 1_000 + AHEAD_MS + 1_000
    end_s = time.monotonic() + duration_s + AHEAD_MS / 1_000 + 1
    for thread in threads:
        thread.start()
    parts: list[np.ndarray] = []
    while time.monotonic() < end_s:
        batch = store.pull(TOPIC, max_count=16_384, timeout=0.1)
        now_ms = time.time() * 1_000
        batch.ack()
        late = (now_ms if at_pull else batch.fired_ms) - batch.due_ms
        parts.append(late[batch.due_ms >= start_ms])
    stop.set()
    for thread in threads:
        thread.join()
    return quantiles(parts)
