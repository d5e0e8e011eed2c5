"""Rules about load: can the machine fire the busiest second, which slots stand out, whose?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from timerstore.pipeline.finding import DistributionRule, Finding, judged
from timerstore.pipeline.storetables import StoreTables
from timerstore.pipeline.thresholds import Thresholds
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.jit.record import Words
from timerstore.validation.evidence import Example
from timerstore.validation.spread import gini
from timerstore.validation.timeaxis import HOUR_MS, MINUTE_MS, shown
from timerstore.validation.usedslots import WHEEL
from timerstore.validation.words import counted, duration, share, slot_name, slot_time

NEIGHBOURS: Final = 300
"""Slots on either side that a slot is compared with: five minutes of seconds."""
BUSIEST: Final = 20
_HEAVIEST_PART: Final = 0.01
_TOLD: Final = 5
_ROBUST: Final = 1.4826
"""A median of deviations times this is a standard deviation, if numbers are normal."""

_SPREAD_THEM: Final = "Spread the due times by a few random seconds: see docs/howto/capacity.md."
LOAD_SECOND: Final = DistributionRule(
    "load_second",
    "how many times its own length the machine needs to fire the busiest slot",
    f"The last timers of that slot will be late by that factor. {_SPREAD_THEM}",
)
LOAD_MINUTE: Final = DistributionRule(
    "load_minute",
    "the busiest minute, as a part of what the machine fires in a minute",
    "Spread the due times, or move a topic to a store of its own on another machine.",
)
LOAD_HOUR: Final = DistributionRule(
    "load_hour",
    "the busiest hour, as a part of what the machine fires in an hour",
    "Move a topic to a store on another machine before that hour comes.",
)
SKEW_NEIGHBOURS: Final = DistributionRule(
    "skew_neighbours",
    "the robust z-score of the slot that stands out most among its neighbours",
    f"If nobody intended the peak, ask who puts these timers. {_SPREAD_THEM}",
)
SKEW_GINI: Final = DistributionRule(
    "skew_gini",
    "the Gini coefficient of the minutes that a topic uses: 0 all equal, towards 1 all in one",
    f"If the topic is no campaign, spread its timers. {_SPREAD_THEM}",
)
SKEW_HEAVIEST: Final = DistributionRule(
    "skew_heaviest",
    "the share of a topic's timers in the heaviest 1 % of the minutes that it uses",
    f"If the topic is no campaign, spread its timers. {_SPREAD_THEM}",
)


def load_findings(seen: StoreTables, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what the rules about load find."""
    limits, rate = thresholds.limits, thresholds.fire_rate_per_s
    precision_ms = seen.store["precision_ms"]
    live = seen.column("slot_load", "live")
    if rate is None:
        for rule in (LOAD_SECOND, LOAD_MINUTE, LOAD_HOUR):
            says = "This was not judged, because fire_rate was not given."
            yield judged(rule, limits[rule.name], 0.0, says, checked=0)
    else:
        busiest = int(live.max(initial=0))
        needed = busiest / rate * 1_000
        says = (
            f"The busiest {slot_name(precision_ms)} has {counted(busiest, 'timer')}. At "
            f"{rate:,.0f} a second, firing them takes {duration(needed)}."
        )
        places = _slot_places(seen, np.argsort(-live, kind="stable")[:1])
        value = needed / precision_ms
        yield judged(
            LOAD_SECOND, limits[LOAD_SECOND.name], value, says, checked=len(live), places=places
        )
        yield _load_of(seen, thresholds, LOAD_MINUTE, MINUTE_MS, rate)
        yield _load_of(seen, thresholds, LOAD_HOUR, HOUR_MS, rate)
    yield _neighbours(seen, thresholds, live)
    yield _by_topic(seen, thresholds, SKEW_GINI, _gini)
    yield _by_topic(seen, thresholds, SKEW_HEAVIEST, _heaviest)


def _load_of(
    seen: StoreTables, thresholds: Thresholds, rule: DistributionRule, step_ms: int, rate: float
) -> Finding:
    """Compare the busiest minute, or hour, with what the machine fires in that time."""
    begins, back = np.unique(seen.column("due", "minute_ms") // step_ms, return_inverse=True)
    counts = np.bincount(back, seen.column("due", "timers"), minlength=len(begins))
    busiest = int(counts.max(initial=0))
    value = busiest / (rate * step_ms / 1_000)
    name = "minute" if step_ms == MINUTE_MS else "hour"
    says = f"No timer waits for any {name}."
    places = []
    if busiest:
        begin_ms = int(begins[np.argmax(counts)]) * step_ms
        when = shown(begin_ms, "%-d %b %Y %H:%M")
        says = f"The busiest {name}, {when} UTC, has {counted(busiest, 'timer')}: "
        says += f"{share(value)} of what the machine fires in it."
        chosen = seen.column("due", "minute_ms") // step_ms * step_ms == begin_ms
        topic, count = _largest_topic(seen, chosen)
        places = [Example("due", begin_ms, f"{when}: {counted(count, 'timer')} of topic {topic}")]
    limits = thresholds.limits[rule.name]
    return judged(rule, limits, value, says, checked=len(begins), places=places)


def _largest_topic(seen: StoreTables, chosen: np.ndarray) -> tuple[str, int]:
    """Return the topic that has most of the chosen rows of `due`, and how many timers."""
    counts: Counter[str] = Counter()
    timers, topics = seen.column("due", "timers")[chosen], seen.texts("due", "topic")
    for i, count in zip(np.flatnonzero(chosen).tolist(), timers.tolist(), strict=True):
        counts[topics[i]] += count
    return counts.most_common(1)[0]


def _slot_places(seen: StoreTables, rows: Words) -> list[Example]:
    """Name slots, with the topic that has most of their timers."""
    table, precision_ms = seen.tables["slot_load"].take(rows), seen.store["precision_ms"]
    return [
        Example(
            WHEEL,
            (row["index"] or 0) * fmt.SLOT_BYTES,
            f"{slot_time(row['time_ms'], precision_ms)}: {counted(row['live'], 'timer')}, "
            f"{row['top_units']:,} of topic {row['top_topic']}",
        )
        for row in table.to_pylist()
    ]


# --- slots against their neighbours


def robust_score(load: int, around: Words, empty: int) -> float:
    """Return how many deviations a load lies above its neighbours, of which some are empty.

    Of the median, not of the mean, which a peak nearby would lift. A deviation is no smaller than
    that of counts that come by chance, the square root of the median, nor than 1.
    """
    loads = np.concatenate([around, np.zeros(empty, np.int64)])
    if not len(loads):
        return 0.0
    middle = float(np.median(loads))
    deviation = _ROBUST * float(np.median(np.abs(loads - middle)))
    return float((load - middle) / max(deviation, middle**0.5, 1.0))


def _neighbours(seen: StoreTables, thresholds: Thresholds, live: Words) -> Finding:
    limits, slot = thresholds.limits[SKEW_NEIGHBOURS.name], seen.column("slot_load", "slot")
    busiest = np.argsort(-live, kind="stable")[:BUSIEST]
    scores = []
    for i in busiest.tolist():
        low, high = np.searchsorted(slot, (slot[i] - NEIGHBOURS, slot[i] + NEIGHBOURS + 1))
        around = np.delete(live[low:high], i - low)
        scores.append(robust_score(int(live[i]), around, 2 * NEIGHBOURS - len(around)))
    chosen = [i for i, score in enumerate(scores) if live[busiest[i]] >= limits.least]
    chosen.sort(key=lambda i: -scores[i])
    if not chosen:
        says = f"No slot has {counted(limits.least, 'timer')} or more."
        return judged(SKEW_NEIGHBOURS, limits, 0.0, says, checked=0)
    first = int(busiest[chosen[0]])
    places = _slot_places(seen, busiest[chosen[:_TOLD]])
    says = f"{places[0].reason}, {scores[chosen[0]]:,.0f} deviations above the "
    says += f"{2 * NEIGHBOURS} slots around it."
    value, checked = scores[chosen[0]], int(live[first])
    return judged(SKEW_NEIGHBOURS, limits, value, says, checked=checked, places=places)


# --- minutes of a topic


def _gini(loads: Words) -> float:
    return gini(Counter(loads.tolist()))


def _heaviest(loads: Words) -> float:
    count = max(1, int(len(loads) * _HEAVIEST_PART))
    return float(np.sort(loads)[-count:].sum() / loads.sum())


def _by_topic(
    seen: StoreTables,
    thresholds: Thresholds,
    rule: DistributionRule,
    measure: Callable[[Words], float],
) -> Finding:
    """Measure how the timers of each topic are spread over minutes; the worst topic counts."""
    limits = thresholds.limits[rule.name]
    names, back = np.unique(np.array(seen.texts("due", "topic"), str), return_inverse=True)
    timers, minute_ms = seen.column("due", "timers"), seen.column("due", "minute_ms")
    found = []
    for number, name in enumerate(names.tolist()):
        loads = timers[back == number]
        total = int(loads.sum())
        if total >= limits.least:
            begin_ms = int(minute_ms[back == number][np.argmax(loads)])
            found.append((measure(loads), name, total, begin_ms, int(loads.max())))
    found.sort(reverse=True)
    if not found:
        says = f"No topic has {counted(limits.least, 'timer')} or more."
        return judged(rule, limits, 0.0, says, checked=0)
    value, name, total, begin_ms, peak = found[0]
    when = shown(begin_ms, "%-d %b %Y %H:%M")
    if rule is SKEW_GINI:
        what = f"a Gini coefficient of {value:.2f}"
    else:
        what = f"{share(value)} in the heaviest 1 % of their minutes"
    says = f"{counted(total, 'timer')} of topic {name} have {what}; {peak:,} are due at {when} UTC."
    places = [
        Example("due", ms, f"topic {topic}: {measured:.2f}, {most:,} of {all_of_it:,} in a minute")
        for measured, topic, all_of_it, ms, most in found[:_TOLD]
    ]
    return judged(rule, limits, value, says, checked=total, places=places)
