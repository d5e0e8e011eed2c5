"""Runs of indexes, [start, stop) each: what is done of a queue behind its committed index."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = list[tuple[int, int]]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges in order, none of which touches another.

    >>> merged([(5, 6), (1, 3), (3, 5), (8, 9)])
    [(1, 6), (8, 9)]
    """
    found: Ranges = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        elif start < stop:
            found.append((start, stop))
    return found
