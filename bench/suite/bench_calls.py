"""A program's calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from suite.rig import BODIES, COUNT, PYTHON, ROUNDS, play, put, settle
from timerstore import TimerStore

pytestmark = pytest.mark.benchmark(timer=time.thread_time)
FEW = 2_000
BODY = BODIES[1]
FAR_MS = time.time_ns() // 1_000_000 + 86_400_000


def bench_put_many(running: TimerStore, benchmark: Any) -> None:
    """From a list of bytes into the log."""
    at_ms = FAR_MS + np.random.randint(0, 1_000_000, COUNT)
    play(benchmark, lambda: running.put_many(BODIES, at_ms=at_ms))


@pytest.mark.parametrize("way", ["at_ms", "delay", "key", "all", "level"])
def bench_put(running: TimerStore, benchmark: Any, way: str) -> None:
    """One call for each timer."""
    ways: dict[str, dict[str, Any]] = {
        "at_ms": {"at_ms": FAR_MS},
        "delay": {"delay": timedelta(hours=1)},
        "key": {"at_ms": FAR_MS, "key": "user:1234"},
        "all": {"at_ms": FAR_MS, "key": "user:1", "tag": "mail", "properties": {"a": "b"}},
        "level": {"delay_level": 16},
    }
    given = ways[way]

    def stage() -> None:
        for _ in range(FEW):
            running.put(BODY, **given)

    play(benchmark, stage, count=FEW, beside=PYTHON)


def _linked(store: TimerStore, **more: Any) -> list[str]:
    ids = list(put(store, 3_600_000, **more))
    settle(store)
    return ids


def _each(call: Callable[[str], object]) -> Callable[[list[str]], None]:
    def stage(ids: list[str]) -> None:
        for id in ids:
            call(id)

    return stage


@pytest.mark.parametrize("call", ["get", "cancel", "reschedule"])
def bench_by_id(running: TimerStore, benchmark: Any, call: str) -> None:
    """Ask for one timer that lies in the wheel, cancel it, give it another time."""
    count = (ROUNDS + 2) * FEW // COUNT + 1
    ids = iter([id for _ in range(count) for id in _linked(running)])
    calls: dict[str, Callable[[str], object]] = {
        "get": running.get,
        "cancel": running.cancel,
        "reschedule": lambda id: running.reschedule(id, at_ms=FAR_MS + 5),
    }
    play(
        benchmark,
        _each(calls[call]),
        lambda: [next(ids) for _ in range(FEW)],
        count=FEW,
        beside=PYTHON,
    )


def bench_cancel_many(running: TimerStore, benchmark: Any) -> None:
    """Cancel timers that lie in the wheel."""
    play(benchmark, running.cancel_many, lambda: _linked(running), beside=PYTHON)


@pytest.mark.parametrize("call", ["get_key", "cancel_key", "if_absent", "replace"])
def bench_by_key(running: TimerStore, benchmark: Any, call: str) -> None:
    """Ask, cancel, put on condition, by a key."""
    few = FEW // 2
    keys = [f"user:{i}" for i in range(((ROUNDS + 2) * few // COUNT + 1) * COUNT)]
    for at in range(0, len(keys), COUNT):
        _linked(running, topic="keyed", keys=keys[at : at + COUNT])
    taken = iter(keys)
    calls: dict[str, Callable[[str], object]] = {
        "get_key": lambda key: running.get_key("keyed", key),
        "cancel_key": lambda key: running.cancel_key("keyed", key),
        "if_absent": lambda key: running.put(
            BODY, topic="keyed", at_ms=FAR_MS, key=key, if_absent=True
        ),
        "replace": lambda key: running.put(
            BODY, topic="keyed", at_ms=FAR_MS, key=key, replace=True
        ),
    }
    play(
        benchmark,
        _each(calls[call]),
        lambda: [next(taken) for _ in range(few)],
        count=few,
        beside=PYTHON,
    )


def bench_pending(running: TimerStore, benchmark: Any) -> None:
    """Look at all that is pending, an object each."""
    _linked(running)

    def stage() -> None:
        assert sum(1 for _ in running.pending()) == COUNT

    play(benchmark, stage, beside=PYTHON)


def bench_pending_columns(running: TimerStore, benchmark: Any) -> None:
    """Look at all that is pending as columns."""
    _linked(running)

    def stage() -> None:
        assert running.pending_columns().num_rows == COUNT

    play(benchmark, stage)


def bench_stats(running: TimerStore, benchmark: Any) -> None:
    """Count and describe, with COUNT timers pending."""
    _linked(running)

    def stage() -> None:
        for _ in range(10):
            running.stats()

    play(benchmark, stage, count=10, beside=PYTHON)
