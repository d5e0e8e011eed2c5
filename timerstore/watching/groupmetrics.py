"""Metrics of groups: families for Prometheus, each with the labels topic, group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from timerstore.consuming.grouptally import RESPONSE_BOUNDS_MS
from timerstore.services.looking.families import PREFIX
from timerstore.watching.topicmetrics import label_of

ROWS_MAX: Final = 500
"""Pairs of a topic and a group that are shown, those with the longest backlog first: a pair takes
seven series, and twenty more once it has response times."""

# Field of a row: the metric's name, what the field is divided by, what it is.
GAUGES: Final[dict[str, tuple[str, int, str]]] = {
    "lag_count": ("group_lag", 1, "Messages fired and not acknowledged by a group"),
    "in_flight_count": ("group_in_flight", 1, "Messages of the lag that are handed out"),
    "oldest_age_ms": (
        "group_oldest_age_seconds",
        1000,
        ("How long ago the oldest message of the lag was fired"),
    ),
}
COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "handled_count": ("group_handled", "Messages acknowledged, kept over a restart"),
    "failed_count": ("group_failed", "Messages whose handler failed, kept over a restart"),
    "retried_count": ("group_retried", "Messages sent back, kept over a restart"),
    "dead_count": ("group_dead", "Messages given up, kept over a restart"),
}
DEAD_LETTERS: Final = ("group_dead_letters", "Dead letters of a group that wait")
UNREAD: Final = ("unread_messages", "Messages of a topic that no group has ever read")
RESPONSE: Final = ("group_response_seconds", "How long handlers took, since opening")
LEFT_OUT: Final = ("groups_left_out", f"Pairs of topic and group beyond {ROWS_MAX}, not shown")

Row = Mapping[str, Any]


def shown_rows(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows that are shown, in the order of their names, and how many are not."""
    urgent = sorted(rows, key=lambda row: (-row["lag_count"], row["topic"], row["group"]))
    shown = sorted(urgent[:ROWS_MAX], key=lambda row: (row["topic"], row["group"]))
    return [{**row, **_labels_of(row)} for row in shown], len(rows) - len(shown)


def _labels_of(row: Row) -> dict[str, str]:
    return {name: label_of(row[name]) for name in ("topic", "group")}


def group_families(
    stats: Mapping[str, Any], names: Sequence[str], values: Sequence[str]
) -> Iterator[Any]:
    """Yield the families of a store's groups; `names`, `values`: labels that all have."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    rows, left_out = shown_rows(stats["groups"])
    read, labels = [row for row in rows if row["group"]], [*names, "topic", "group"]
    for field, (name, divisor, text) in GAUGES.items():
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=labels)
        for row in read:
            gauge.add_metric([*values, row["topic"], row["group"]], row[field] / divisor)
        yield gauge
    for field, (name, text) in COUNTERS.items():
        counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
        for row in read:
            counter.add_metric([*values, row["topic"], row["group"]], row[field])
        yield counter
    histogram = HistogramMetricFamily(PREFIX + RESPONSE[0], RESPONSE[1], labels=labels)
    for row in read:
        if row["response"]["count"]:
            histogram.add_metric(
                [*values, row["topic"], row["group"]],
                cumulative_buckets(row["response"]["bucket_counts"]),
                row["response"]["sum_ms"] / 1000,
            )
    yield histogram
    dead = GaugeMetricFamily(PREFIX + DEAD_LETTERS[0], DEAD_LETTERS[1], labels=[*names, "group"])
    for group, count in {row["group"]: row["dead_letter_count"] for row in read}.items():
        dead.add_metric([*values, group], count)
    yield dead
    unread = GaugeMetricFamily(PREFIX + UNREAD[0], UNREAD[1], labels=[*names, "topic"])
    for row in rows:
        if not row["group"]:
            unread.add_metric([*values, row["topic"]], row["lag_count"])
    yield unread
    gauge = GaugeMetricFamily(PREFIX + LEFT_OUT[0], LEFT_OUT[1], labels=names)
    gauge.add_metric(values, left_out)
    yield gauge


def cumulative_buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return a histogram's buckets as Prometheus has them: up to how many seconds, how many.

    >>> cumulative_buckets([1, 2, *[0] * 16])[:3]
    [('0.001', 1), ('0.002', 3), ('0.005', 3)]
    """
    ends = [*(str(bound / 1000) for bound in RESPONSE_BOUNDS_MS), "+Inf"]
    return list(zip(ends, accumulate(counts), strict=True))
