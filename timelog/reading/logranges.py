"""Ranges of a log, many of them: which offsets lie in one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np

from timerstore.jit.record import Words


class LogRanges:
    """Ranges that do not overlap, kept in their order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def add(self, start: int, stop: int) -> None:
        """Add a range; O(1) behind the others."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._stops.insert(at, stop)

    def __contains__(self, offset: int) -> bool:
        """Tell whether an offset lies in a range. O(log n)."""
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._stops[at]

    def contains(self, offsets: Words) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Tell which offsets lie in a range: bool[n]."""
        starts = np.array([-(1 << 62), *self._starts], np.int64)
        stops = np.array([-(1 << 62), *self._stops], np.int64)
        inside: np.ndarray[Any, np.dtype[np.bool_]] = (
            offsets < stops[np.searchsorted(starts, offsets, "right") - 1]
        )
        return inside
