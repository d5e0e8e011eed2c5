"""What is measured of timerstore itself, a function for each kind of round."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import timerstore
from timerstore import Config, TimerStore

BATCH_COUNT = 16_384
BODY_BYTES = 100
FAR_MS = 3_600_000
SPREAD_MS = 100
WAIT_MS = 1_000
"""The shortest of the usual delay levels."""
_ENTRY_BYTES = 20


@dataclass(frozen=True)
class Rate:
    """Timers a second, and the bytes written for each."""

    per_second: float
    bytes_each: float


_bodies = list[bytes]()


def make_bodies(count: int) -> list[bytes]:
    """Return `count` bodies of BODY_BYTES, no two the same; the same objects each time."""
    _bodies.extend(b"%0*d" % (BODY_BYTES, i) for i in range(len(_bodies), count))
    return _bodies[:count]


def open_store(path: Path, durability: str) -> TimerStore:
    """Open a store with its services running."""
    return timerstore.open(path, config=Config(durability=durability))  # type: ignore[arg-type]


def batches(bodies: list[bytes]) -> list[list[bytes]]:
    return [bodies[i : i + BATCH_COUNT] for i in range(0, len(bodies), BATCH_COUNT)]


def settle(store: TimerStore) -> None:
    """Wait until every put is linked, and flush, so that no round pays for the one before."""
    while True:
        stats = store.stats()
        if stats.queue_index == stats.queue_end:
            break
        time.sleep(0.01)
    store.flush()


def log_bytes(store: TimerStore) -> int:
    """Return how many bytes all logs and queues have taken since the store was opened."""
    stats = store.stats()
    entries = stats.queue_end + stats.fired_count + sum(level.end for level in stats.levels)
    return stats.commitlog_end + stats.timerlog_end + _ENTRY_BYTES * entries


class _Round:
    """A clock and a byte counter around one round."""

    def __init__(self, store: TimerStore, count: int) -> None:
        self._store, self._count = store, count

    def __enter__(self) -> _Round:
        self._bytes = log_bytes(self._store)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        elapsed = time.perf_counter() - self._start
        settle(self._store)
        written = log_bytes(self._store) - self._bytes
        self.rate = Rate(self._count / elapsed, written / self._count)


def put_many(store: TimerStore, bodies: list[bytes]) -> Rate:
    """Put lists of bytes that are due in about an hour, at random milliseconds."""
    cut = batches(bodies)
    delays = [np.random.randint(FAR_MS, 2 * FAR_MS, len(part)) for part in cut]
    with _Round(store, len(bodies)) as played:
        for part, delay_ms in zip(cut, delays, strict=True):
            store.put_many(part, delay_ms=delay_ms)
    return played.rate


def put_single(store: TimerStore, bodies: list[bytes]) -> Rate:
    """Put one after the other, due in about an hour."""
    start_ms = int(time.time() * 1_000) + FAR_MS
    due_ms = (start_ms + np.random.randint(0, FAR_MS, len(bodies))).tolist()
    with _Round(store, len(bodies)) as played:
        for body, at_ms in zip(bodies, due_ms, strict=True):
            store.put(body, at_ms=at_ms)
    return played.rate


def _putting(store: TimerStore, bodies: list[bytes], topic: str) -> threading.Thread:
    cut = batches(bodies)
    delays = [np.random.randint(1, SPREAD_MS, len(part)) for part in cut]

    def run() -> None:
        for part, delay_ms in zip(cut, delays, strict=True):
            store.put_many(part, topic=topic, delay_ms=delay_ms)

    return threading.Thread(target=run, name="bench-put")


def whole_life(store: TimerStore, bodies: list[bytes]) -> Rate:
    """Put in one thread and pull by columns in another, each timer due within SPREAD_MS."""
    putter = _putting(store, bodies, "life")
    with _Round(store, len(bodies)) as played:
        putter.start()
        drain(store, "life", len(bodies))
        putter.join()
    return played.rate


def drain(store: TimerStore, topic: str, count: int) -> None:
    """Pull by columns, and acknowledge, until so many have come."""
    got = 0
    while got < count:
        batch = store.pull(topic, max_count=BATCH_COUNT, timeout=60)
        assert len(batch), f"only {got} of {count} came"
        batch.ack()
        got += len(batch)


def whole_life_waiting(store: TimerStore, bodies: list[bytes], *, level: bool) -> Rate:
    """Play whole lives that wait WAIT_MS: through the first delay level, or in the wheel.

    The rate is that from the first due time on: all were waiting for the same time before.
    """
    topic, cut = f"waiting{level}", batches(bodies)

    def run() -> None:
        for part in cut:
            if level:
                store.put_many(part, topic=topic, delay_level=1)
            else:
                store.put_many(part, topic=topic, delay_ms=WAIT_MS)

    assert store.stats().levels[0].delay_ms == WAIT_MS
    putter, before, start = threading.Thread(target=run), log_bytes(store), time.perf_counter()
    putter.start()
    drain(store, topic, len(bodies))
    elapsed = time.perf_counter() - start - WAIT_MS / 1_000
    putter.join()
    settle(store)
    return Rate(len(bodies) / elapsed, (log_bytes(store) - before) / len(bodies))


def whole_life_objects(store: TimerStore, bodies: list[bytes]) -> Rate:
    """Play the same, but each message is a `Delivery` of its own, acknowledged by itself."""
    putter = _putting(store, bodies, "object")
    got = 0
    with _Round(store, len(bodies)) as played:
        putter.start()
        for delivery in store.consume("object", timeout=30):
            delivery.ack()
            got += 1
            if got == len(bodies):
                break
        putter.join()
    assert got == len(bodies)
    return played.rate


def burst(store: TimerStore, bodies: list[bytes], spread_ms: int) -> Rate:
    """Let all timers fall due within `spread_ms`; the clock starts at the first due time."""
    topic = f"burst{spread_ms}"
    # Far enough ahead that all are linked by then, on any machine.
    start_ms = int(time.time() * 1_000) + 3_000 + len(bodies) // 200
    for part in batches(bodies):
        at_ms = start_ms + np.random.randint(0, spread_ms, len(part))
        store.put_many(part, topic=topic, at_ms=at_ms)
    settle(store)
    before = log_bytes(store)
    late_s = time.time() - start_ms / 1_000
    assert late_s < 0, "the machine is too slow for this burst: it came due while being put"
    drain(store, topic, len(bodies))
    elapsed = time.time() - start_ms / 1_000
    return Rate(len(bodies) / elapsed, (log_bytes(store) - before) / len(bodies))
