"""What all parts of a run must know."""

from __future__ import annotations

from dataclasses import dataclass

from timerstore.audit import Rule
from timerstore.pipeline.tablefiles import TableFiles
from timerstore.pipeline.thresholds import Thresholds
from timerstore.validation.plan import SPLIT_BYTES
from timerstore.values.config import DELAY_LEVELS


@dataclass(frozen=True)
class RunOptions:
    """What was asked for, and where it is written."""

    files: TableFiles
    thresholds: Thresholds
    now_ms: int
    upto: str | None = None
    delay_levels: str = DELAY_LEVELS
    roll_window_slots: int | None = None
    split_bytes: int = SPLIT_BYTES
    own_rules: tuple[Rule, ...] = ()
    baseline_day: str | None = None
    """The day of the run that was set as the baseline."""
