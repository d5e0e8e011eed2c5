"""How many timers this machine fires, measured in a store that is thrown away."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from typing import Final

import numpy as np

from timerstore.store.store import TimerStore
from timerstore.values.config import Config
from timerstore.values.kinds import check_positive

COUNT: Final = 100_000
ROUNDS: Final = 3
BODY_BYTES: Final = 100
_AHEAD_MS: Final = 700
_WARM_COUNT: Final = 1_000


def measure_fire_rate(folder: str | os.PathLike[str] | None = None, *, count: int = COUNT) -> float:
    """Return how many timers a second this machine fires, with one program that takes them.

    Three times so many with bodies of 100 bytes fall due at one instant in a new store below
    `folder` (the machine's folder for temporary files, if None: pass one on the disk that you
    mean); the rate is that from the instant until the last was pulled, and what is returned the
    median. Takes some three seconds, and 200 MB, which are removed. What else runs on the machine
    slows it.

    >>> timerstore.pipeline.measure_fire_rate(count=5_000) > 0
    True
    """
    check_positive(count, "count")
    with tempfile.TemporaryDirectory(prefix="timerstore-rate-", dir=folder) as place:
        config = Config(durability="process")
        with TimerStore(place, config=config) as store:
            _burst(store, _WARM_COUNT)
            return count / statistics.median(_burst(store, count) for _ in range(ROUNDS))


def _burst(store: TimerStore, count: int) -> float:
    """Let so many timers fall due at once, and return in how many seconds all were pulled."""
    bodies = np.full((count, BODY_BYTES), 65, np.uint8)
    due_ms = time.time_ns() // 1_000_000 + _AHEAD_MS
    store.put_many(bodies, topic="rate", at_ms=np.full(count, due_ms))
    left = count
    while left > 0:
        batch = store.pull("rate", max_count=16_384, timeout=60)
        assert len(batch), "nothing fired for a minute"
        batch.ack()
        left -= len(batch)
    return max(1e-3, time.time_ns() / 1e9 - due_ms / 1e3)
