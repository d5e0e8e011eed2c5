"""A store for the notebooks: what a shop would schedule, in small."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import timerstore

COUNT = int(os.environ.get("TIMERSTORE_NOTEBOOK_TIMERS", "300000"))
"""Timers of the store; CI makes a smaller one."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def make(path: Path, count: int = COUNT) -> Path:
    """Make a store: reminders by day, retries soon, renewals in weeks, a campaign at one instant.

    A twentieth falls due at once, and is consumed, so that there is some lateness to look at.
    """
    rng = np.random.default_rng(7)
    now_ms = time.time_ns() // 1_000_000
    parts = {
        "reminders": _by_day(rng, now_ms, count // 2),
        "retries": now_ms + rng.exponential(10 * 60_000, count // 4).astype(np.int64) + 30_000,
        "renewals": now_ms + rng.integers(3 * DAY_MS, 13 * DAY_MS, count // 10),
        "campaign": np.full(count // 10, (now_ms // DAY_MS + 2) * DAY_MS + 9 * HOUR_MS),
    }
    config = timerstore.Config(durability="process", commitlog_segment_bytes=64 << 20)
    with timerstore.open(path, config=config) as store:
        for topic, due_ms in parts.items():
            bodies = np.full((len(due_ms), 80), 65, np.uint8)
            store.put_many(bodies, topic=topic, at_ms=due_ms)
        _fire_some(store, rng, count // 20)
    return path


def _by_day(rng: np.random.Generator, now_ms: int, count: int) -> np.ndarray:
    """Return times of the next fortnight, most of them in the morning or in the evening."""
    days = now_ms // DAY_MS + 1 + np.minimum(rng.geometric(0.18, count), 13)
    morning = rng.random(count) < 0.6
    hours = np.where(morning, rng.normal(9, 1.5, count), rng.normal(19, 2, count))
    return days * DAY_MS + (np.clip(hours, 0, 23.99) * HOUR_MS).astype(np.int64)


def _fire_some(store: timerstore.TimerStore, rng: np.random.Generator, count: int) -> None:
    """Let timers fall due within a second and a half, and consume them."""
    soon_ms = store.core.clock.now_ms + rng.integers(100, 1_500, count)
    store.put_many(np.full((count, 80), 66, np.uint8), topic="due", at_ms=soon_ms)
    left = count
    while left > 0:
        batch = store.pull("due", timeout=30)
        assert len(batch), "nothing came for half a minute"
        batch.ack()
        left -= len(batch)
