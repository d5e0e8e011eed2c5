"""Metrics of groups, most with the labels topic, group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from timerstore.consuming.grouptally import RESPONSE_BOUNDS_MS
from timerstore.watching.metric import Metric, Rows, Told, cumulative_buckets, scaled
from timerstore.watching.topicmetrics import label_of

ROWS_MAX: Final = 500
"""Pairs of a topic and a group that are shown, those with the longest backlog first: a pair takes
seven series, and twenty more once it has response times."""
_ENDS_MS: Final = (*RESPONSE_BOUNDS_MS, math.inf)
_BOTH: Final = ("topic", "group")

Row = Mapping[str, Any]


def shown_rows(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows that are shown, in the order of their names, and how many are not."""
    urgent = sorted(rows, key=lambda row: (-row["lag_count"], row["topic"], row["group"]))
    shown = sorted(urgent[:ROWS_MAX], key=lambda row: (row["topic"], row["group"]))
    labelled: list[Row] = [
        {**row, **{name: label_of(row[name]) for name in _BOTH}} for row in shown
    ]
    return labelled, len(rows) - len(shown)


def _read(stats: Told) -> list[Row]:
    """Return the rows of topics that a group has read."""
    return [row for row in stats["groups"] if row["group"]]


def _each(field: str, divisor: int = 1) -> Callable[[Told], Rows]:
    return lambda stats: [
        (scaled(row[field], divisor), (row["topic"], row["group"])) for row in _read(stats)
    ]


def _response(stats: Told) -> Rows:
    for row in _read(stats):
        told = row["response"]
        if told["count"]:
            pairs = zip(_ENDS_MS, told["bucket_counts"], strict=True)
            value = cumulative_buckets(pairs, RESPONSE_BOUNDS_MS), told["sum_ms"] / 1_000
            yield value, (row["topic"], row["group"])


def _dead_letters(stats: Told) -> Rows:
    counts = {row["group"]: row["dead_letter_count"] for row in _read(stats)}
    return [(count, (group,)) for group, count in counts.items()]


def _unread(stats: Told) -> Rows:
    return [(row["lag_count"], (row["topic"],)) for row in stats["groups"] if not row["group"]]


GROUP_METRICS: Final = (
    Metric(
        *("gauge", "group_lag", "{message}", "Messages fired and not acknowledged by a group"),
        *(_BOTH, _each("lag_count")),
    ),
    Metric(
        *("gauge", "group_in_flight", "{message}", "Messages of the lag that are handed out"),
        *(_BOTH, _each("in_flight_count")),
    ),
    Metric(
        *("gauge", "group_oldest_age_seconds", "s"),
        "How long ago the oldest message of the lag was fired",
        *(_BOTH, _each("oldest_age_ms", 1_000)),
    ),
    Metric(
        *("counter", "group_handled", "{message}", "Messages acknowledged, kept over a restart"),
        *(_BOTH, _each("handled_count")),
    ),
    Metric(
        *("counter", "group_failed", "{message}"),
        "Messages whose handler failed, took too long or asked for a retry, kept over a restart",
        *(_BOTH, _each("failed_count")),
    ),
    Metric(
        *("counter", "group_retried", "{message}", "Messages sent back, kept over a restart"),
        *(_BOTH, _each("retried_count")),
    ),
    Metric(
        *("counter", "group_dead", "{message}", "Messages given up, kept over a restart"),
        *(_BOTH, _each("dead_count")),
    ),
    Metric(
        *("histogram", "group_response_seconds", "s"),
        "How long handlers took, or a batch from `pull` to `ack`, since opening",
        *(_BOTH, _response),
    ),
    Metric(
        *("gauge", "group_dead_letters", "{message}", "Dead letters of a group that wait"),
        *(("group",), _dead_letters),
    ),
    Metric(
        *("gauge", "unread_messages", "{message}"),
        "Messages of a topic that no group has ever read: they keep the log",
        *(("topic",), _unread),
    ),
    Metric(
        *("gauge", "groups_left_out", "1"),
        f"Pairs of topic and group beyond {ROWS_MAX}, not shown",
        *((), lambda stats: [(stats["groups_left_out"], ())]),
    ),
)
