"""How timers are spread: over time, over slots, over topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.validation.timeaxis import HOUR_MS, MINUTE_MS, shown
from timerstore.validation.words import counted, duration, share, slot_name, slot_time

TOPICS_NAMED: Final = 5
_EXACT_BITS: Final = 10
"""Lateness up to 1,023 ms is exact; a larger one keeps its ten highest bits: 0.1 % off."""


def count_lateness(counter: Counter[int], late_ms: Words) -> None:
    """Count lateness, early ones as 0. O(n)."""
    values, counts = np.unique(lateness_told(late_ms), return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        counter[value] += count


def lateness_told(late_ms: Words) -> Words:
    """Return lateness as it is counted: early is 0, a large one loses its low bits. O(n)."""
    late_ms = np.maximum(late_ms, 0)
    bits = np.frexp(late_ms.astype(np.float64))[1] - _EXACT_BITS
    shift = np.maximum(bits, 0).astype(np.int64)
    told: Words = (late_ms >> shift) << shift
    return told


def quantiles(counter: Counter[int], parts: tuple[float, ...]) -> list[int]:
    """Return quantiles of a counted distribution; 0 if it is empty.

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
    """Return the Gini coefficient of loads: 0 if all are equal, towards 1 if one has all.

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


@dataclass(frozen=True, repr=False)
class Spread:
    """How the pending timers of a store are spread; times are UTC epoch milliseconds.

    Printed, it is a few sentences.
    """

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
    fire_rate_per_s: float | None
    """What the machine fires, if the caller has said or measured it."""
    precision_ms: int = 1000
    """How long a slot is."""

    def __str__(self) -> str:
        """Return what a person wants to know, a sentence a line."""
        return "\n".join(sentences(self))

    __repr__ = __str__

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
        """What the next hour asks for: timers, how many are late already, its heaviest minute.

        `peak_share`, the heaviest minute as a part of the machine's rate, if that is known.
        """
        stop_ms = self.from_ms + HOUR_MS
        due = [n for ms, n in self.minutes.items() if self.from_ms - MINUTE_MS < ms < stop_ms]
        overdue = sum(n for ms, n in self.minutes.items() if ms <= self.from_ms - MINUTE_MS)
        peak = max(due, default=0)
        told: dict[str, float] = {"timers": sum(due) + overdue, "overdue": overdue}
        told |= {"peak_minute": peak, "peak_per_s": peak / 60}
        if self.fire_rate_per_s is not None:
            told["peak_share"] = peak / 60 / self.fire_rate_per_s
        return told

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


# --- in sentences that need no other page


def pending_words(spread: Spread) -> str:
    """Return how many timers wait, and when the first and the last of them fall due."""
    if not spread.pending_count or not spread.minutes:
        return "No timer is pending."
    first_ms, last_ms = min(spread.minutes), max(spread.minutes)
    when = shown(last_ms, "%-d %b %Y %H:%M")
    if first_ms != last_ms:
        is_one_year = shown(first_ms, "%Y") == shown(last_ms, "%Y")
        first = shown(first_ms, "%-d %b %H:%M" if is_one_year else "%-d %b %Y %H:%M")
        when = f"between {first} and {when}"
    return f"{counted(spread.pending_count, 'timer')} pending, due {when} UTC."


def topic_words(spread: Spread) -> str:
    """Return how many wait in each topic, the largest by name."""
    named = [f"{name} {count:,}" for name, count in [*spread.topics.items()][:TOPICS_NAMED]]
    rest = [*spread.topics.values()][TOPICS_NAMED:]
    if rest:
        named.append(f"{counted(len(rest), 'other')} {sum(rest):,}")
    return f"{'Topic' if len(spread.topics) == 1 else 'Topics'}: {', '.join(named)}."


def next_hour_words(spread: Spread) -> str:
    """Return what the hour that begins where the store stands asks for."""
    hour = spread.next_hour
    if not hour["timers"]:
        return "No timer is due within an hour."
    if hour["overdue"] == hour["timers"]:
        return f"{counted(hour['timers'], 'timer')} overdue; no other is due within an hour."
    text = f"{counted(hour['timers'], 'timer')} due within an hour"
    if hour["overdue"]:
        text += f", {hour['overdue']:,.0f} of them overdue already"
    if hour["peak_minute"]:
        text += f"; the busiest minute has {hour['peak_minute']:,.0f}"
        if hour["peak_per_s"] >= 1:
            text += f", {hour['peak_per_s']:,.0f} a second"
        if spread.fire_rate_per_s is not None:
            text += f": {share(hour['peak_per_s'], spread.fire_rate_per_s)} of what this machine "
            text += "fires"
    return text + "."


def busiest_words(spread: Spread) -> str:
    """Return which slot holds most, beside what a slot that is used holds on average."""
    if not spread.heaviest:
        return ""
    name = slot_name(spread.precision_ms)
    begin_ms, count = spread.heaviest[0]
    if count == 1:
        return f"No two timers share a {name}." if name == "second" else f"No two within {name}."
    text = f"The busiest {name}, {slot_time(begin_ms, spread.precision_ms)} UTC, has {count:,}"
    if spread.slot_count == 1:
        return f"{text}: these are all pending timers."
    if spread.roll_unit_count:
        text += ", including timers on their way to a later one"
    mean = f"{spread.slot_mean:,.1f}".removesuffix(".0")
    text += f"; those with any have {mean} on average."
    left_out = spread.pending_count - round(spread.slot_mean * spread.slot_count)
    if left_out > 0:
        text += f" {counted(left_out, 'timer')} are not in the wheel yet, so they are not counted."
    return text


def machine_words(spread: Spread) -> str:
    """Return what the machine fires, if that is known, and how long it needs for the busiest."""
    if spread.fire_rate_per_s is None:
        return ""
    text = f"This machine fires {spread.fire_rate_per_s:,.0f} timers a second"
    if not spread.slot_max:
        return text + "."
    needed = duration(1_000 * spread.slot_max / spread.fire_rate_per_s)
    return f"{text}: for the busiest {slot_name(spread.precision_ms)} it needs {needed}."


def rolled_words(spread: Spread) -> str:
    """Return which part of the timers lies beyond the wheel's window."""
    if not spread.roll_unit_count:
        return ""
    part = share(spread.roll_unit_count, spread.pending_count)
    return f"{part} lie beyond the roll window: they hop until the window reaches them."


def lateness_words(spread: Spread) -> str:
    """Return how late was what was fired."""
    if not spread.fired_count:
        return "No timer has fired yet."
    late = spread.lateness_quantiles
    text = f"{counted(spread.fired_count, 'timer')} fired"
    if late["max"] == 0:
        return f"{text}, all in the millisecond in which they were due."
    parts = []
    if spread.lateness.get(0):
        on_time = share(spread.lateness[0], spread.fired_count)
        parts.append(f"{on_time} in the millisecond in which they were due")
    if late["p50"]:
        parts.append(f"half within {duration(late['p50'])}")
    parts.append(f"99 % within {duration(late['p99'])}")
    return f"{text}: {', '.join(parts)}, the last {duration(late['max'])} late."


def sentences(spread: Spread) -> Iterator[str]:
    """Yield what a person wants to know of how timers are spread, a sentence each."""
    yield pending_words(spread)
    if spread.topics:
        yield topic_words(spread)
        stands = shown(spread.from_ms, "%-d %b %Y %H:%M:%S")
        yield (
            f"From {stands} UTC, up to which the store has fired: {_lower(next_hour_words(spread))}"
        )
    yield from filter(None, (busiest_words(spread), machine_words(spread), rolled_words(spread)))
    yield lateness_words(spread)


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
