"""Time cut into buckets that a plot can show: minutes of an hour, days of a season.

All times are UTC epoch milliseconds; weeks begin on Monday, months and years where they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
BUCKETS_MAX: Final = 100
TICKS_MAX: Final = 8
LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999."""
_MONDAY_MS: Final = 4 * DAY_MS
"""The first Monday of 1970."""


class Step(NamedTuple):
    """A length of time in which a calendar is cut; months have no fixed length."""

    name: str
    ms: int
    months: int = 0

    def floor(self, ms: int) -> int:
        """Return where the bucket that holds a time begins.

        >>> Step("week", 7 * DAY_MS).floor(1_800_000_000_000) == 1_799_625_600_000
        True
        """
        if self.months:
            month = np.datetime64(ms, "ms").astype("datetime64[M]").astype(int)
            return _month_ms(int(month) // self.months * self.months)
        shift = _MONDAY_MS if self.ms % (7 * DAY_MS) == 0 else 0
        return (ms - shift) // self.ms * self.ms + shift

    def after(self, begin_ms: int, count: int = 1) -> int:
        """Return where a bucket begins that lies `count` after the one that begins then."""
        if self.months:
            month = np.datetime64(begin_ms, "ms").astype("datetime64[M]").astype(int)
            return _month_ms(int(month) + self.months * count)
        return begin_ms + count * self.ms

    def begins(self, first_ms: int, last_ms: int) -> Iterator[int]:
        """Yield where each bucket begins that lies within these times, or holds the first."""
        begin = self.floor(first_ms)
        while begin <= last_ms:
            yield begin
            begin = self.after(begin)


def _month_ms(month: int) -> int:
    return int(np.datetime64(month, "M").astype("datetime64[ms]").astype(np.int64))


def _months(name: str, count: int) -> Step:
    return Step(name, count * 30 * DAY_MS, count)


BUCKETS: Final = (
    Step("minute", MINUTE_MS),
    Step("5 minutes", 5 * MINUTE_MS),
    Step("15 minutes", 15 * MINUTE_MS),
    Step("hour", HOUR_MS),
    Step("6 hours", 6 * HOUR_MS),
    Step("day", DAY_MS),
    Step("week", 7 * DAY_MS),
    _months("month", 1),
    _months("year", 12),
    _months("10 years", 120),
    _months("century", 1200),
)
_TICKS: Final = (
    *(Step("minute", n * MINUTE_MS) for n in (1, 2, 5, 10, 15, 30)),
    *(Step("hour", n * HOUR_MS) for n in (1, 2, 3, 6, 12)),
    *(Step("day", n * DAY_MS) for n in (1, 2, 7, 14)),
    *(_months("month", n) for n in (1, 2, 3, 6)),
    *(_months("year", 12 * n) for n in (1, 2, 5, 10, 20, 50, 100, 500, 1000)),
)


def bucket_for(first_ms: int, last_ms: int, *, shortest_ms: int = MINUTE_MS) -> Step:
    """Return the finest step that cuts a span into no more than a hundred buckets.

    >>> bucket_for(0, 45 * MINUTE_MS).name, bucket_for(0, 14 * DAY_MS).name
    ('minute', '6 hours')
    >>> bucket_for(0, 90 * DAY_MS).name, bucket_for(0, 5 * 365 * DAY_MS).name
    ('day', 'month')
    """
    fitting = (
        step
        for step in BUCKETS
        if step.ms >= shortest_ms and (last_ms - first_ms) // step.ms < BUCKETS_MAX
    )
    return next(fitting, BUCKETS[-1])


def ticks(first_ms: int, last_ms: int) -> tuple[list[int], list[str]]:
    r"""Return a few round times of a span, with what to write there; the date where it changes.

    >>> ticks(1_800_000_000_000, 1_800_000_000_000 + 2 * HOUR_MS)[1]
    ['08:00\n15 Jan 2027', '08:30', '09:00', '09:30', '10:00']
    """
    span_ms = last_ms - first_ms
    step = next((each for each in _TICKS if span_ms // each.ms < TICKS_MAX), _TICKS[-1])
    places = [ms for ms in step.begins(first_ms, min(last_ms, LAST_MS)) if ms >= first_ms]
    upper, lower = {
        "minute": ("%H:%M", "%-d %b %Y"),
        "hour": ("%H:%M", "%-d %b %Y"),
        "day": ("%-d %b", "%Y"),
        "month": ("%b", "%Y"),
        "year": ("%Y", ""),
    }[step.name]
    return places, _labels(places, upper, lower)


def _labels(places: Sequence[int], upper: str, lower: str) -> list[str]:
    labels, before = [], ""
    for ms in places:
        above, below = shown(ms, upper), shown(ms, lower)
        labels.append(f"{above}\n{below}" if below != before else above)
        before = below
    return labels


def shown(ms: int, form: str) -> str:
    """Return a time as text; one beyond the year 9999 as that year's end."""
    return datetime.fromtimestamp(min(ms, LAST_MS) / 1000, UTC).strftime(form)
