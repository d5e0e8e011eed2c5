"""How long a reader of a fast stream waits for more before it takes what is there.

Each batch costs the same 20 to 50 µs of Python, whether it holds fifty messages or five thousand.
A reader that takes what is there whenever it can is never idle, and takes a few hundred at a time.
If messages come so fast that a moment brings many more, waiting for them costs nothing but that
moment; if they come slowly nobody waits.
"""

from __future__ import annotations

from typing import Final

FAST_PER_S: Final = 250_000
"""Slower streams are never waited for: 50,000 a second are handed out within the millisecond."""
WAIT_S_MAX: Final = 0.002
_WORTH_S: Final = 0.0002
"""A shorter sleep is not worth its wake-up."""


class Pace:
    """How fast messages come for one group; only hints, so any thread may call without a lock."""

    def __init__(self) -> None:
        """Begin with a stream that is not known yet."""
        self._last_s = 0.0
        self._per_s = 0.0

    def took(self, count: int, count_max: int, now_s: float) -> None:
        """Note that `count` messages were handed out, of `count_max` that were asked for."""
        elapsed_s = now_s - self._last_s
        # Who got all that was asked for has more to read already.
        self._per_s = count / elapsed_s if count < count_max and elapsed_s > 0 else 0.0
        self._last_s = now_s

    def wait_s(self, count_max: int, now_s: float) -> float:
        """Return how long to wait before `count_max` are asked for again; mostly 0."""
        if self._per_s < FAST_PER_S:
            return 0.0
        enough_s = self._last_s + min(WAIT_S_MAX, count_max / self._per_s)
        return enough_s - now_s if enough_s - now_s >= _WORTH_S else 0.0
