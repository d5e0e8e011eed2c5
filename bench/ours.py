"""A store that is measured: opened, filled, drained."""

from __future__ import annotations

import time
from pathlib import Path

import timerstore
from timerstore import Config, TimerStore

BATCH_COUNT = 16_384
BODY_BYTES = 100

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
    """Wait until every put is linked, then flush."""
    while (stats := store.stats()).queue_index < stats.queue_end:
        time.sleep(0.01)
    store.flush()


def drain(store: TimerStore, topic: str, count: int) -> int:
    """Pull by columns, and acknowledge, until so many have come; return how many came."""
    got = 0
    while got < count:
        batch = store.pull(topic, max_count=BATCH_COUNT, timeout=60)
        assert len(batch), f"only {got} of {count} came"
        batch.ack()
        got += len(batch)
    return got
