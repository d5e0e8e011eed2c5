"""A store for the notebooks: what a shop would schedule, in small.

Its clock is a manual one that begins on a Monday in January 2027, and its numbers are drawn from a
fixed seed: each run makes the same store, so the notebooks show what is written beside them.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np

import timerstore

COUNT = 100_000
START_MS = 1_799_049_600_000
"""2027-01-04 08:00 UTC."""
RUN_MS = 60_000
DOWN_MS = 3_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_CONFIG = timerstore.Config(
    durability="process", tuning=timerstore.Tuning(commitlog_segment_bytes=64 << 20)
)


def make(path: Path, count: int = COUNT) -> Path:
    """Make a store: reminders by day, retries soon, renewals in weeks, a campaign at one instant.

    A twentieth more falls due within the first minute, and is consumed. In its last three seconds
    the program is down, so there is some lateness to look at.
    """
    rng = np.random.default_rng(7)
    day_ms = START_MS // DAY_MS * DAY_MS
    parts = {
        "reminders": _by_day(rng, day_ms, count // 2),
        "retries": START_MS + 120_000 + rng.exponential(600_000, count // 4).astype(np.int64),
        "renewals": START_MS + rng.integers(3 * DAY_MS, 13 * DAY_MS, count // 10),
        "campaign": np.full(count // 10, day_ms + DAY_MS + 9 * HOUR_MS),
        "due": START_MS + rng.integers(100, RUN_MS, count // 20),
    }
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=_CONFIG, clock=clock) as store:
        for topic, due_ms in parts.items():
            bodies = np.full((len(due_ms), 80), 65, np.uint8)
            store.put_many(bodies, topic=topic, at_ms=due_ms)
        clock.advance(timedelta(milliseconds=RUN_MS - DOWN_MS))
    clock = timerstore.ManualClock(START_MS + RUN_MS)
    with timerstore.open(path, config=_CONFIG, clock=clock) as store:
        clock.advance(timedelta(seconds=1))
        left = len(parts["due"])
        while left > 0:
            batch = store.pull("due", timeout=30)
            assert len(batch), "nothing came for half a minute"
            batch.ack()
            left -= len(batch)
    return path


def _by_day(rng: np.random.Generator, day_ms: int, count: int) -> np.ndarray:
    """Return times of the next fortnight, most of them in the morning or in the evening."""
    days = np.minimum(rng.geometric(0.18, count), 13)
    morning = rng.random(count) < 0.6
    hours = np.where(morning, rng.normal(9, 1.5, count), rng.normal(19, 2, count))
    return day_ms + days * DAY_MS + (np.clip(hours, 0, 23.99) * HOUR_MS).astype(np.int64)
