"""Rules about time: is today as the last runs were, is anything old that waits?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from timerstore.pipeline.finding import DistributionRule, Finding, judged
from timerstore.pipeline.storetables import StoreTables
from timerstore.pipeline.thresholds import Thresholds
from timerstore.validation.evidence import Example
from timerstore.validation.timeaxis import DAY_MS, MINUTE_MS, shown
from timerstore.validation.words import counted, duration

LAST_RUNS: Final = 7
LAST_WEEKS: Final = 4
RUNS_LEAST: Final = 2
"""Earlier runs that a comparison needs."""
_TOLD: Final = 5
_SMOOTHING: Final = 0.5

_LOOK: Final = (
    "Look in the report at what changed, and ask whoever puts these timers whether that was "
    "intended."
)
DRIFT_DUE: Final = DistributionRule(
    "drift_due", "the population stability index of how far ahead timers are due", _LOOK
)
DRIFT_LATENESS: Final = DistributionRule(
    "drift_lateness",
    "the population stability index of how late the last day's timers fired",
    "The machine or its disk is busier than before, or the program did not run: see timerstore "
    "top.",
)
DRIFT_LOAD: Final = DistributionRule(
    "drift_load", "the population stability index of units in a slot", _LOOK
)
DRIFT_PENDING: Final = DistributionRule(
    "drift_pending", "how many times more, or fewer, timers wait than in the last runs", _LOOK
)
AGE_OVERDUE: Final = DistributionRule(
    "age_overdue",
    "seconds since the first pending timer was due",
    "The store does not fire. Check whether the program runs, whether firing is paused, and "
    "whether the disk has room: see timerstore health.",
)
AGE_UNREAD: Final = DistributionRule(
    "age_unread",
    "seconds since the first message was fired that a group has not read",
    "A group does not keep up, or has no consumer any more: see timerstore groups. The messages "
    "that it has not read are kept.",
)
AGE_DEAD: Final = DistributionRule(
    "age_dead",
    "dead letters",
    "Run timerstore dead list to see what failed, mend it, then run timerstore dead retry.",
)


def time_findings(seen: StoreTables, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what the rules about drift and age find."""
    for rule, profile, what in (
        (DRIFT_DUE, "due_profile", "due times"),
        (DRIFT_LATENESS, "late_profile", "lateness"),
        (DRIFT_LOAD, "load_profile", "loads of slots"),
    ):
        yield _drift(seen, thresholds, rule, profile, what)
    yield _pending(seen, thresholds)
    yield _overdue(seen, thresholds)
    yield _unread(seen, thresholds)
    yield _dead(seen, thresholds)


# --- drift


def stability_index(now: Sequence[float], before: Sequence[float]) -> float:
    """Return the population stability index of two counted distributions; 0: they are alike.

    Bins that both lack are left out, and what two samples of one distribution differ by on average
    is taken off, so that few timers make no drift.

    >>> stability_index([500, 500], [500, 500]), round(stability_index([900, 100], [500, 500]), 1)
    (0.0, 0.9)
    """
    a, b = np.array(now, np.float64), np.array(before, np.float64)
    used = (a > 0) | (b > 0)
    a, b = a[used], b[used]
    if len(a) < 2 or not a.sum() or not b.sum():
        return 0.0
    chance = (len(a) - 1) * (1 / a.sum() + 1 / b.sum())
    p, q = (each + _SMOOTHING for each in (a, b))
    p, q = p / p.sum(), q / q.sum()
    return max(0.0, float(((p - q) * np.log(p / q)).sum() - chance))


def references(seen: StoreTables) -> list[list[dict[str, Any]]]:
    """Return the earlier runs to compare with: the last ones, those of the same day of the week.

    A week repeats, so what is as on the same day of an earlier week is no drift.
    """
    day = seen.store["at_ms"] // DAY_MS
    weekly = [each for each in seen.history if (day - each["at_ms"] // DAY_MS) % 7 == 0]
    weekly = [each for each in weekly if each["at_ms"] // DAY_MS != day][:LAST_WEEKS]
    return [found for found in (seen.history[:LAST_RUNS], weekly) if found]


def _unjudged(rule: DistributionRule, thresholds: Thresholds, seen: StoreTables) -> Finding:
    says = f"{counted(len(seen.history), 'earlier run')}: too few to compare with."
    return judged(rule, thresholds.limits[rule.name], 0.0, says, checked=0)


def _drift(
    seen: StoreTables, thresholds: Thresholds, rule: DistributionRule, profile: str, what: str
) -> Finding:
    """Compare a profile with the last runs, then those of the same weekday: the nearer counts."""
    now = np.array(seen.store[profile], np.float64)
    found = []
    for runs in references(seen):
        before = np.array([each[profile] for each in runs], np.float64)
        if before.sum():
            found.append((stability_index(now.tolist(), before.sum(axis=0).tolist()), len(runs)))
    if len(seen.history) < RUNS_LEAST or not found:
        return _unjudged(rule, thresholds, seen)
    value, count = min(found)
    says = f"Against {counted(count, 'earlier run')} the index of {what} is {value:.2f}."
    return judged(rule, thresholds.limits[rule.name], value, says, checked=int(now.sum()))


def _pending(seen: StoreTables, thresholds: Thresholds) -> Finding:
    if len(seen.history) < RUNS_LEAST:
        return _unjudged(DRIFT_PENDING, thresholds, seen)
    now = max(1, seen.store["pending"])
    found = []
    for runs in references(seen):
        before = max(1.0, float(np.median([each["pending"] for each in runs])))
        found.append((max(now / before, before / now), before))
    value, before = min(found)
    says = f"{counted(now, 'timer')} wait; in earlier runs it was {before:,.0f}."
    limits = thresholds.limits[DRIFT_PENDING.name]
    return judged(DRIFT_PENDING, limits, value, says, checked=max(now, int(before)))


# --- age


def _overdue(seen: StoreTables, thresholds: Thresholds) -> Finding:
    minute_ms, timers = seen.column("due", "minute_ms"), seen.column("due", "timers")
    at_ms = seen.store["at_ms"]
    late = minute_ms + MINUTE_MS <= at_ms
    count, says, age_ms = int(timers[late].sum()), "Nothing is overdue.", 0
    if count:
        first_ms = int(minute_ms[late].min())
        age_ms = at_ms - first_ms - MINUTE_MS
        when = shown(first_ms, "%-d %b %Y %H:%M")
        says = f"{counted(count, 'timer')} overdue; the first was due at {when} UTC, "
        says += f"{duration(at_ms - first_ms)} ago."
    limits = thresholds.limits[AGE_OVERDUE.name]
    return judged(AGE_OVERDUE, limits, age_ms / 1_000, says, checked=int(timers.sum()))


def _unread(seen: StoreTables, thresholds: Thresholds) -> Finding:
    rows = [row for row in seen.tables["groups"].to_pylist() if row["kind"] != "dead"]
    waits = [row for row in rows if row["oldest_ms"] is not None]
    waits.sort(key=lambda row: row["oldest_ms"])
    says, value, places = "No group has anything to read.", 0.0, []
    if waits:
        ages_ms = [max(0, seen.store["at_ms"] - row["oldest_ms"]) for row in waits]
        value = ages_ms[0] / 1_000
        says = f"Group {waits[0]['group']} has not read {counted(waits[0]['lag'], 'message')} of "
        says += f"{waits[0]['topic']}, the first for {duration(ages_ms[0])}."
        places = [
            Example(f"consumequeue/{row['topic']}/{row['queue_id']}", row["committed"] * 20, told)
            for row, age_ms in list(zip(waits, ages_ms, strict=True))[:_TOLD]
            for told in [f"group {row['group']}: {row['lag']:,} unread for {duration(age_ms)}"]
        ]
    limits = thresholds.limits[AGE_UNREAD.name]
    return judged(AGE_UNREAD, limits, value, says, checked=len(rows), places=places)


def _dead(seen: StoreTables, thresholds: Thresholds) -> Finding:
    rows = [row for row in seen.tables["groups"].to_pylist() if row["kind"] == "dead"]
    rows.sort(key=lambda row: -row["lag"])
    count = sum(row["lag"] for row in rows)
    says = f"{counted(count, 'dead letter')}, most of group {rows[0]['group']}." if count else ""
    places = [
        Example(f"consumequeue/{row['topic']}/{row['queue_id']}", row["committed"] * 20, told)
        for row in rows[:_TOLD]
        for told in [f"group {row['group']}: {counted(row['lag'], 'dead letter')}"]
        if row["lag"]
    ]
    limits = thresholds.limits[AGE_DEAD.name]
    says = says or "No dead letter."
    return judged(AGE_DEAD, limits, count, says, checked=len(rows), places=places)
