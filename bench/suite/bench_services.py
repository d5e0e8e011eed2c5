"""Services one by one, opening after a kill; what has fired, handed to a program."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count as counter
from pathlib import Path
from typing import Any

import pytest

import timerstore
from suite.rig import BODIES, COUNT, PYTHON, START_MS, drive, play, put
from timerstore import Config, Consumer, ManualClock, TimerStore, Tuning
from timerstore.services.cleaning.cleaning import Cleaner
from timerstore.services.world.state import (
    DELIVER_LEVELS,
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
)


def bench_enqueue(store: TimerStore, benchmark: Any) -> None:
    """From the timer topic's queue into timer log and wheel."""

    def stage() -> None:
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), store.core.clock.now_ms)

    play(benchmark, stage, lambda: put(store, 3_600_000) and None)


def _claimed(store: TimerStore, more_ms: int = 0) -> Any:
    """Return what makes timers ready to be claimed, and says until when."""
    ahead = counter(10, 10)

    def prepare() -> int:
        start_ms = START_MS + 1_000 * next(ahead)
        drive(store, (DEQUEUE_GET, DEQUEUE_PUT), start_ms - 5_000)  # what the last round claimed
        put(store, start_ms - START_MS + more_ms)
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
        return start_ms - 1

    return prepare


def bench_claim(store: TimerStore, benchmark: Any) -> None:
    """From the wheel into the near wheel."""
    play(benchmark, lambda now_ms: drive(store, (DEQUEUE_GET,), now_ms), _claimed(store))


def bench_hop(store: TimerStore, benchmark: Any) -> None:
    """From a slot of their grid to the next: one unit in, one unit out."""
    prepare = _claimed(store, store.core.engine.hop_ms)
    play(benchmark, lambda now_ms: drive(store, (DEQUEUE_GET,), now_ms), prepare)


def bench_fire(store: TimerStore, benchmark: Any) -> None:
    """From the near wheel into the log, in the order of due time."""
    ahead = counter(10, 10)

    def prepare() -> int:
        start_ms = START_MS + 1_000 * next(ahead)
        put(store, start_ms - START_MS)
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
        drive(store, (DEQUEUE_GET, DEQUEUE_PUT), start_ms - 1)
        return start_ms + 1_000

    play(benchmark, lambda now_ms: drive(store, (DEQUEUE_GET, DEQUEUE_PUT), now_ms), prepare)


def bench_deliver_levels(store: TimerStore, benchmark: Any) -> None:
    """From a delay level's queue into the log."""
    clock = store.core.clock

    def stage() -> None:
        drive(store, (DELIVER_LEVELS,), clock.now_ms + 10_000)

    play(benchmark, stage, lambda: store.put_many(BODIES, delay_level=1) and None)


def bench_flush(store: TimerStore, benchmark: Any) -> None:
    """Write a checkpoint after COUNT timers were linked to slots all over two days."""

    def prepare() -> None:
        store.put_many(BODIES, delay_ms=[8_000 * i + 5_000 for i in range(COUNT)])
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)

    play(benchmark, store.flush, prepare)


def bench_whole_life(folder: Path, benchmark: Any) -> None:
    """Open a store, put timers that are due, pull and acknowledge all; then it is closed."""
    numbers, lives = counter(), 5 * COUNT

    def stage() -> None:
        path, left = folder / str(next(numbers)), lives
        with timerstore.open(path, config=Config(durability="process")) as store:
            for _ in range(5):
                store.put_many(BODIES, topic="t", delay_ms=0)
            while left:
                batch = store.pull("t", group="g", max_count=COUNT, timeout=10)
                batch.ack()
                left -= len(batch)
        shutil.rmtree(path)

    play(benchmark, stage, count=lives)


@pytest.fixture
def cleaned(folder: Path) -> Iterator[TimerStore]:
    """Return a store that cleans whenever it may."""
    tuning = Tuning(commitlog_segment_bytes=8 << 20, cleaning_factor=1, cleaning_slack_bytes=0)
    config = Config(durability="process", tuning=tuning)
    with timerstore.open(folder / "store", config=config, clock=ManualClock(START_MS)) as opened:
        yield opened


def bench_clean(cleaned: TimerStore, benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy what is pending out of old segments, with COUNT timers pending beside as many gone."""
    clock = cleaned.core.clock
    assert isinstance(clock, ManualClock)

    def prepare() -> None:
        monkeypatch.setattr(Cleaner, "run", lambda _, **more: None)
        cleaned.put_many(BODIES, topic="far", delay=timedelta(days=1))
        cleaned.put_many(BODIES, topic="near", delay_ms=10)
        clock.advance(timedelta(seconds=2))
        while batch := cleaned.pull("near", max_count=16_384, timeout=0):
            batch.ack()
        cleaned.flush()
        monkeypatch.undo()

    def stage() -> None:
        before = cleaned.stats().cleaning.copied_count
        cleaned.core.upkeep.cleaner.run(at_once=True)
        assert cleaned.stats().cleaning.copied_count > before

    play(benchmark, stage, prepare)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that was killed before its first checkpoint after COUNT puts."""
    path = tmp_path_factory.mktemp("killed") / "store"
    config = Config(durability="process")
    store = timerstore.open(path, config=config, clock=ManualClock(START_MS))
    put(store, 3_600_000)
    drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
    store.abandon()
    return path


def bench_recovery(killed: Path, benchmark: Any, folder: Path) -> None:
    """Open a store after a kill: scan the log, cut what is torn, enqueue again."""
    number = counter()

    def prepare() -> Path:
        path = folder / str(next(number))
        # With its holes, as a killed process leaves it: else all of the wheel would be read.
        subprocess.run(["cp", "-a", "--sparse=always", killed, path], check=True)
        return path

    def stage(path: Path) -> None:
        timerstore.open(path, clock=ManualClock(START_MS)).abandon()

    play(benchmark, stage, prepare, count=COUNT)


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
