"""How long a reader of a fast stream waits for more before it takes what is there.

Each batch costs the same 20 to 50 µs of Python, whether it holds fifty messages or five thousand.
A reader that takes what is there whenever it can is never idle, and takes a few hundred at a time.
If messages come so fast that a moment brings many more, waiting for them costs nothing but that
moment; if they come slowly nobody waits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.kernel import inlined
from timerstore.jit.record import Words

FAST_PER_S: Final = 250_000
"""Slower streams are never waited for: 50,000 a second are handed out within the millisecond."""
WAIT_S_MAX: Final = 0.002
_WORTH_S: Final = 0.0002
"""A shorter sleep is not worth its wake-up."""


# What is known of it: when messages were handed out last, how many come a second; 0: not known.
LAST_NS: Final = 0
PER_S: Final = 1


def _note(words: Words, count: int, count_max: int, now_ns: int) -> int:
    """Note that `count` messages were handed out, of `count_max` that were asked for."""
    elapsed_ns = now_ns - words[LAST_NS]
    words[PER_S] = 0  # who got all that was asked for has more to read already
    if count < count_max and elapsed_ns > 0:
        words[PER_S] = count * 1_000_000_000 // elapsed_ns
    words[LAST_NS] = now_ns
    return 0


note_pace = inlined(_note)


class Pace:
    """How fast messages come for one group; only hints, so any thread may call without a lock."""

    def __init__(self) -> None:
        """Begin with a stream that is not known yet."""
        self.words = np.zeros(2, np.int64)
        self.known = self.words.data
        """The same; Python reads it faster."""

    def took(self, count: int, count_max: int, now_s: float) -> None:
        """Note that `count` messages were handed out, of `count_max` that were asked for."""
        _note(self.words, count, count_max, round(now_s * 1e9))

    def wait_s(self, count_max: int, now_s: float) -> float:
        """Return how long to wait before `count_max` are asked for again; mostly 0."""
        last_ns, per_s = self.known
        if per_s < FAST_PER_S:
            return 0.0
        enough_s = last_ns / 1e9 + min(WAIT_S_MAX, count_max / per_s)
        return enough_s - now_s if enough_s - now_s >= _WORTH_S else 0.0
