"""Statistics of a store as observable instruments, named as for Prometheus."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from timerstore.errors import StoreClosedError
from timerstore.services.looking import families
from timerstore.store.store import TimerStore
from timerstore.watching import groupmetrics, topicmetrics
from timerstore.watching.groupmetrics import DEAD_LETTERS, LEFT_OUT, UNREAD, shown_rows
from timerstore.watching.partmetrics import METRICS, Metric

PREFIX: Final = "timerstore."
FRESH_S: Final = 0.5
"""Statistics so old serve all instruments of one collection, which ask one after the other."""

Values = Callable[[Mapping[str, Any]], Iterable[tuple[float, Mapping[str, str]]]]


def register(
    store: TimerStore, meter_provider: MeterProvider | None = None, **attributes: str
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

    def __init__(self, store: TimerStore, attributes: Mapping[str, str]) -> None:
        self._store, self._attributes = weakref.ref(store), dict(attributes)
        self._stats: Mapping[str, Any] | None = None
        self._read_s = float("-inf")

    def make(self, meter_provider: MeterProvider | None) -> None:
        """Make them."""
        meter = metrics.get_meter("timerstore", meter_provider=meter_provider)
        for name, unit, text, values in _gauges():
            meter.create_observable_gauge(PREFIX + name, [self._callback(values)], unit, text)
        for name, unit, text, values in _counters():
            meter.create_observable_counter(PREFIX + name, [self._callback(values)], unit, text)

    def _callback(self, values: Values) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            stats = self._read()
            for value, labels in () if stats is None else values(stats):
                yield Observation(value, {**self._attributes, **labels})

        return observe

    def _read(self) -> Mapping[str, Any] | None:
        """Return statistics of just now; None once the store is closed, or gone."""
        store, now_s = self._store(), time.monotonic()
        if store is None or now_s - self._read_s < FRESH_S:
            return None if store is None else self._stats
        try:
            self._stats = store.stats().to_dict()
        except StoreClosedError:
            self._stats = None
        self._read_s = now_s
        return self._stats


def _gauges() -> Iterator[tuple[str, str, str, Values]]:
    for field, text in families.GAUGES.items():
        unit = "By" if field.endswith(("_bytes", "_end", "_start")) else "1"
        yield field.removesuffix("_count"), unit, text, _value(field)
    for field, text in families.STATES.items():
        yield field.removesuffix("_by"), "1", text, _state(field)
    for field, text in families.TIMES_MS.items():
        yield field.removesuffix("_ms") + "_timestamp_seconds", "s", text, _value(field, 1000)
    for field, text in families.AGES_MS.items():
        yield field.removesuffix("_ms") + "_seconds", "s", text, _value(field, 1000)
    yield from _parts("gauge")
    for field, text in families.SERVICE_GAUGES.items():
        yield "service_" + field, "1", text, _services(field)
    for field, (name, divisor, text) in groupmetrics.GAUGES.items():
        unit = "s" if divisor == 1000 else "{message}"
        yield name, unit, text, _groups(field, divisor)
    for field, (name, text) in topicmetrics.GAUGES.items():
        yield name, topicmetrics.UNITS.get(field, "{timer}"), text, _topics(field)
    yield topicmetrics.OVERDUE[0], "{timer}", topicmetrics.OVERDUE[1], _overdue
    yield topicmetrics.UPCOMING[0], "{timer}", topicmetrics.UPCOMING[1], _upcoming
    yield DEAD_LETTERS[0], "{message}", DEAD_LETTERS[1], _dead_letters
    yield UNREAD[0], "{message}", UNREAD[1], _unread
    yield LEFT_OUT[0], "1", LEFT_OUT[1], lambda stats: [(shown_rows(stats["groups"])[1], {})]


def _counters() -> Iterator[tuple[str, str, str, Values]]:
    for field, text in families.COUNTERS.items():
        unit = "By" if field.endswith("_bytes") else "1"
        yield field.removesuffix("_count"), unit, text, _value(field)
    yield from _parts("counter")
    yield families.SERVICE_DONE[0], "{entry}", families.SERVICE_DONE[1], _services("done_count")
    for field, (name, text) in topicmetrics.COUNTERS.items():
        yield name, "{timer}", text, _topics(field)
    for field, (name, text) in groupmetrics.COUNTERS.items():
        yield name, "{message}", text, _groups(field, 1)


def _parts(kind: str) -> Iterator[tuple[str, str, str, Values]]:
    for each in METRICS:
        if each.kind == kind:
            yield each.name, each.unit, each.text, _part(each)


# --- what an instrument observes


def _part(metric: Metric) -> Values:
    return lambda stats: [
        (value, dict(zip(metric.labels, labels, strict=True)))
        for value, labels in metric.rows(stats)
    ]


def _value(field: str, divisor: int = 1) -> Values:
    return lambda stats: [(stats[field] if divisor == 1 else stats[field] / divisor, {})]


def _state(field: str) -> Values:
    return lambda stats: [(int(stats[field] is not None), {})]


def _services(field: str) -> Values:
    return lambda stats: [(each[field], {"service": each["name"]}) for each in stats["services"]]


def _topics(field: str) -> Values:
    return lambda stats: [
        (sum(row[field] for row in rows), {"topic": topic})
        for topic, rows in topicmetrics.series_of(stats)
    ]


def _overdue(stats: Mapping[str, Any]) -> Iterator[tuple[float, Mapping[str, str]]]:
    for topic, rows in topicmetrics.series_of(stats):
        yield topicmetrics.overdue_of(rows), {"topic": topic}


def _upcoming(stats: Mapping[str, Any]) -> Iterator[tuple[float, Mapping[str, str]]]:
    for topic, rows in topicmetrics.series_of(stats):
        for within, count in topicmetrics.upcoming_of(rows):
            yield count, {"topic": topic, "within": within}


def _groups(field: str, divisor: int) -> Values:
    def values(stats: Mapping[str, Any]) -> Iterator[tuple[float, Mapping[str, str]]]:
        for row in shown_rows(stats["groups"])[0]:
            if row["group"]:
                value = row[field] if divisor == 1 else row[field] / divisor
                yield value, {"topic": row["topic"], "group": row["group"]}

    return values


def _dead_letters(stats: Mapping[str, Any]) -> Iterable[tuple[float, Mapping[str, str]]]:
    rows = shown_rows(stats["groups"])[0]
    counts = {row["group"]: row["dead_letter_count"] for row in rows if row["group"]}
    return [(count, {"group": group}) for group, count in counts.items()]


def _unread(stats: Mapping[str, Any]) -> Iterable[tuple[float, Mapping[str, str]]]:
    rows = shown_rows(stats["groups"])[0]
    return [(row["lag_count"], {"topic": row["topic"]}) for row in rows if not row["group"]]
