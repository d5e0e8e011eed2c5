"""The sizes of a store that a test can make many times, and how few maps it can do with.

A wheel is played with it where there is no pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timerstore import Config, Tuning
from timerstore.services.engine import engine

if TYPE_CHECKING:
    import pytest

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
