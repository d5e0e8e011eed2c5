"""How late timers are in a store that cleaning copies from all the while."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import lateness
import numpy as np
import ours

import timerstore
from timerstore import Config, Tuning

FAR_COUNT = 100_000
"""Far timers, some 33 MB: with a factor of 1 and no slack the next pass is always worth it."""
PER_SECOND = 50_000
SEGMENT_BYTES = 16 << 20
"""Filled each half second, so that there is always one to pass over."""
_WARM_S = 3.0
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Played:
    """One round."""

    late: lateness.Lateness
    copied_per_second: float
    """Bytes that cleaning copied."""


def play(path: Path, duration_s: float, *, cleaning: bool, at_pull: bool) -> Played:
    """Measure lateness beside far timers, which are copied again and again with `cleaning`."""
    config = Config(
        durability="process",
        tuning=Tuning(
            commitlog_segment_bytes=SEGMENT_BYTES,
            cleaning=cleaning,
            cleaning_factor=1,
            cleaning_slack_bytes=0,
        ),
    )
    with timerstore.open(path / "store", config=config) as store:
        for part in ours.batches(ours.make_bodies(FAR_COUNT)):
            store.put_many(part, delay_ms=np.random.randint(_DAY_MS, 30 * _DAY_MS, len(part)))
        ours.settle(store)
        lateness.measure(
            store, per_second=PER_SECOND, duration_s=_WARM_S, busy=False, at_pull=at_pull
        )
        before, start = store.stats().cleaning.copied_bytes, time.perf_counter()
        late = lateness.measure(
            store, per_second=PER_SECOND, duration_s=duration_s, busy=False, at_pull=at_pull
        )
        copied = store.stats().cleaning.copied_bytes - before
        return Played(late, copied / (time.perf_counter() - start))
