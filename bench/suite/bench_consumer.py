"""What has fired, handed to a program."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from suite.rig import BODIES, COUNT, PYTHON, play
from timerstore import Consumer, TimerStore


def pull_all(store: TimerStore) -> int:
    """Pull and acknowledge what is there by columns; return how many."""
    got = 0
    while batch := store.pull("default", max_count=16_384, timeout=0):
        batch.ack()
        got += len(batch)
    return got


def fire_all(store: TimerStore) -> None:
    """Put COUNT timers and let them fire."""
    before = store.stats().fired_count
    store.put_many(BODIES)
    while store.stats().fired_count < before + COUNT:
        time.sleep(0.001)
    time.sleep(0.02)  # the puller has looked


def bench_pull(running: TimerStore, benchmark: Any) -> None:
    """From the log into Arrow columns, acknowledged."""

    def stage() -> None:
        assert pull_all(running) == COUNT

    play(benchmark, stage, lambda: fire_all(running))


def bench_bodies(running: TimerStore, benchmark: Any) -> None:
    """From the log into a list of bytes."""

    def stage() -> None:
        got = 0
        while batch := running.pull("default", max_count=16_384, timeout=0):
            got += len(batch.bodies)
            batch.ack()
        assert got == COUNT

    play(benchmark, stage, lambda: fire_all(running))


def bench_consume(running: TimerStore, benchmark: Any) -> None:
    """From the log into objects, each acknowledged by itself."""

    def stage() -> None:
        for delivery in running.consume("default", timeout=0):
            delivery.ack()

    play(benchmark, stage, lambda: fire_all(running), beside=PYTHON)


@pytest.mark.parametrize("batch_count", [1, 32])
def bench_handle(running: TimerStore, benchmark: Any, batch_count: int) -> None:
    """From the log through a consumer's empty handler, one by one or in lists."""
    left, done = [0], threading.Event()

    def handle(taken: Any) -> None:
        left[0] -= len(taken) if batch_count > 1 else 1
        if left[0] == 0:
            done.set()

    consumer = Consumer(running, "handlers", threads=1, batch_count=batch_count)
    consumer.subscribe("handled", handle)

    def prepare() -> None:
        left[0] = COUNT
        done.clear()

    def stage() -> None:
        running.put_many(BODIES, topic="handled")
        assert done.wait(60)

    with consumer:
        play(benchmark, stage, prepare, beside=PYTHON)
