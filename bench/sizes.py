"""How much each row of the comparison measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How much of each thing one round does."""

    many: int
    single: int
    life: int
    objects: int
    burst: int
    sqlite: int
    lmdb: int
    standing: int
    synced: int
    rounds: int
    lateness_s: float
    disk: tuple[int, int]
    """Far timers, short timers."""
    month: tuple[int, int, int]
    """1,000 timers a second over this; days; seconds between two checkpoints."""
    full_month: tuple[int, int, int]
    """Timers a second, with files of the usual sizes; days; seconds between two checkpoints."""
    year: int
    """Timers due within a year."""
    rescheduled: tuple[int, int]
    """Timers; how often each gets another due time."""
    speed: tuple[int, int]
    """Far timers, short timers."""
    pending: tuple[int, int]
    first_count: int
    handled: int
    jobs: int
    steady_jobs: int
    steady_ms: int


FULL = Sizes(
    many=2_000_000,
    single=200_000,
    life=2_000_000,
    objects=500_000,
    burst=1_000_000,
    sqlite=50_000,
    lmdb=200_000,
    standing=500_000,
    synced=2_000,
    rounds=5,
    lateness_s=15,
    disk=(10_000, 10_000_000),
    month=(128, 30, 240),
    full_month=(10, 30, 600),
    year=10_000_000,
    rescheduled=(1_000_000, 10),
    speed=(10_000, 3_000_000),
    pending=(1_000_000, 10_000_000),
    first_count=3,
    handled=500_000,
    jobs=10_000,
    steady_jobs=10_000,
    steady_ms=40_000,
)
QUICK = Sizes(
    many=500_000,
    single=50_000,
    life=500_000,
    objects=200_000,
    burst=300_000,
    sqlite=20_000,
    lmdb=100_000,
    standing=50_000,
    synced=300,
    rounds=2,
    lateness_s=4,
    disk=(1_000, 1_000_000),
    month=(512, 3, 240),
    full_month=(10, 1, 600),
    year=100_000,
    rescheduled=(20_000, 10),
    speed=(10_000, 1_000_000),
    pending=(100_000, 1_000_000),
    first_count=1,
    handled=200_000,
    jobs=10_000,
    steady_jobs=2_000,
    steady_ms=8_000,
)
