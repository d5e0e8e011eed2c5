"""How timers are spread: over time, over slots, over topics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from timerstore.timelog.record import Words

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
FIRE_RATE_PER_S: Final = 1_010_000
"""Timers a second that were put, fired and pulled at once: `docs/benchmarks.md`, whole life. Two
cores of 2026; pass your own figure where a machine was measured."""
_EXACT_BITS: Final = 10
"""Lateness up to 1,023 ms is exact; a larger one keeps its ten highest bits: 0.1 % off."""


def count_lateness(counter: Counter[int], late_ms: Words) -> None:
    """Count lateness, early ones as 0. O(n)."""
    late_ms = np.maximum(late_ms, 0)
    bits = np.frexp(late_ms.astype(np.float64))[1] - _EXACT_BITS
    shift = np.maximum(bits, 0).astype(np.int64)
    values, counts = np.unique((late_ms >> shift) << shift, return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        counter[value] += count


def quantiles(counter: Counter[int], parts: tuple[float, ...]) -> list[int]:
    """Return quantiles of a counted distribution; 0 where it is empty.

    >>> quantiles(Counter({0: 98, 7: 2}), (0.5, 0.99, 1.0))
    [0, 7, 7]
    """
    if not counter:
        return [0] * len(parts)
    values = np.array(sorted(counter), np.int64)
    ends = np.cumsum([counter[value] for value in values.tolist()])
    ranks = np.maximum(1, np.ceil(np.array(parts) * ends[-1]))
    found: list[int] = values[np.searchsorted(ends, ranks)].tolist()
    return found


def gini(loads: Counter[int]) -> float:
    """Return the Gini coefficient of loads: 0 where all are equal, towards 1 where one has all.

    `loads`: how many slots have a load.

    >>> round(gini(Counter({1: 1, 3: 1})), 3)
    0.25
    """
    values = np.array(sorted(loads), np.float64)
    counts = np.array([loads[value] for value in sorted(loads)], np.float64)
    total, slots = (values * counts).sum(), counts.sum()
    if total == 0:
        return 0.0
    # The area below the Lorenz curve, a trapezium for each distinct load.
    share = np.cumsum(values * counts) / total
    before = np.concatenate([[0.0], share[:-1]])
    return float(1 - (counts / slots * (share + before)).sum())


@dataclass(frozen=True)
class Spread:
    """How the pending timers of a store are spread; times are UTC epoch milliseconds."""

    from_ms: int
    """Where the next hour begins: the read cursor."""
    pending_count: int
    rolled_count: int
    """Pending timers that were rolled at least once."""
    roll_unit_count: int
    """Pending timers that wait for their next roll, not for their due time."""
    topics: dict[str, int]
    hours: dict[str, dict[int, int]]
    """By topic, how many fall due in the hour that begins then."""
    minutes: dict[int, int]
    """How many fall due in the minute that begins then."""
    slot_count: int
    """Slots ahead that hold timers."""
    slot_max: int
    slot_mean: float
    slot_gini: float
    heaviest: tuple[tuple[int, int], ...]
    """(begin of the slot, timers), the heaviest first."""
    fired_count: int
    lateness: dict[int, int]
    """Fired messages by lateness in ms."""
    fire_rate_per_s: float
    """What the machine is taken to fire, from the benchmark."""

    @property
    def skew(self) -> float:
        """How many times the mean the heaviest slot holds."""
        return self.slot_max / self.slot_mean if self.slot_mean else 0.0

    @property
    def days(self) -> dict[int, int]:
        """How many fall due on the day that begins then."""
        days: Counter[int] = Counter()
        for hours in self.hours.values():
            for hour_ms, count in hours.items():
                days[hour_ms // (24 * HOUR_MS) * 24 * HOUR_MS] += count
        return dict(sorted(days.items()))

    @property
    def next_hour(self) -> dict[str, float]:
        """What the next hour asks for: timers, those of its heaviest minute, share of the rate."""
        stop_ms = self.from_ms + HOUR_MS
        due = [n for ms, n in self.minutes.items() if self.from_ms - MINUTE_MS < ms < stop_ms]
        overdue = sum(n for ms, n in self.minutes.items() if ms <= self.from_ms - MINUTE_MS)
        peak = max(due, default=0)
        return {
            "timers": sum(due) + overdue,
            "overdue": overdue,
            "peak_minute": peak,
            "peak_per_s": peak / 60,
            "peak_share": peak / 60 / self.fire_rate_per_s,
        }

    @property
    def lateness_quantiles(self) -> dict[str, int]:
        """Lateness of what was fired, ms."""
        names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
        values = quantiles(Counter(self.lateness), tuple(names.values()))
        return dict(zip(names, values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, without the tables, for JSON."""
        names = ("pending_count", "rolled_count", "roll_unit_count", "topics", "slot_count")
        figures: dict[str, Any] = {name: getattr(self, name) for name in names}
        figures |= {"slot_max": self.slot_max, "slot_mean": self.slot_mean, "skew": self.skew}
        figures |= {"slot_gini": self.slot_gini, "next_hour": self.next_hour}
        figures["heaviest"] = [{"begin_ms": ms, "timers": count} for ms, count in self.heaviest]
        figures |= {"fired_count": self.fired_count, "lateness_ms": self.lateness_quantiles}
        figures["days"] = [{"begin_ms": ms, "timers": count} for ms, count in self.days.items()]
        return figures
