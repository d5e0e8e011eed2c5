"""The sizes of a store that a test can make many times, and how few maps it can do with."""

import pytest

from timerstore import Config, Tuning
from timerstore.services.engine import engine

SMALL = Config(
    durability="process",
    retention_ms=3_600_000,
    tuning=Tuning(
        wheel_slot_count=128,
        roll_window_slots=40,
        commitlog_segment_bytes=1 << 16,
        consumequeue_segment_bytes=2000,
        timerlog_segment_bytes=5248,
        near_count_max=1 << 16,
    ),
)


def few_maps(patch: pytest.MonkeyPatch, count: int = 0) -> None:
    """Have so many segments of a store stay mapped; no fewer than it can do with."""
    patch.setattr(engine, "maps_allowed", lambda _: count)
