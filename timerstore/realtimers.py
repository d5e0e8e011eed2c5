"""Refusing a manual clock where timers are pending that the system clock was used for."""

from __future__ import annotations

import os

from timerstore.clockmark import is_manual
from timerstore.config import Config
from timerstore.errors import InvalidArgumentError
from timerstore.kinds import check_place
from timerstore.readonly import ReadOnlyStore
from timerstore.services.clock import ManualClock


def refuse_real_timers(
    path: str | os.PathLike[str], config: Config | None, clock: ManualClock | None
) -> None:
    """Raise InvalidArgumentError where a clock that is not forced would move real timers.

    O(1) for a store without timers, or of manual clocks alone; else it is opened to be looked at.
    """
    if not isinstance(clock, ManualClock) or clock.force:
        return
    place = check_place(path)
    if is_manual(place) or not (place / "commitlog").is_dir():
        return
    with ReadOnlyStore(place, create=False, config=config) as store:
        count = store.count()
    if count:
        raise InvalidArgumentError(
            f"{place} holds {count} real timer{'s' * (count > 1)}, and a ManualClock that is moved "
            "past their times would mark them as fired: they would never come again. Use a folder "
            "of its own for a test. To move them all the same, in a copy of the store, pass "
            "ManualClock(..., force=True)."
        )
