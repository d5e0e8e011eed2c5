"""Metrics of a store as a whole, of its services, stages, levels, cleaning, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from timerstore.watching.metric import Metric, Rows, Told, scaled
from timerstore.watching.services import SERVICE_STATES

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
    "sync_count": "Fsyncs for those who wait for their put",
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
    "disk_bytes": "Bytes that files take of the disk, as `du` counts them",
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
    "unlinked_age_ms": "How long ago the oldest timer without a unit was stored; 0 if all have one",
}
QUANTILES: Final = {"0.5": "lateness_p50_ms", "0.99": "lateness_p99_ms", "1": "lateness_max_ms"}
_BYTES: Final = ("_bytes", "log_start", "log_end", "durable_end")
"""What the names of statistics end with that are bytes."""


def _unit(field: str) -> str:
    return "By" if field.endswith(_BYTES) else "1"


def _value(field: str, divisor: int = 1) -> Callable[[Told], Rows]:
    return lambda stats: [(scaled(stats[field], divisor), ())]


def _is_said(field: str) -> Callable[[Told], Rows]:
    return lambda stats: [(int(stats[field] is not None), ())]


def _part(part: str, field: str, divisor: int = 1, label: str = "name") -> Callable[[Told], Rows]:
    """Read a field of each of a store's parts."""
    return lambda stats: [(scaled(each[field], divisor), (each[label],)) for each in stats[part]]


def _level(field: str, divisor: int = 1) -> Callable[[Told], Rows]:
    return lambda stats: [
        (scaled(each[field], divisor), (str(each["level"]),))
        for each in stats["levels"]
        if each["end"]
    ]


def _cleaning(field: str) -> Callable[[Told], Rows]:
    return lambda stats: [(value, ()) for value in (stats["cleaning"][field],) if value is not None]


def _copy(field: str, divisor: int = 1) -> Callable[[Told], Rows]:
    return _part("copies", field, divisor, "dest")


def _failing(stats: Told) -> Rows:
    return [(int(each["error"] is not None), (each["dest"],)) for each in stats["copies"]]


def _states(stats: Told) -> Rows:
    for each in stats["services"]:
        for state in SERVICE_STATES:
            yield int(each["state"] == state), (each["name"], state)


def _lateness(stats: Told) -> Rows:
    return [(stats[field] / 1_000, (quantile,)) for quantile, field in QUANTILES.items()]


STORE_METRICS: Final = (
    *(
        Metric("counter", field.removesuffix("_count"), _unit(field), text, (), _value(field))
        for field, text in COUNTERS.items()
    ),
    *(
        Metric("gauge", field.removesuffix("_count"), _unit(field), text, (), _value(field))
        for field, text in GAUGES.items()
    ),
    *(
        Metric("gauge", field.removesuffix("_by"), "1", text, (), _is_said(field))
        for field, text in STATES.items()
    ),
    *(
        Metric("gauge", field.removesuffix("_ms") + end, "s", text, (), _value(field, 1_000))
        for end, table in (("_timestamp_seconds", TIMES_MS), ("_seconds", AGES_MS))
        for field, text in table.items()
    ),
    Metric(
        *("gauge", "lateness_seconds", "s"),
        "How long after their due time timers were fired, since opening; quantile 1 is the most",
        *(("quantile",), _lateness),
    ),
    Metric(
        *("gauge", "service_busy_share", "1"),
        "Share of the time since opening that was spent in a service's steps",
        *(("service",), _part("services", "busy_share")),
    ),
    Metric(
        *("gauge", "service_queue_count", "1", "Entries that wait for a service"),
        *(("service",), _part("services", "queue_count")),
    ),
    Metric(
        *("counter", "service_done", "{entry}"),
        "How many entries a service has read, linked, taken or appended",
        *(("service",), _part("services", "done_count")),
    ),
    Metric(
        *("gauge", "service_state", "1"),
        f"1 for what a service does just now ({', '.join(SERVICE_STATES)}), else 0",
        *(("service", "state"), _states),
    ),
    Metric(
        *("counter", "stage_seconds", "s", "Time that was spent in a stage since opening"),
        *(("stage",), _part("stages", "busy_ms", 1_000)),
    ),
    Metric(
        *("counter", "stage_entries", "{entry}", "Entries that a stage did since opening"),
        *(("stage",), _part("stages", "entry_count")),
    ),
    Metric(
        *("counter", "stage_steps", "{step}", "Steps of a stage that did something"),
        *(("stage",), _part("stages", "step_count")),
    ),
    Metric(
        *("gauge", "stage_longest_seconds", "s", "The longest step of a stage since opening"),
        *(("stage",), _part("stages", "longest_ms", 1_000)),
    ),
    Metric(
        *("gauge", "level_waiting", "{message}", "Messages that wait in a delay level"),
        *(("level",), _level("lag_count")),
    ),
    Metric(
        *("gauge", "level_overdue_seconds", "s", "How long a level's first message has been due"),
        *(("level",), _level("overdue_ms", 1_000)),
    ),
    Metric(
        *("counter", "level_passed", "{message}", "Messages that a level delivered or passed by"),
        *(("level",), _level("offset")),
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
        *("gauge", "cleaning_pending_bytes", "By"),
        "Bytes of pending messages, about; missing until cleaning has counted them",
        *((), _cleaning("pending_bytes")),
    ),
    Metric(
        *("gauge", "cleaning_could_go_bytes", "By", "Bytes that only pending timers keep"),
        *((), _cleaning("could_go_bytes")),
    ),
    Metric(
        *("gauge", "copy_lag_seconds", "s"),
        "How long something has waited to be in a copy elsewhere; 0 if all is there",
        *(("dest",), _copy("lag_ms", 1_000)),
    ),
    Metric(
        *("gauge", "copy_lag_bytes", "By", "Bytes of the log that a copy elsewhere lacks"),
        *(("dest",), _copy("lag_bytes")),
    ),
    Metric(
        *("gauge", "copy_failing", "1", "1 while nothing can be shipped into a copy"),
        *(("dest",), _failing),
    ),
    Metric(
        *("counter", "copy_sent_bytes", "By", "Bytes sent to a copy since its follower began"),
        *(("dest",), _copy("sent_bytes")),
    ),
    Metric(
        *("counter", "copy_requests", "{request}", "Calls of a copy's file system since then"),
        *(("dest",), _copy("request_count")),
    ),
)
