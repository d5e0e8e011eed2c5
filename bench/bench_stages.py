"""Each stage of a timer's way by itself, on sizes small enough for every day.

A manual clock stands still, so no thread runs and a stage does nothing but its own work. Times are
for the whole call; `count` in the extra information says how many timers that is. Nothing here
asserts a time: `compare.py` holds the figures that are promised.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count as counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from timerstore import Config, ManualClock, TimerStore
from timerstore.services.running.provide import provide
from timerstore.services.running.steps import step
from timerstore.services.world import needs
from timerstore.services.world.state import DEQUEUE_GET, DEQUEUE_PUT, ENQUEUE_GET, ENQUEUE_PUT
from timerstore.timelog.bytes.message import MessageParts, read_message
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.jit.crc import crc32
from timerstore.timelog.jit.kernel import kernel

COUNT = 20_000
BODIES = [b"%0100d" % i for i in range(COUNT)]
ROUNDS = 5
START_MS = 1_800_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    """Return a store whose clock stands still."""
    config = Config(durability="process")
    with timerstore.open(tmp_path / "store", config=config, clock=ManualClock(START_MS)) as opened:
        yield opened


def play(benchmark: Any, stage: Callable[..., Any], prepare: Callable[[], Any]) -> None:
    """Time `stage` on what `prepare` made ready, the first round left out."""
    benchmark.extra_info["count"] = COUNT

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        prepared = prepare()
        return (() if prepared is None else (prepared,)), {}

    benchmark.pedantic(stage, setup=setup, rounds=ROUNDS, warmup_rounds=1)


def drive(store: TimerStore, services: tuple[int, ...], now_ms: int) -> None:
    """Step services until none has work left."""
    engine = store.core.engine
    while True:
        done = 0
        for service in services:
            done += step(engine.world, service, now_ms)
            need = engine.need(service)
            if need == needs.FLUSHED:
                engine.forget_need(service)
                store.flush()
            elif need != needs.NOTHING:
                provide(engine, service)
                done += 1
        if done == 0:
            return


def put(store: TimerStore, ahead_ms: int) -> timerstore.TimerIds:
    """Put COUNT timers that fall due within the second after `ahead_ms`."""
    at_ms = store.core.clock.now_ms + ahead_ms + np.random.randint(0, 1_000, COUNT)
    return store.put_many(BODIES, at_ms=at_ms)


def bench_put_many(store: TimerStore, benchmark: Any) -> None:
    """From a list of bytes into the log."""
    at_ms = START_MS + 3_600_000 + np.random.randint(0, 1_000_000, COUNT)
    play(benchmark, lambda: store.put_many(BODIES, at_ms=at_ms), lambda: None)


def bench_put(store: TimerStore, benchmark: Any) -> None:
    """One call for each timer."""

    def stage() -> None:
        for body in BODIES:
            store.put(body, at_ms=START_MS + 3_600_000)

    play(benchmark, stage, lambda: None)


def bench_enqueue(store: TimerStore, benchmark: Any) -> None:
    """From the timer topic's queue into timer log and wheel."""

    def stage() -> None:
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), store.core.clock.now_ms)

    play(benchmark, stage, lambda: put(store, 3_600_000) and None)


def bench_claim(store: TimerStore, benchmark: Any) -> None:
    """From the wheel into the near wheel."""
    ahead = counter(10, 10)

    def prepare() -> int:
        start_ms = START_MS + 1_000 * next(ahead)
        drive(store, (DEQUEUE_GET, DEQUEUE_PUT), start_ms - 5_000)  # what the last round claimed
        put(store, start_ms - START_MS)
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
        return start_ms - 1

    play(benchmark, lambda now_ms: drive(store, (DEQUEUE_GET,), now_ms), prepare)


def bench_hop(store: TimerStore, benchmark: Any) -> None:
    """From a slot of their grid to the next: one unit in, one unit out."""
    ahead, hop_ms = counter(10, 10), store.core.engine.hop_ms

    def prepare() -> int:
        start_ms = START_MS + 1_000 * next(ahead)
        drive(store, (DEQUEUE_GET, DEQUEUE_PUT), start_ms - 5_000)
        put(store, start_ms - START_MS + hop_ms)
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
        return start_ms - 1

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


def pull_all(store: TimerStore) -> int:
    """Pull and acknowledge what is there by columns; return how many."""
    got = 0
    while batch := store.pull("default", max_count=16_384, timeout=0):
        batch.ack()
        got += len(batch)
    return got


def fire_all(store: TimerStore) -> None:
    """Put COUNT timers and let them fire."""
    put(store, 0)
    store.core.clock.advance(timedelta(seconds=2))  # type: ignore[union-attr]


def bench_pull(store: TimerStore, benchmark: Any) -> None:
    """From the log into Arrow columns, acknowledged."""

    def stage() -> None:
        assert pull_all(store) == COUNT

    play(benchmark, stage, lambda: fire_all(store))


def bench_consume(store: TimerStore, benchmark: Any) -> None:
    """From the log into objects, each acknowledged by itself."""

    def stage() -> None:
        for delivery in store.consume("default", timeout=0):
            delivery.ack()

    play(benchmark, stage, lambda: fire_all(store))


def bench_cancel_many(store: TimerStore, benchmark: Any) -> None:
    """Cancel timers that lie in the wheel."""

    def prepare() -> list[str]:
        ids = list(put(store, 3_600_000))
        drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
        return ids

    play(benchmark, store.cancel_many, prepare)


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


def bench_recovery(killed: Path, benchmark: Any, tmp_path: Path) -> None:
    """Open a store after a kill: scan the log, cut what is torn, enqueue again."""
    number = counter()

    def prepare() -> Path:
        return Path(shutil.copytree(killed, tmp_path / str(next(number))))

    def stage(path: Path) -> None:
        timerstore.open(path, clock=ManualClock(START_MS)).abandon()

    play(benchmark, stage, prepare)


@kernel
def _crc_many(data: Any, length: int, count: int) -> int:
    total = 0
    for _ in range(count):
        total ^= crc32(data, 0, length)
    return total


@pytest.mark.parametrize("length", [100, 420])
def bench_crc(benchmark: Any, length: int) -> None:
    """CRC-32 of cached bytes."""
    data = np.arange(length, dtype=np.uint8)
    play(benchmark, lambda: _crc_many(data, length, COUNT), lambda: None)


@kernel
def _read_many(table: Any, offsets: Any, found: Any, verify: bool) -> int:
    bad = 0
    for i in range(len(offsets)):
        bad += read_message(segment_at(table, 0), offsets[i], found, verify)
    return bad


@pytest.mark.parametrize("verify", [False, True], ids=["frame", "frame-and-crc"])
def bench_read_message(store: TimerStore, benchmark: Any, verify: bool) -> None:
    """Find a message's parts and properties, without or with its checksum."""
    put(store, 3_600_000)
    entries = store.core.engine.queues.read(0, 0, COUNT)
    offsets = entries["offset"].astype(np.int64)
    table, found = store.core.engine.commitlog.shared_table, MessageParts()
    assert _read_many(table, offsets, found, verify) == 0
    play(benchmark, lambda: _read_many(table, offsets, found, verify), lambda: None)
