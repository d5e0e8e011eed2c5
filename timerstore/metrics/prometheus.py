"""Prometheus metrics of an open store; needs the extra `metrics`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final

from timerstore.metrics.table import METRICS, read_told
from timerstore.watching.any_store import AnyStore

_PREFIX: Final = "timerstore_"


class StatsCollector:
    """A Prometheus collector: reads the statistics when it is scraped, and keeps nothing."""

    def __init__(self, store: AnyStore, labels: Mapping[str, str]) -> None:
        """`labels`: those that all metrics have."""
        self._store, self._labels = weakref.ref(store), dict(labels)

    def describe(self) -> list[Any]:
        """Return nothing: registering reads no statistics."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield a metric family for each metric; nothing once the store is closed."""
        from prometheus_client import core

        kinds: dict[str, Any] = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        if (stats := read_told(self._store)) is None:
            return
        for each in METRICS:
            names = [*self._labels, *each.labels]
            family = kinds[each.kind](_PREFIX + each.name, each.text, labels=names)
            for value, labels in each.rows(stats):
                told = value if each.kind == "histogram" else (value,)
                family.add_metric([*self._labels.values(), *labels], *told)
            yield family


def register(store: AnyStore, registry: Any = None, **labels: str) -> StatsCollector:
    """Register a store's statistics with a Prometheus registry; return the collector.

    They are read when the registry is scraped. `labels` tell several stores of a process apart.
    Once the store is closed nothing is shown; `registry.unregister(collector)` takes it out.

    >>> collector = timerstore.metrics.register(store, name="reminders")
    """
    from prometheus_client import REGISTRY

    collector = StatsCollector(store, labels)
    (REGISTRY if registry is None else registry).register(collector)
    return collector
