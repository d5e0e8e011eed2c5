"""Metrics of a store's parts: services, stages, levels, cleaning, copies; for both exporters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from timerstore.services.looking.families import PREFIX
from timerstore.watching.services import SERVICE_STATES

Rows = Iterable[tuple[float, tuple[str, ...]]]
"""Values, each with those of its labels."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name without a prefix, its unit as OpenTelemetry has them, how to read it."""

    kind: Literal["gauge", "counter"]
    name: str
    unit: str
    text: str
    labels: tuple[str, ...]
    rows: Callable[[Mapping[str, Any]], Rows]


def _stages(field: str, divisor: int = 1) -> Callable[[Mapping[str, Any]], Rows]:
    return lambda stats: [(each[field] / divisor, (each["name"],)) for each in stats["stages"]]


def _levels(field: str, divisor: int = 1) -> Callable[[Mapping[str, Any]], Rows]:
    return lambda stats: [
        (each[field] / divisor, (str(each["level"]),)) for each in stats["levels"] if each["end"]
    ]


def _cleaning(field: str) -> Callable[[Mapping[str, Any]], Rows]:
    return lambda stats: [(value, ()) for value in (stats["cleaning"][field],) if value is not None]


def _copies(field: str, divisor: int = 1) -> Callable[[Mapping[str, Any]], Rows]:
    return lambda stats: [(each[field] / divisor, (each["dest"],)) for each in stats["copies"]]


def _failing(stats: Mapping[str, Any]) -> Rows:
    return [(int(each["error"] is not None), (each["dest"],)) for each in stats["copies"]]


def _states(stats: Mapping[str, Any]) -> Rows:
    for each in stats["services"]:
        for state in SERVICE_STATES:
            yield int(each["state"] == state), (each["name"], state)


METRICS: Final = (
    Metric(
        *("gauge", "service_state", "1", "1 for what a service does just now, else 0"),
        *(("service", "state"), _states),
    ),
    Metric(
        *("counter", "stage_seconds", "s", "Time that was spent in a stage since opening"),
        *(("stage",), _stages("busy_ms", 1_000)),
    ),
    Metric(
        *("counter", "stage_entries", "{entry}", "Entries that a stage did since opening"),
        *(("stage",), _stages("entry_count")),
    ),
    Metric(
        *("counter", "stage_steps", "{step}", "Steps of a stage that did something"),
        *(("stage",), _stages("step_count")),
    ),
    Metric(
        *("gauge", "stage_longest_seconds", "s", "The longest step of a stage since opening"),
        *(("stage",), _stages("longest_ms", 1_000)),
    ),
    Metric(
        *("gauge", "level_waiting", "{message}", "Messages that wait in a delay level"),
        *(("level",), _levels("lag_count")),
    ),
    Metric(
        *("gauge", "level_overdue_seconds", "s", "How long a level's first message has been due"),
        *(("level",), _levels("overdue_ms", 1_000)),
    ),
    Metric(
        *("counter", "level_passed", "{message}", "Messages that a level delivered or passed by"),
        *(("level",), _levels("offset")),
    ),
    Metric(
        *("counter", "cleaning_copied", "{message}", "Messages that cleaning appended again"),
        *((), _cleaning("copied_count")),
    ),
    Metric(
        *("counter", "cleaning_copied_bytes", "By", "Their bytes"),
        *((), _cleaning("copied_bytes")),
    ),
    Metric(
        *("counter", "cleaning_segments", "{segment}", "Segments that cleaning is done with"),
        *((), _cleaning("segment_count")),
    ),
    Metric(
        *("counter", "cleaning_removed", "{segment}", "Segments that retention has removed"),
        *((), _cleaning("removed_count")),
    ),
    Metric(
        *("gauge", "cleaning_pending_bytes", "By", "Bytes of pending messages, about"),
        *((), _cleaning("pending_bytes")),
    ),
    Metric(
        *("gauge", "cleaning_could_go_bytes", "By", "Bytes that only pending timers keep"),
        *((), _cleaning("could_go_bytes")),
    ),
    Metric(
        *("gauge", "copy_lag_seconds", "s", "How long something has waited to be in a copy"),
        *(("dest",), _copies("lag_ms", 1_000)),
    ),
    Metric(
        *("gauge", "copy_lag_bytes", "By", "Bytes of the log that a copy elsewhere lacks"),
        *(("dest",), _copies("lag_bytes")),
    ),
    Metric(
        *("gauge", "copy_failing", "1", "1 while nothing can be shipped into a copy"),
        *(("dest",), _failing),
    ),
    Metric(
        *("counter", "copy_sent_bytes", "By", "Bytes sent to a copy since its follower began"),
        *(("dest",), _copies("sent_bytes")),
    ),
    Metric(
        *("counter", "copy_requests", "{request}", "Calls of a copy's file system since then"),
        *(("dest",), _copies("request_count")),
    ),
)


def part_families(
    stats: Mapping[str, Any], names: Sequence[str], values: Sequence[str]
) -> Iterator[Any]:
    """Yield the families of a store's parts; `names`, `values`: labels that all have."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    for each in METRICS:
        family = kinds[each.kind](PREFIX + each.name, each.text, labels=[*names, *each.labels])
        for value, labels in each.rows(stats):
            family.add_metric([*values, *labels], value)
        yield family
