"""What each peer plays; every round checks that all came, each once, none before its time.

A round returns its figures by name: timers a second, how late timers came, what it took.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import disk_bytes, usage

from peers.embedded import AT_ONCE
from peers.timers import Timers, body_of, check_all_came, now_ms, number_of

FAR_MS = 86_400_000
PATIENCE_S = 120.0
"""So long after the last one that came the next one may come."""
LOOK_ON_S = 0.1
"""So long after the last one that is wanted a look shows whether one more comes."""
PERIOD_S = 0.02
AHEAD_MS = 500
OVER_MS = 1_000
_IDLE_S = 0.0005
QUANTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}

Figures = dict[str, float]
"""`per_second`: timers, or cancels; `processor_us`: for each, of all processes. Quantiles: ms late.
Others say their units."""


@dataclass(frozen=True)
class Load:
    """What is asked of a round."""

    count: int
    lead_s: float = 2.0
    """So long after the start of the puts nothing is due yet: they are over by then."""
    seconds: float = 5.0
    """Workloads of a rate go on for so long."""
    open_again: Callable[[Timers], Timers] | None = None
    """Closes timers, and opens the same."""
    folder: Path | None = None
    """Where they are."""


@dataclass
class Taken:
    """What came, with its due times, by its number; it is read once the clock stands."""

    due_ms: Sequence[int]
    count: int = 0
    idle_s: float = 0.0
    """Processor time of this thread in looks that found nothing."""
    _parts: list[tuple[int, Sequence[bytes]]] = field(default_factory=list)

    def note(self, bodies: Sequence[bytes]) -> None:
        self._parts.append((now_ms(), bodies))
        self.count += len(bodies)

    def check(self, wanted: Collection[int]) -> None:
        """Raise if not each of the wanted ones came once, or if one came before its time."""
        numbers = [number_of(body) for _, bodies in self._parts for body in bodies]
        late_ms = self.late_ms()
        if len(late_ms) and late_ms.min() < 0:
            number = numbers[int(late_ms.argmin())]
            raise AssertionError(f"timer {number} came {-late_ms.min()} ms before its time")
        check_all_came(numbers, wanted)

    def late_ms(self) -> Any:
        """Return how late each came: int64[count]."""
        return np.array(
            [
                at_ms - self.due_ms[number_of(body)]
                for at_ms, bodies in self._parts
                for body in bodies
            ],
            np.int64,
        )

    def quantiles(self) -> Figures:
        values = np.percentile(self.late_ms(), list(QUANTILES.values())).tolist()
        return dict(zip(QUANTILES, values, strict=True))


class Meter:
    """A clock, and the processor time of all processes, from its making on."""

    def __init__(self, timers: Timers) -> None:
        self._pids = timers.pids
        self._before_s, self._start_s = usage(self._pids).processor_s, time.perf_counter()

    def figures(self, count: int, *, idle_s: float = 0) -> Figures:
        """Return what each of `count` took; `idle_s` of processor time is not counted."""
        elapsed_s = time.perf_counter() - self._start_s
        spent_s = usage(self._pids).processor_s - self._before_s - idle_s
        return {"per_second": count / elapsed_s, "processor_us": spent_s / count * 1e6}


def take_all(
    timers: Timers, taken: Taken, wanted: Collection[int], meter: Meter | None = None
) -> Figures:
    """Take until as many have come as are wanted, then look for a while whether one more comes.

    Returns what the meter said when the last one had come.
    """
    stop_s = time.monotonic() + PATIENCE_S
    while taken.count < len(wanted) and time.monotonic() < stop_s:
        before_s = time.thread_time()
        if bodies := timers.take_due():
            taken.note(bodies)
            stop_s = time.monotonic() + PATIENCE_S
        else:
            time.sleep(_IDLE_S)
            taken.idle_s += time.thread_time() - before_s
    figures = meter.figures(len(wanted), idle_s=taken.idle_s) if meter else {}
    stop_s = time.monotonic() + LOOK_ON_S
    while taken.count <= len(wanted) and time.monotonic() < stop_s:
        if more := timers.take_due():
            taken.note(more)
        else:
            time.sleep(_IDLE_S)
    taken.check(wanted)
    return figures


def _bodies(count: int, first: int = 0) -> list[bytes]:
    return [body_of(number) for number in range(first, first + count)]


def _start_ms(load: Load) -> int:
    return now_ms() + round(1_000 * load.lead_s)


def _is_put_in_time(start_ms: int) -> None:
    if now_ms() >= start_ms:
        raise AssertionError("the putting took longer than the timers had")


# --- rates


def singles(timers: Timers, load: Load) -> Figures:
    due_ms, bodies = now_ms() + FAR_MS, _bodies(load.count)
    meter = Meter(timers)
    for body in bodies:
        timers.put_one(due_ms, body)
    figures = meter.figures(load.count)
    assert timers.take_due() == []
    return figures


def batches(timers: Timers, load: Load, first: int = 0) -> Figures:
    due_ms = (now_ms() + FAR_MS + np.random.randint(0, FAR_MS, load.count)).tolist()
    bodies = _bodies(load.count, first=first)
    meter = Meter(timers)
    timers.put_many(due_ms, bodies)
    figures = meter.figures(load.count)
    assert timers.take_due() == []
    return figures


def due_now(timers: Timers, load: Load) -> Figures:
    """Put timers that are due already, and take them all."""
    due_ms, bodies = [now_ms() - 1] * load.count, _bodies(load.count)
    taken, meter = Taken(due_ms), Meter(timers)
    timers.put_many(due_ms, bodies)
    return take_all(timers, taken, range(load.count), meter)


def cancel_half(timers: Timers, load: Load) -> Figures:
    """Put timers, cancel each other one in lists; the rest comes, none of the others."""
    at_ms, count = _start_ms(load), load.count
    due_ms, bodies = [at_ms] * count, _bodies(count)
    taken, known = Taken(due_ms), timers.put_known(due_ms, bodies)
    meter = Meter(timers)
    timers.cancel_many(known[::2])
    figures = meter.figures(len(known[::2]))
    _is_put_in_time(at_ms)
    take_all(timers, taken, range(1, count, 2))
    return figures


# --- over time


def over_ten(timers: Timers, load: Load, seconds: float = 10.0) -> Figures:
    """Put timers that fall due over ten seconds; see what that takes, and how late they come."""
    count, start_ms = load.count, _start_ms(load)
    due_ms = (start_ms + np.random.randint(0, round(seconds * 1_000), count)).tolist()
    taken, bodies, meter = Taken(due_ms), _bodies(count), Meter(timers)
    timers.put_many(due_ms, bodies)
    _is_put_in_time(start_ms)
    figures = take_all(timers, taken, range(count), meter)
    return {"processor_us": figures["processor_us"], **taken.quantiles()}


def lateness(timers: Timers, load: Load, per_second: int) -> Figures:
    """Take timers while another thread puts so many a second, due within half to one and a half."""
    due_ms, stop, over = list[int](), threading.Event(), threading.Event()
    failures = list[BaseException]()
    step = round(per_second * PERIOD_S)

    def put() -> None:
        try:
            with timers.another() as mine:
                next_s = time.monotonic()
                end_s = next_s + load.seconds
                while max(next_s, time.monotonic()) < end_s and not stop.is_set():
                    part = (now_ms() + AHEAD_MS + np.random.randint(0, OVER_MS, step)).tolist()
                    first = len(due_ms)
                    due_ms.extend(part)
                    mine.put_many(part, _bodies(step, first=first))
                    next_s += PERIOD_S
                    time.sleep(max(0.0, next_s - time.monotonic()))
        except BaseException as e:
            failures.append(e)
        finally:
            over.set()

    taken, putter = Taken(due_ms), threading.Thread(target=put, name="bench-put")
    start_s = time.perf_counter()
    gc.disable()  # it would go over what came so far again and again, for 100 ms
    putter.start()
    try:
        while not over.is_set():
            if bodies := timers.take_due():
                taken.note(bodies)
            else:
                time.sleep(_IDLE_S)
        elapsed_s = time.perf_counter() - start_s
        if not failures:
            take_all(timers, taken, range(len(due_ms)))
    finally:
        gc.enable()
        stop.set()  # nobody closes the timers while the other thread puts
        putter.join()
    if failures:
        raise failures[0]
    return {"share_put": len(due_ms) / (per_second * elapsed_s), **taken.quantiles()}


# --- many pending


def pending(timers: Timers, load: Load) -> Figures:
    """Put many timers due in a day; what they take, how fast they are opened, the rates beside."""
    assert load.open_again and load.folder
    before, start_s, count = usage(timers.pids), time.perf_counter(), load.count
    for at in range(0, count, AT_ONCE):
        part = min(AT_ONCE, count - at)
        due_ms = (now_ms() + FAR_MS + np.random.randint(0, FAR_MS, part)).tolist()
        timers.put_many(due_ms, _bodies(part, first=count + at))
    figures = {"per_second": count / (time.perf_counter() - start_s)}
    gc.collect()
    after = usage(timers.pids)
    figures["private_bytes"] = after.private_bytes - before.private_bytes
    figures["disk_bytes"] = disk_bytes(load.folder)
    start_s = time.perf_counter()
    again = load.open_again(timers)
    assert again.take_due() == []
    figures["open_s"] = time.perf_counter() - start_s
    few = replace(load, count=max(100, count // 100))
    figures["batches_per_second"] = batches(again, few, 2 * count)["per_second"]
    figures["due_now_per_second"] = due_now(again, few)["per_second"]
    return figures


LATE = {"late_1k": 1_000, "late_50k": 50_000}
WORKLOADS: dict[str, Callable[[Timers, Load], Figures]] = {
    "singles": singles,
    "batches": batches,
    "due_now": due_now,
    "cancel_half": cancel_half,
    "over_ten": over_ten,
    **{name: partial(lateness, per_second=rate) for name, rate in LATE.items()},
    "pending": pending,
}
