"""Prometheus metrics of an open store; needs the extra `timerstore[metrics]`."""

from __future__ import annotations

import weakref
from typing import Any

from timerstore.errors import StoreClosedError
from timerstore.services.looking.families import StatsCollector
from timerstore.store.store import TimerStore
from timerstore.watching.groupmetrics import group_families
from timerstore.watching.partmetrics import part_families
from timerstore.watching.topicmetrics import topic_families


def register(store: TimerStore, registry: Any = None, **labels: str) -> StatsCollector:
    """Register a store's statistics with a Prometheus registry; return the collector.

    They are read when the registry is scraped. `labels` tell several stores of a process apart.
    Once the store is closed nothing is shown; `registry.unregister(collector)` takes it out.

    >>> collector = timerstore.metrics.register(store, name="reminders")
    """
    from prometheus_client import REGISTRY

    known = weakref.ref(store)

    def read_stats() -> dict[str, Any] | None:
        found = known()
        try:
            return None if found is None else found.stats().to_dict()
        except StoreClosedError:
            return None

    families = part_families, topic_families, group_families
    collector = StatsCollector(read_stats, labels, families)
    (REGISTRY if registry is None else registry).register(collector)
    return collector
