"""How far a long work is, told to whoever asked."""

from __future__ import annotations

from collections.abc import Callable

from timerstore.jit.guards import Lock

Progress = Callable[[int, int], None]
"""Takes how many bytes are done, of how many."""
Told = Callable[[int], None]
"""Takes how many bytes were done since the last call; any thread may call it."""


class Summed:
    """Adds up what threads have done, and tells the sum."""

    def __init__(self, progress: Progress | None, total: int = 1) -> None:
        """Tell nobody if `progress` is None. `total`: it may be set later, and anew."""
        self._progress, self._done, self.total = progress, 0, total
        self._lock = Lock()

    def __call__(self, count: int) -> None:
        """Add what was done since the last call."""
        with self._lock.guard():
            self._done += count
            if self._progress is not None:
                self._progress(self._done, max(self.total, self._done))
