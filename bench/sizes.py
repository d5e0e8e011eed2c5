"""How much each row of `./run bench` measures: in full, and with `--quick`."""

from __future__ import annotations

from dataclasses import dataclass

import harness
from harness import sized


@dataclass(frozen=True)
class Sizes:
    """How much of each thing one round does."""

    rounds: int = sized(5, 2)
    many: int = sized(2_000_000, 500_000)
    single: int = sized(200_000, 50_000)
    life: int = sized(2_000_000, 500_000)
    objects: int = sized(500_000, 200_000)
    burst: int = sized(1_000_000, 300_000)
    sqlite: int = sized(50_000, 20_000)
    lmdb: int = sized(200_000, 100_000)
    standing: int = sized(500_000, 50_000)
    synced: int = sized(2_000, 300)
    lateness_s: float = sized(15, 4)
    disk: tuple[int, int] = sized((10_000, 10_000_000), (1_000, 1_000_000))
    """Far timers, short timers."""
    month: tuple[int, int, int] = sized((128, 30, 240), (512, 3, 240))
    """1,000 timers a second over this; days; seconds between two checkpoints."""
    full_month: tuple[int, int, int] = sized((10, 30, 600), (10, 1, 600))
    """Timers a second, with files of the usual sizes; days; seconds between two checkpoints."""
    year: int = sized(10_000_000, 100_000)
    """Timers due within a year."""
    rescheduled: tuple[int, int] = sized((1_000_000, 10), (20_000, 10))
    """Timers; how often each gets another due time."""
    speed: tuple[int, int] = sized((10_000, 3_000_000), (10_000, 1_000_000))
    """Far timers, short timers."""
    pending: tuple[int, int] = sized((1_000_000, 10_000_000), (100_000, 1_000_000))
    first_count: int = sized(3, 1)
    handled: int = sized(500_000, 200_000)
    jobs: int = sized(10_000, 10_000)
    steady_jobs: int = sized(10_000, 2_000)
    steady_ms: int = sized(40_000, 8_000)


Ground = harness.Ground[Sizes]
