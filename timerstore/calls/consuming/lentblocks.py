"""Memory that is lent again: the columns of one batch lie where those of an earlier one lay.

Fresh memory costs a page fault for each 4 KiB, and giving it back interrupts the other processors.
A block is free again once nothing refers to it but this list: a slice of an array, or an Arrow
buffer over one, refers to the array that owns the memory. That asks CPython's reference counts,
which are exact only under the GIL; without it nothing is lent twice.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Final

import numpy as np

from timerstore.jit.record import Bytes

_SMALLEST_BITS: Final = 16
_LARGEST_BITS: Final = 24
"""Larger blocks, for 16 MiB of bodies at once, are not kept."""
_KEPT_MAX: Final = 4
"""Of each size: 128 MiB at most, if so much was handed out at once."""


def _owner_references() -> int:
    """Return the reference count of an array to which only one list refers, 0 if unknown."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0
    kept = [np.empty(8, np.uint8)]
    alone = _references(kept)
    part = kept[0][:4].view(np.int32)[:1]
    seen = _references(kept)
    del part
    return alone if seen == alone + 1 and _references(kept) == alone else 0


def _references(kept: list[Bytes]) -> int:
    """Return the reference count of what a list holds; from 3.14 on a variable may not count."""
    return sys.getrefcount(kept[0])


UNSHARED_REFERENCES: Final = _owner_references()


class LentBlocks:
    """Memory for batches; any thread may ask."""

    def __init__(self) -> None:
        self._known: list[deque[Bytes]] = [deque() for _ in range(_LARGEST_BITS + 1)]

    def lend(self, length: int) -> Bytes:
        """Return `length` bytes with anything in them, aligned to 16. O(1).

        No lock is taken: a block is off the list while one thread looks whether it is free, and
        is in use before it is on the list again.
        """
        bits = max(_SMALLEST_BITS, (length - 1).bit_length())
        if bits > _LARGEST_BITS or not UNSHARED_REFERENCES:
            return np.empty(length, np.uint8)
        known = self._known[bits]
        for _ in range(len(known)):
            try:
                kept = [known.pop()]
            except IndexError:  # another thread looks at it
                break
            if sys.getrefcount(kept[0]) == UNSHARED_REFERENCES:  # counted as `_references` does
                lent = kept[0][:length]
                known.append(kept[0])
                return lent
            known.appendleft(kept[0])
        memory = np.empty(1 << bits, np.uint8)
        lent = memory[:length]
        if len(known) < _KEPT_MAX:
            known.append(memory)
        return lent
