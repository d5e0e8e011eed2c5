"""Refusing a manual clock if timers are pending that were put under the system's clock."""

from __future__ import annotations

from pathlib import Path

from timerstore.core.clockmark import is_manual
from timerstore.core.readonlycore import ReadOnlyCore
from timerstore.errors import InvalidArgumentError
from timerstore.ground.config import Config
from timerstore.services.world.clock import Clock, ManualClock
from timerstore.timelog.files.disk import Disk


def refuse_real_timers(place: Path, config: Config, clock: Clock) -> None:
    """Raise InvalidArgumentError if a clock that is not forced would move real timers.

    O(1) for a store without timers, or with only those of manual clocks; else it is opened to be
    looked at.
    """
    if not isinstance(clock, ManualClock) or clock.force:
        return
    if is_manual(place) or not (place / "commitlog").is_dir():
        return
    core = ReadOnlyCore(place, Disk(), None)
    try:
        core.lock(create=False)
        core.open(config)
        count = core.engine.pending_count(None)
    finally:
        core.give_up_opening()
    if count:
        raise InvalidArgumentError(
            f"{place} holds {count} real timer{'s' * (count > 1)}, and a ManualClock that passes "
            "their times would mark them as fired, so they would never come again. Use a new "
            "folder for a test. If you want that, in a copy of the store, pass ManualClock(..., "
            "force=True)."
        )
