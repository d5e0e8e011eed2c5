"""Fixtures for tests of programs that use a store; pytest finds them where timerstore is installed.

Nothing of the store is imported before a test asks for one, and then as it is written: pytest
rewrites the assertions in all modules of what brings a plugin, and kernels cannot be compiled then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from timerstore.services.world.clock import ManualClock
    from timerstore.store.store import TimerStore

START_MS = 1_800_000_000_000


class _AsWritten:
    """Finds the modules of the store before pytest does."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Ask all other finders; None for modules of others."""
        if not name.startswith("timerstore."):
            return None
        others = [each for each in sys.meta_path if each is not self]
        ours = [each for each in others if not type(each).__module__.startswith("_pytest.")]
        return next(filter(None, (each.find_spec(name, path, target) for each in ours)), None)


sys.meta_path.insert(0, _AsWritten())


@pytest.fixture
def timers_clock() -> ManualClock:
    """Return the clock of `timers`, which stands at 2027-01-15 08:00 UTC until it is moved."""
    import timerstore

    return timerstore.ManualClock(START_MS)


@pytest.fixture
def timers(tmp_path: Path, timers_clock: ManualClock) -> Iterator[TimerStore]:
    """Open an empty store in a folder of the test's own, with the time of `timers_clock`.

    Moving the clock fires what is due: `timers_clock.advance(timedelta(hours=1))`.
    """
    import timerstore

    config = timerstore.Config(durability="process")  # no fsync: quicker
    with timerstore.open(tmp_path / "timers", config=config, clock=timers_clock) as store:
        yield store
