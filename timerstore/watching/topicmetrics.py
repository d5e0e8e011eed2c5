"""Metrics of topics, each with the label topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from timerstore.watching.metric import Metric, Rows, Told, cumulative_buckets

TOPICS_MAX: Final = 1_000
"""Topics that have series of their own, forty each: those that most was put to."""
OTHERS: Final = "…other"
"""The label of all others together. No topic can have that name."""
LATENESS_ENDS_MS: Final = tuple(1 << bits for bits in (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24))
SET_DELAY_ENDS_MS: Final = tuple(1 << bits for bits in (7, 10, 13, 16, 19, 22, 25, 28, 31, 34))
"""The ends of buckets: powers of two, at which buckets of ours end."""
Row = Mapping[str, Any]
Value = Callable[[Sequence[Row]], Any]
"""What a metric says of the rows of one label."""


def series_of(topics: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the topics that are shown, by name, each with its row, then OTHERS with theirs."""
    largest = sorted(topics, key=lambda row: (-row["put_count"], row["topic"]))
    shown = sorted(largest[:TOPICS_MAX], key=lambda row: row["topic"])
    series = [(label_of(row["topic"]), [row]) for row in shown]
    return series + ([(OTHERS, largest[TOPICS_MAX:])] if len(largest) > TOPICS_MAX else [])


def label_of(topic: str) -> str:
    """Return a topic's name with what is no UTF-8, of a broker's say, escaped."""
    return topic.encode("utf-8", "backslashreplace").decode()


def _each(value: Value) -> Callable[[Told], Rows]:
    return lambda stats: [(value(rows), (topic,)) for topic, rows in stats["topics"]]


def _sum(field: str) -> Callable[[Told], Rows]:
    return _each(lambda rows: sum(row[field] for row in rows))


def _overdue(rows: Sequence[Row]) -> int:
    return sum(row["upcoming"]["overdue_count"] for row in rows)


def _upcoming(stats: Told) -> Rows:
    for topic, rows in stats["topics"]:
        ahead = [row["upcoming"]["within"] for row in rows]
        for i, (within_ms, _) in enumerate(ahead[0]):
            yield sum(each[i][1] for each in ahead), (topic, str(within_ms // 1_000))


def _histogram(field: str, ends_ms: Sequence[int]) -> Callable[[Told], Rows]:
    def value(rows: Sequence[Row]) -> tuple[list[tuple[str, int]], float]:
        pairs = [pair for row in rows for pair in row[field]["buckets"]]
        total_s = sum(row[field]["sum_ms"] for row in rows) / 1_000
        return cumulative_buckets(pairs, ends_ms), total_s

    return _each(value)


_TOPIC: Final = ("topic",)
TOPIC_METRICS: Final = (
    Metric(
        *("gauge", "topic_pending", "{timer}", "Timers of a topic that are pending"),
        *(_TOPIC, _sum("pending_count")),
    ),
    Metric(
        *("gauge", "topic_pending_bytes", "By", "Bytes of the bodies of a topic's pending timers"),
        *(_TOPIC, _sum("pending_bytes")),
    ),
    Metric(
        *("counter", "topic_put", "{timer}", "Timers put to a topic, kept over a restart"),
        *(_TOPIC, _sum("put_count")),
    ),
    Metric(
        *("counter", "topic_fired", "{timer}"),
        "Timers of a topic that were fired, kept over a restart",
        *(_TOPIC, _sum("fired_count")),
    ),
    Metric(
        *("counter", "topic_cancelled", "{timer}"),
        "Timers of a topic that were cancelled, kept over one",
        *(_TOPIC, _sum("cancelled_count")),
    ),
    Metric(
        *("counter", "topic_unreadable", "{timer}", "Timers of a topic that were lost to damage"),
        *(_TOPIC, _sum("unreadable_count")),
    ),
    Metric(
        *("gauge", "topic_overdue", "{timer}", "Pending timers of a topic whose time has passed"),
        *(_TOPIC, _each(_overdue)),
    ),
    Metric(
        *("gauge", "topic_upcoming", "{timer}"),
        "Pending timers of a topic due within so many seconds, overdue ones left out",
        *(("topic", "within"), _upcoming),
    ),
    Metric(
        *("histogram", "topic_lateness_seconds", "s"),
        "How long after their due time timers of a topic were fired, kept over a restart",
        *(_TOPIC, _histogram("lateness", LATENESS_ENDS_MS)),
    ),
    Metric(
        *("histogram", "topic_set_delay_seconds", "s"),
        "How far ahead timers of a topic were put, kept over a restart",
        *(_TOPIC, _histogram("set_delay", SET_DELAY_ENDS_MS)),
    ),
)
