"""Stores for the notebooks about the pipeline: a fleet of shops, one shop's month.

Each is what `example_store.py` makes, in small and with other numbers; each run makes the same.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np

import timerstore
from timerstore.timelog.bytes import format as fmt

START_MS = 1_799_049_600_000
"""2027-01-04 08:00 UTC, a Monday."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DOWN_MS = 2_000
_CONFIG = timerstore.Config(
    durability="process",
    commitlog_segment_bytes=4 << 20,
    timerlog_segment_bytes=1 << 20,
    consumequeue_segment_bytes=200_000,
)


def make_shop(
    path: Path,
    *,
    day: int = 0,
    seed: int = 0,
    count: int = 4_000,
    campaign: int = 0,
    down_ms: int = DOWN_MS,
) -> Path:
    """Make a shop's store as it stands on a day at 08:00: reminders, retries, some fired.

    At weekends it has a third of the timers. `campaign`: so many more at 09:00:00 of the next day.
    `down_ms`: how long the program was down before, so that what fell due was late.
    """
    rng = np.random.default_rng((seed, day))
    now_ms = START_MS + day * DAY_MS
    if day % 7 >= 5:
        count //= 3
    reminders = count * 3 // 4 + int(rng.integers(0, count // 40))
    parts = {
        "reminders": now_ms + 60_000 + (rng.gamma(1.2, 1.5, reminders) * DAY_MS).astype(np.int64),
        "retries": now_ms + 30_000 + rng.exponential(600_000, count // 4).astype(np.int64),
        "campaign": np.full(campaign, now_ms // DAY_MS * DAY_MS + DAY_MS + 9 * HOUR_MS),
    }
    clock = timerstore.ManualClock(now_ms - 10_000 - down_ms)
    fired_ms = now_ms - 10_000 + rng.integers(-down_ms - 9_000, 0, count // 10)
    with timerstore.open(path, config=_CONFIG, clock=clock) as store:
        for topic, due_ms in {"receipts": np.maximum(fired_ms, clock.now_ms), **parts}.items():
            if len(due_ms):
                bodies = np.full((len(due_ms), 80), 65, np.uint8)
                store.put_many(bodies, topic=topic, at_ms=due_ms)
        clock.advance(timedelta(milliseconds=100))
    clock = timerstore.ManualClock(now_ms - 10_000)
    with timerstore.open(path, config=_CONFIG, clock=clock) as store:
        clock.advance(timedelta(seconds=10))
        batch = store.pull("receipts", group="printer", max_count=count, timeout=0)
        batch.ack()
    return path


def make_fleet(folder: Path, count: int = 20) -> dict[str, str]:
    """Make so many shops, of which three are damaged, one skewed, one overdue; return their paths.

    Damaged are `shop-03`, a bit of a message; `shop-07`, a unit that points elsewhere; `shop-11`,
    which is gone. `shop-05` has a campaign at one instant.
    """
    paths = {}
    for number in range(count):
        path = folder / f"shop-{number:02d}"
        paths[path.name] = str(path)
        if number != 11:
            make_shop(path, seed=number, campaign=3_000 if number == 5 else 0)
    if count > 3:
        _flip(folder / "shop-03" / "commitlog", 100)
    if count > 7:
        _flip(folder / "shop-07" / "timerlog", 5 * fmt.UNIT_BYTES + 27)
    return paths


def _flip(log: Path, at: int) -> None:
    """Change a bit of a log, as a broken disk might."""
    with open(sorted(log.iterdir())[0], "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
