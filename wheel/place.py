"""Placement: which slot a timer goes to.

Below, b = max(now, R) and H = 2W/3, all in slots. A timer that is due before b + W goes to its own
slot, or to R's when its own was passed. Any other becomes a *roll* on the timer's own grid: slot =
due − k·H with the smallest k that lies before b + W. So a hop is W/3 to W long, hops of many
timers do not bunch, and an id alone tells which slots can hold its timer. Placement never asks
whether a timer is due.

Every slot lies in [R, top) with top = checkpointed R + the ring's length. So no slot of the ring is
needed twice, not even when R falls back in a crash.
"""

from __future__ import annotations

from typing import Any

from timerstore.timelog.kernel import inlined
from timerstore.wheel.state import HOP, PRECISION, READ, READ_CHECKPOINTED, SLOT_COUNT, WINDOW


@inlined
def ring_top(words: Any) -> int:
    """Return the first slot that may not be used yet."""
    return words[READ_CHECKPOINTED] + 2 * words[SLOT_COUNT]


@inlined
def hops_ahead(own: int, base: int, window: int, hop: int, top: int) -> int:
    """Return the k >= 0 of the module's text; 0 stands for the timer's own slot. O(1)."""
    hops = 0
    if own >= base + window:
        hops = (own - base - window) // hop + 1
    if own - hops * hop >= top:
        hops = (own - top) // hop + 1
    return hops


@inlined
def place(words: Any, out_ms: int, now_ms: int) -> tuple[int, int]:
    """Return (slot, hops) of a timer whose unit's time is `out_ms`. O(1).

    With hops > 0 it is a roll, whose unit's time is out_ms − hops · H · precision. A slot that has
    been passed becomes R.
    """
    precision = words[PRECISION]
    read = words[READ]
    own = out_ms // precision
    base = max(now_ms // precision, read)
    hops = hops_ahead(own, base, words[WINDOW], words[HOP], ring_top(words))
    return max(own - hops * words[HOP], read), hops
