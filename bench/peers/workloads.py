"""What each peer plays; every round checks that all came, each once, none before its time.

A round returns what its workload counts: timers a second, or how late timers came, in ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from peers.embedded import now_ms
from peers.timers import BODY_BYTES, Timers, body_of, check_all_came, number_of

FAR_MS = 86_400_000
PATIENCE_S = 120.0
_IDLE_S = 0.0005


@dataclass(frozen=True)
class Round:
    """What one round found."""

    per_second: float = 0.0
    late_ms: dict[str, float] = field(default_factory=dict)
    """By quantile: p50, p99, p99.9, max."""


@dataclass
class Taken:
    """What came, with its due times, by its number."""

    due_ms: Sequence[int]
    numbers: list[int] = field(default_factory=list)
    late_ms: list[int] = field(default_factory=list)

    def note(self, bodies: Sequence[bytes]) -> None:
        """Note some bodies; one that is early fails the round."""
        at_ms = now_ms()
        for body in bodies:
            number = number_of(body)
            late_ms = at_ms - self.due_ms[number]
            if late_ms < 0:
                raise AssertionError(f"timer {number} came {-late_ms} ms before its time")
            self.numbers.append(number)
            self.late_ms.append(late_ms)


def take_all(timers: Timers, taken: Taken, count: int) -> None:
    """Take until `count` have come, and look whether one more comes."""
    stop_s = time.monotonic() + PATIENCE_S
    while len(taken.numbers) < count:
        bodies = timers.take_due()
        if bodies:
            taken.note(bodies)
        elif time.monotonic() > stop_s:
            break
        else:
            time.sleep(_IDLE_S)
    taken.note(timers.take_due())
    check_all_came(taken.numbers, count)


def _bodies(count: int, size: int = BODY_BYTES) -> list[bytes]:
    return [body_of(number, size) for number in range(count)]


def singles(timers: Timers, count: int) -> Round:
    """Put one by one, due in a day."""
    due_ms, bodies = now_ms() + FAR_MS, _bodies(count)
    start_s = time.perf_counter()
    for body in bodies:
        timers.put_one(due_ms, body)
    elapsed_s = time.perf_counter() - start_s
    assert timers.take_due() == []
    return Round(count / elapsed_s)


def batches(timers: Timers, count: int) -> Round:
    """Put lists, due in a day."""
    due_ms = (now_ms() + FAR_MS + np.random.randint(0, FAR_MS, count)).tolist()
    bodies = _bodies(count)
    start_s = time.perf_counter()
    timers.put_many(due_ms, bodies)
    elapsed_s = time.perf_counter() - start_s
    assert timers.take_due() == []
    return Round(count / elapsed_s)


def due_now(timers: Timers, count: int, size: int = BODY_BYTES) -> Round:
    """Put timers that are due already, and take them all."""
    due_ms, bodies = [now_ms() - 1] * count, _bodies(count, size)
    taken, start_s = Taken(due_ms), time.perf_counter()
    timers.put_many(due_ms, bodies)
    take_all(timers, taken, count)
    return Round(count / (time.perf_counter() - start_s))


def small_bodies(timers: Timers, count: int) -> Round:
    """Play the same with bodies of 16 bytes."""
    return due_now(timers, count, 16)


def large_bodies(timers: Timers, count: int) -> Round:
    """Play the same with bodies of 10,000 bytes, a tenth as many."""
    return due_now(timers, max(1, count // 10), 10_000)


def same_ms(timers: Timers, count: int) -> Round:
    """Put timers that all fall due in one millisecond, three seconds ahead; count from there."""
    at_ms = now_ms() + 3_000 + count // 20
    due_ms, bodies = [at_ms] * count, _bodies(count)
    taken = Taken(due_ms)
    timers.put_many(due_ms, bodies)
    if now_ms() >= at_ms:
        raise AssertionError("the putting took longer than the timers had")
    time.sleep(max(0.0, at_ms / 1_000 - time.time()))
    take_all(timers, taken, count)
    return Round(count / (time.time() - at_ms / 1_000))


def lateness(timers: Timers, count: int, seconds: float = 5.0) -> Round:
    """Take timers that fall due evenly over some seconds, all of them put before."""
    start_ms = now_ms() + 2_000 + count // 10
    due_ms = (start_ms + np.sort(np.random.randint(0, round(seconds * 1_000), count))).tolist()
    timers.put_many(due_ms, _bodies(count))
    if now_ms() >= start_ms:
        raise AssertionError("the putting took longer than the timers had")
    taken = Taken(due_ms)
    take_all(timers, taken, count)
    values = np.percentile(taken.late_ms, [50, 99, 99.9, 100]).tolist()
    late_ms = dict(zip(("p50", "p99", "p99.9", "max"), values, strict=True))
    return Round(count / seconds, late_ms)


WORKLOADS: dict[str, Callable[[Timers, int], Round]] = {
    each.__name__: each
    for each in (
        singles,
        batches,
        due_now,
        small_bodies,
        large_bodies,
        same_ms,
        lateness,
    )
}
