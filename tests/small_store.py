"""The sizes of a store that a test can make many times, and how few maps it can do with.

A wheel is played with it where there is no pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timerstore import Config
from timerstore.services.engine import engine

if TYPE_CHECKING:
    import pytest


def small(
    log_bytes: int = 1 << 16,
    queue_bytes: int = 2_000,
    timerlog_bytes: int = 5_248,
    **settings: Any,
) -> Config:
    """The settings of a store whose segments have so many bytes; `settings`: any others."""
    sizes = {
        "commitlog_segment_bytes": log_bytes,
        "consumequeue_segment_bytes": queue_bytes,
        "timerlog_segment_bytes": timerlog_bytes,
        "wheel_slot_count": 128,
        "roll_window_slots": 40,
    }
    return Config.from_mapping({"durability": "process"} | sizes | settings, "a test")


SMALL = small(retention_ms=3_600_000, near_count_max=1 << 16)


def few_maps(patch: pytest.MonkeyPatch, count: int = 0) -> None:
    """Have so many segments of a store stay mapped; no fewer than it can do with."""
    patch.setattr(engine, "maps_allowed", lambda _: count)
