"""Numbers of timers that are measured, as the result tables of the pipeline have them."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.record import Words

_EXACT_BITS: Final = 10


def lateness_told(late_ms: Words) -> Words:
    """Return lateness as it is counted: early is 0, a large one keeps its ten highest bits. O(n).

    So up to 1,023 ms it is exact, and above less than 0.2 % off.
    """
    late_ms = np.maximum(late_ms, 0)
    bits = np.frexp(late_ms.astype(np.float64))[1] - _EXACT_BITS
    shift = np.maximum(bits, 0).astype(np.int64)
    told: Words = (late_ms >> shift) << shift
    return told


def hops_to_come(hops: Words, hop: int, window: int) -> Words:
    """Return how often timers are passed on that are so many hops away: int64[n].

    A timer that is put down again goes as far as the window allows: see `wheel/place.py`.
    """
    rolled = hops > 0
    far = rolled & (hops * hop >= window)
    left = (hops * hop - window) // hop + 1  # after the first time, in hops
    limit = -(-window // hop)  # from so many hops on a timer is passed on again
    again = np.maximum(0, -((limit - 1 - left) // max(1, limit - 1)))
    found: Words = np.where(rolled, 1, 0) + np.where(far, 1 + again, 0)
    return found
