"""Metrics of topics: families for Prometheus, each with the label topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from timerstore.services.looking.families import PREFIX

TOPICS_MAX: Final = 1_000
"""Topics that have series of their own, forty each: those that most was put to."""
OTHERS: Final = "…other"
"""The label of all others together. No topic can have that name."""

# Field of a row: the metric's name, what it is.
GAUGES: Final = {
    "pending_count": ("topic_pending", "Timers of a topic that are pending"),
    "pending_bytes": ("topic_pending_bytes", "Bytes of the bodies of a topic's pending timers"),
}
COUNTERS: Final = {
    "put_count": ("topic_put", "Timers put to a topic, kept over a restart"),
    "fired_count": ("topic_fired", "Timers of a topic that were fired, kept over a restart"),
    "cancelled_count": ("topic_cancelled", "Timers of a topic that were cancelled, kept over one"),
    "unreadable_count": ("topic_unreadable", "Timers of a topic that were lost to damage"),
}
UNITS: Final = {"pending_bytes": "By"}
"""Of the gauges that are no count of timers."""
OVERDUE: Final = ("topic_overdue", "Pending timers of a topic whose time has passed")
UPCOMING: Final = ("topic_upcoming", "Pending timers of a topic due within so many seconds")
# Field of a row: the metric's name, what it is, the ends of its buckets in ms: powers of two, at
# which buckets of ours end.
HISTOGRAMS: Final = {
    "lateness": (
        "topic_lateness_seconds",
        "How long after their due time timers of a topic were fired, kept over a restart",
        tuple(1 << bits for bits in (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24)),
    ),
    "set_delay": (
        "topic_set_delay_seconds",
        "How far ahead timers of a topic were put, kept over a restart",
        tuple(1 << bits for bits in (7, 10, 13, 16, 19, 22, 25, 28, 31, 34)),
    ),
}
Row = Mapping[str, Any]


def series_of(stats: Mapping[str, Any]) -> list[tuple[str, list[Row]]]:
    """Return the topics that are shown, by name, each with its row, then OTHERS with theirs."""
    largest = sorted(stats["topics"], key=lambda row: (-row["put_count"], row["topic"]))
    shown = sorted(largest[:TOPICS_MAX], key=lambda row: row["topic"])
    series = [(label_of(row["topic"]), [row]) for row in shown]
    return series + ([(OTHERS, largest[TOPICS_MAX:])] if len(largest) > TOPICS_MAX else [])


def overdue_of(rows: Sequence[Row]) -> int:
    """Return how many timers of some topics are overdue."""
    return sum(row["upcoming"]["overdue_count"] for row in rows)


def upcoming_of(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Return how many timers of some topics are due within how many seconds."""
    ahead = [row["upcoming"]["within"] for row in rows]
    return [
        (str(within_ms // 1_000), sum(each[i][1] for each in ahead))
        for i, (within_ms, _) in enumerate(ahead[0])
    ]


def topic_families(
    stats: Mapping[str, Any], names: Sequence[str], values: Sequence[str]
) -> Iterator[Any]:
    """Yield the families of a store's topics; `names`, `values`: labels that all have."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    series = series_of(stats)
    labels = [*names, "topic"]
    for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for field, (name, description) in table.items():
            family = kind(PREFIX + name, description, labels=labels)
            for topic, rows in series:
                family.add_metric([*values, topic], sum(row[field] for row in rows))
            yield family
    overdue = GaugeMetricFamily(PREFIX + OVERDUE[0], OVERDUE[1], labels=labels)
    upcoming = GaugeMetricFamily(PREFIX + UPCOMING[0], UPCOMING[1], labels=[*labels, "within"])
    for topic, rows in series:
        overdue.add_metric([*values, topic], overdue_of(rows))
        for within, count in upcoming_of(rows):
            upcoming.add_metric([*values, topic, within], count)
    yield overdue
    yield upcoming
    for field, (name, description, ends_ms) in HISTOGRAMS.items():
        histogram = HistogramMetricFamily(PREFIX + name, description, labels=labels)
        for topic, rows in series:
            found = [row[field] for row in rows]
            buckets = cumulative_buckets([each["buckets"] for each in found], ends_ms)
            total_s = sum(each["sum_ms"] for each in found) / 1_000
            histogram.add_metric([*values, topic], buckets, total_s)
        yield histogram


def label_of(topic: str) -> str:
    """Return a topic's name with what is no UTF-8, of a broker's say, escaped."""
    return topic.encode("utf-8", "backslashreplace").decode()


def cumulative_buckets(
    histograms: Sequence[Sequence[Sequence[int]]], ends_ms: Sequence[int]
) -> list[tuple[str, int]]:
    """Return histograms together as Prometheus has them: up to how many seconds, how many.

    >>> cumulative_buckets([[(1, 5), (6, 1)], [(1, 2)]], [1, 4, 8])
    [('0.001', 7), ('0.004', 7), ('0.008', 8), ('+Inf', 8)]
    """
    pairs = [pair for histogram in histograms for pair in histogram]
    counts = [(str(end / 1_000), sum(n for top, n in pairs if top <= end)) for end in ends_ms]
    return [*counts, ("+Inf", sum(n for _, n in pairs))]
