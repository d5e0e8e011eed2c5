"""Metrics: statistics of a store as Prometheus metric families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

PREFIX: Final = "timerstore_"

# Statistic: what it is. Counters count since the store was opened.
COUNTERS: Final = {
    "linked_count": "Timers that got their unit",
    "fired_count": "Timers that were fired into the log",
    "rolled_count": "Hops of timers that are due beyond the roll window",
    "rolled_bytes": "Bytes that were appended for hops",
    "put_bytes": "Bytes that calls appended: puts, deletes, what groups sent back",
    "fired_bytes": "Bytes that were appended for timers that fired",
    "dropped_count": "Cancelled timers that were reached",
    "unreadable_count": "Messages that could not be read",
    "damage_count": "Places of the store that could not be read",
    "sync_count": "Group commits",
    "checkpoint_count": "Checkpoints",
}
GAUGES: Final = {
    "pending_count": "Timers that are pending",
    "cancelled_count": "Cancelled timers whose slots are still to come",
    "near_count": "Timers of the slots just ahead, in memory",
    "enqueue_queue_count": "Timers in the enqueue-put queue",
    "dequeue_queue_count": "Timers in the dequeue-put queue",
    "queue_index": "Timer queue entries that have their unit (Q)",
    "queue_end": "Timer queue entries",
    "commitlog_start": "First byte of the commit log that is kept",
    "commitlog_end": "Bytes that were appended to the commit log",
    "durable_end": "Bytes of the commit log that are durable",
    "timerlog_end": "Bytes that were appended to the timer log",
    "disk_bytes": "Bytes on disk",
}
STATES: Final = {
    "waiting_for_space": "1 while something waits for room on the disk",
    "stopped_by": "1 once the store has stopped",
    "retention_stopped_by": "1 once nothing is removed any more, because of damage",
}
TIMES_MS: Final = {
    "read_ms": "All slots before it are fired (R), in seconds since 1970",
    "claimed_ms": "All slots before it are in memory (C), in seconds since 1970",
}
AGES_MS: Final = {
    "unlinked_age_ms": "How long ago the oldest timer without a unit was stored",
}
SERVICE_GAUGES: Final = {
    "busy_share": "Share of the time since opening that was spent in a service's steps",
    "queue_count": "Entries that wait for a service",
}
SERVICE_DONE: Final = (
    "service_done",
    ("How many entries a service has read, linked, taken or appended"),
)
Families = Callable[[Mapping[str, Any], Sequence[str], Sequence[str]], Iterator[Any]]
"""Yields families, given statistics, names of labels that all have, and their values."""
QUANTILES: Final = {"0.5": "lateness_p50_ms", "0.99": "lateness_p99_ms", "1": "lateness_max_ms"}


class StatsCollector:
    """A Prometheus collector: reads the statistics when it is scraped, and keeps nothing."""

    def __init__(
        self,
        read_stats: Callable[[], Mapping[str, Any] | None],
        labels: Mapping[str, str],
        more: Sequence[Families] = (),
    ) -> None:
        """`read_stats` returns the statistics by name, or None once the store is closed."""
        self._read_stats, self._labels, self._more = read_stats, dict(labels), more

    def describe(self) -> list[Any]:
        """Return nothing: registering reads no statistics."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield a metric family for each statistic."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._read_stats()
        if stats is None:
            return
        names, values = list(self._labels), list(self._labels.values())
        for field, text in COUNTERS.items():
            name = PREFIX + field.removesuffix("_count")
            counter = CounterMetricFamily(name, text, labels=names)
            counter.add_metric(values, stats[field])
            yield counter
        for field, text in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + field.removesuffix("_count"), text, labels=names)
            gauge.add_metric(values, stats[field])
            yield gauge
        for field, text in STATES.items():
            gauge = GaugeMetricFamily(PREFIX + field.removesuffix("_by"), text, labels=names)
            gauge.add_metric(values, int(stats[field] is not None))
            yield gauge
        for field, text in TIMES_MS.items():
            name = PREFIX + field.removesuffix("_ms") + "_timestamp_seconds"
            gauge = GaugeMetricFamily(name, text, labels=names)
            gauge.add_metric(values, stats[field] / 1000)
            yield gauge
        for field, text in AGES_MS.items():
            name = PREFIX + field.removesuffix("_ms") + "_seconds"
            gauge = GaugeMetricFamily(name, text, labels=names)
            gauge.add_metric(values, stats[field] / 1000)
            yield gauge
        for field, text in SERVICE_GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + "service_" + field, text, labels=[*names, "service"])
            for service in stats["services"]:
                gauge.add_metric([*values, service["name"]], service[field])
            yield gauge
        name, text = SERVICE_DONE
        done = CounterMetricFamily(PREFIX + name, text, labels=[*names, "service"])
        for service in stats["services"]:
            done.add_metric([*values, service["name"]], service["done_count"])
        yield done
        lateness = GaugeMetricFamily(
            PREFIX + "lateness_seconds",
            "How long after their due time timers were fired, since opening",
            labels=[*names, "quantile"],
        )
        for quantile, field in QUANTILES.items():
            lateness.add_metric([*values, quantile], stats[field] / 1000)
        yield lateness
        for families in self._more:
            yield from families(stats, names, values)
