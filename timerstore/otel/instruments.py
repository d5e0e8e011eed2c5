"""Statistics of a store as observable instruments, named as for Prometheus."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from timerstore.metrics.table import METRICS, Metric, Told, read_told
from timerstore.watching.any_store import AnyStore

PREFIX: Final = "timerstore."
FRESH_S: Final = 0.5
"""Statistics so old serve all instruments of one collection, which ask one after the other."""


def register(
    store: AnyStore, meter_provider: MeterProvider | None = None, **attributes: str
) -> None:
    """Make an observable instrument of each statistic of a store.

    They are read when the meter provider collects. `attributes` tell several stores of a process
    apart. Once the store is closed nothing is observed. Of topics, and of pairs of a topic with a
    group, as many are as for Prometheus. Histograms are not among them; how long handlers take
    `Tracing` records.

    >>> timerstore.otel.register(store, name="reminders")
    """
    _Instruments(store, attributes).make(meter_provider)


class _Instruments:
    """The instruments of one store, which keep it no longer than its program does."""

    def __init__(self, store: AnyStore, attributes: Mapping[str, str]) -> None:
        self._store, self._attributes = weakref.ref(store), dict(attributes)
        self._stats: Told | None = None
        self._read_s = float("-inf")

    def make(self, meter_provider: MeterProvider | None) -> None:
        """Make them."""
        meter = metrics.get_meter("timerstore", meter_provider=meter_provider)
        kinds = {
            "gauge": meter.create_observable_gauge,
            "counter": meter.create_observable_counter,
        }
        for each in METRICS:
            if each.kind in kinds:
                given = [self._callback(each)], each.unit, each.text
                kinds[each.kind](PREFIX + each.name, *given)

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            stats = self._read()
            for value, labels in () if stats is None else metric.rows(stats):
                named = dict(zip(metric.labels, labels, strict=True))
                yield Observation(value, {**self._attributes, **named})

        return observe

    def _read(self) -> Told | None:
        """Return statistics of just now; None once the store is closed, or gone."""
        now_s = time.monotonic()
        if now_s - self._read_s >= FRESH_S:
            self._stats, self._read_s = read_told(self._store), now_s
        return self._stats
