"""A metric, as both exporters know it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

Told = Mapping[str, Any]
"""Statistics of one moment, as `metrictable.py` reads them."""
Rows = Iterable[tuple[Any, tuple[str, ...]]]
"""Values, each with those of its labels; a histogram's is its buckets with the sum in seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name without a prefix, its unit as OpenTelemetry has them, how to read it."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    unit: str
    text: str
    labels: tuple[str, ...]
    rows: Callable[[Told], Rows]


def scaled(value: float, divisor: int) -> float:
    """Return a value in another unit; an integer stays one if the unit is the same."""
    return value if divisor == 1 else value / divisor


def cumulative_buckets(
    pairs: Iterable[tuple[float, int]], ends_ms: Sequence[int]
) -> list[tuple[str, int]]:
    """Return a histogram's buckets as Prometheus has them: up to how many seconds, how many.

    `pairs`: a value in ms, and how many there were of it.

    >>> cumulative_buckets([(1, 5), (6, 1), (1, 2)], [1, 4, 8])
    [('0.001', 7), ('0.004', 7), ('0.008', 8), ('+Inf', 8)]
    """
    counts = [0] * (len(ends_ms) + 1)
    for value_ms, count in pairs:
        counts[bisect_left(ends_ms, value_ms)] += count
    names = [*(str(end_ms / 1_000) for end_ms in ends_ms), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
