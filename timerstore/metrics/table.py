"""All metrics of a store, with how they are read of its statistics; both exporters go over them.

A metric is a line of a table: kind, name, unit, what is read, what it is. Read is a statistic;
`x/1000` in other units; `services.x` of each service, whose name is the label; what ends with "!",
with its labels, by the function of that name.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, cast

from timerstore.calls.consuming.grouptally import RESPONSE_BOUNDS_MS
from timerstore.errors import StoreClosedError
from timerstore.watching.any_store import AnyStore
from timerstore.watching.services import SERVICE_STATES

Told = Mapping[str, Any]
"""Statistics of one moment, as `read_told` makes them."""
Row = Mapping[str, Any]
Rows = Iterable[tuple[Any, tuple[str, ...]]]
"""Values, each with those of its labels; a histogram's is its buckets with the sum in seconds."""

TOPICS_MAX: Final = 1_000
"""Topics that have series of their own, forty each: those that most was put to."""
OTHERS: Final = "…other"
"""The label of all others together. No topic can have that name."""
ROWS_MAX: Final = 500
"""Pairs of a topic and a group that are shown, those with the longest backlog first: a pair takes
seven series, and twenty more once it has response times."""
LATENESS_ENDS_MS: Final = tuple(1 << bits for bits in (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24))
SET_DELAY_ENDS_MS: Final = tuple(1 << bits for bits in (7, 10, 13, 16, 19, 22, 25, 28, 31, 34))
"""The ends of buckets: powers of two, at which buckets of ours end."""
QUANTILES: Final = {"0.5": "lateness_p50_ms", "0.99": "lateness_p99_ms", "1": "lateness_max_ms"}
_SERVICE_STATES: Final = ", ".join(SERVICE_STATES)
STATES: Final = ("waiting_for_space", "stopped_by", "retention_stopped_by")

_STORE: Final = f"""
counter linked 1 linked_count Timers that got their unit
counter fired 1 fired_count Timers that were fired into the log
counter rolled 1 rolled_count Hops of timers that are due beyond the roll window
counter rolled_bytes By rolled_bytes Bytes that were appended for hops
counter put_bytes By put_bytes Bytes that calls appended: puts, deletes, what groups sent back
counter fired_bytes By fired_bytes Bytes that were appended for timers that fired
counter dropped 1 dropped_count Cancelled timers that were reached
counter unreadable 1 unreadable_count Messages that could not be read
counter damage 1 damage_count Places of the store that could not be read
counter sync 1 sync_count Fsyncs for those who wait for their put
counter checkpoint 1 checkpoint_count Checkpoints
gauge pending 1 pending_count Timers that are pending
gauge cancelled 1 cancelled_count Cancelled timers whose slots are still to come
gauge near 1 near_count Timers of the slots just ahead, in memory
gauge enqueue_queue 1 enqueue_queue_count Timers in the enqueue-put queue
gauge dequeue_queue 1 dequeue_queue_count Timers in the dequeue-put queue
gauge queue_index 1 queue_index Timer queue entries that have their unit (the queue cursor)
gauge queue_end 1 queue_end Timer queue entries
gauge commitlog_start By commitlog_start First byte of the commit log that is kept
gauge commitlog_end By commitlog_end Bytes that were appended to the commit log
gauge durable_end By durable_end Bytes of the commit log that are durable
gauge timerlog_end By timerlog_end Bytes that were appended to the timer log
gauge disk_bytes By disk_bytes Bytes that files take of the disk, as `du` counts them
gauge waiting_for_space 1 waiting_for_space! 1 while something waits for room on the disk
gauge stopped 1 stopped_by! 1 once the store has stopped
gauge retention_stopped 1 retention_stopped_by! 1 once nothing is removed any more, because of \
    damage
gauge read_timestamp_seconds s read_ms/1000 All slots before it are fired (the read \
    cursor), in seconds since 1970
gauge claimed_timestamp_seconds s claimed_ms/1000 All slots before it are in memory (the claim \
    cursor), in seconds since 1970
gauge unlinked_age_seconds s unlinked_age_ms/1000 How long ago the oldest timer without a unit \
    was stored; 0 if all have one
gauge lateness_seconds s lateness![quantile] How long after their due time timers were fired, \
    since opening; quantile 1 is the most
gauge service_busy_share 1 services.busy_share Share of the time since opening that was spent in \
    a service's steps
gauge service_queue_count 1 services.queue_count Entries that wait for a service
counter service_done {{entry}} services.done_count How many entries a service has read, linked, \
    taken or appended
gauge service_state 1 service_state![service,state] 1 for what a service does just \
    now ({_SERVICE_STATES}), else 0
counter stage_seconds s stages.busy_ms/1000 Time that was spent in a stage since opening
counter stage_entries {{entry}} stages.entry_count Entries that a stage did since opening
counter stage_steps {{step}} stages.step_count Steps of a stage that did something
gauge stage_longest_seconds s stages.longest_ms/1000 The longest step of a stage since opening
gauge level_waiting {{message}} levels.lag_count Messages that wait in a delay level
gauge level_overdue_seconds s levels.overdue_ms/1000 How long a level's first message has been due
counter level_passed {{message}} levels.offset Messages that a level delivered or passed by
counter cleaning_copied {{message}} cleaning.copied_count Messages that cleaning appended again
counter cleaning_copied_bytes By cleaning.copied_bytes Their bytes
counter cleaning_segments {{segment}} cleaning.segment_count Segments that cleaning is done with
counter cleaning_removed {{segment}} cleaning.removed_count Segments that retention has removed
gauge cleaning_pending_bytes By cleaning.pending_bytes Bytes of pending messages, about; missing \
    until cleaning has counted them
gauge cleaning_could_go_bytes By cleaning.could_go_bytes Bytes that only pending timers keep
gauge copy_lag_seconds s copies.lag_ms/1000 How long something has waited to be in a copy \
    elsewhere; 0 if all is there
gauge copy_lag_bytes By copies.lag_bytes Bytes of the log that a copy elsewhere lacks
gauge copy_failing 1 copy_failing![dest] 1 while nothing can be shipped into a copy
counter copy_sent_bytes By copies.sent_bytes Bytes sent to a copy since its follower began
counter copy_requests {{request}} copies.request_count Calls of a copy's file system since then
"""
_TOPICS: Final = """
gauge topic_pending {timer} topics.pending_count Timers of a topic that are pending
gauge topic_pending_bytes By topics.pending_bytes Bytes of the bodies of a topic's pending timers
counter topic_put {timer} topics.put_count Timers put to a topic, kept over a restart
counter topic_fired {timer} topics.fired_count Timers of a topic that were fired, kept over a \
    restart
counter topic_cancelled {timer} topics.cancelled_count Timers of a topic that were cancelled, \
    kept over one
counter topic_unreadable {timer} topics.unreadable_count Timers of a topic that were lost to damage
gauge topic_overdue {timer} topic_overdue![topic] Pending timers of a topic whose time has passed
gauge topic_upcoming {timer} topic_upcoming![topic,within] Pending timers of a topic due within \
    so many seconds, overdue ones left out
histogram topic_lateness_seconds s topic_lateness![topic] How long after their due time timers of \
    a topic were fired, kept over a restart
histogram topic_set_delay_seconds s topic_set_delay![topic] How far ahead timers of a topic were \
    put, kept over a restart
"""
_GROUPS: Final = f"""
gauge group_lag {{message}} groups.lag_count Messages fired and not acknowledged by a group
gauge group_in_flight {{message}} groups.in_flight_count Messages of the lag that are handed out
gauge group_waiting_for_turn {{message}} groups.turn_wait_count Messages that wait for a turn, \
    because a consumer of the group has a rate
gauge group_oldest_age_seconds s groups.oldest_age_ms/1000 How long ago the oldest message of the \
    lag was fired
counter group_handled {{message}} groups.handled_count Messages acknowledged, kept over a restart
counter group_failed {{message}} groups.failed_count Messages whose handler failed, took too long \
    or asked for a retry, kept over a restart
counter group_retried {{message}} groups.retried_count Messages sent back, kept over a restart
counter group_dead {{message}} groups.dead_count Messages given up, kept over a restart
counter group_expired {{message}} groups.expired_count Messages that expired before a group was \
    handed them, kept over a restart
histogram group_response_seconds s group_response![topic,group] How long handlers took, or a \
    batch from `pull` to `ack`, since opening
gauge group_dead_letters {{message}} dead_letters![group] Dead letters of a group that wait
gauge unread_messages {{message}} unread![topic] Messages of a topic that no group has ever read: \
    they keep the log
gauge groups_left_out 1 groups_left_out Pairs of topic and group beyond {ROWS_MAX}, not shown
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name without a prefix, its unit as OpenTelemetry has them, how to read it."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    unit: str
    text: str
    labels: tuple[str, ...]
    rows: Callable[[Told], Rows]


# --- what is read by a function of its own


def _lateness(stats: Told) -> Rows:
    return [(stats[field] / 1_000, (quantile,)) for quantile, field in QUANTILES.items()]


def _service_state(stats: Told) -> Rows:
    for each in stats["services"]:
        for state in SERVICE_STATES:
            yield int(each["state"] == state), (each["name"], state)


def _copy_failing(stats: Told) -> Rows:
    return [(int(each["error"] is not None), (each["dest"],)) for each in stats["copies"]]


def _topic_overdue(stats: Told) -> Rows:
    for topic, rows in stats["topics"]:
        yield sum(row["upcoming"]["overdue_count"] for row in rows), (topic,)


def _topic_upcoming(stats: Told) -> Rows:
    for topic, rows in stats["topics"]:
        ahead = [row["upcoming"]["within"] for row in rows]
        for i, (within_ms, _) in enumerate(ahead[0]):
            yield sum(each[i][1] for each in ahead), (topic, str(within_ms // 1_000))


def _histogram(field: str, ends_ms: Sequence[int]) -> Callable[[Told], Rows]:
    def read(stats: Told) -> Rows:
        for topic, rows in stats["topics"]:
            pairs = [pair for row in rows for pair in row[field]["buckets"]]
            total_s = sum(row[field]["sum_ms"] for row in rows) / 1_000
            yield (cumulative_buckets(pairs, ends_ms), total_s), (topic,)

    return read


def _group_response(stats: Told) -> Rows:
    for row in _read_by_groups(stats):
        told = row["response"]
        if told["count"]:
            pairs = zip((*RESPONSE_BOUNDS_MS, math.inf), told["bucket_counts"], strict=True)
            value = cumulative_buckets(pairs, RESPONSE_BOUNDS_MS), told["sum_ms"] / 1_000
            yield value, (row["topic"], row["group"])


def _dead_letters(stats: Told) -> Rows:
    counts = {row["group"]: row["dead_letter_count"] for row in _read_by_groups(stats)}
    return [(count, (group,)) for group, count in counts.items()]


def _unread(stats: Told) -> Rows:
    return [(row["lag_count"], (row["topic"],)) for row in stats["groups"] if not row["group"]]


def _is_said(field: str) -> Callable[[Told], Rows]:
    return lambda stats: [(int(stats[field] is not None), ())]


_READERS: Final[dict[str, Callable[[Told], Rows]]] = {
    **{field: _is_said(field) for field in STATES},
    "lateness": _lateness,
    "service_state": _service_state,
    "copy_failing": _copy_failing,
    "topic_overdue": _topic_overdue,
    "topic_upcoming": _topic_upcoming,
    "topic_lateness": _histogram("lateness", LATENESS_ENDS_MS),
    "topic_set_delay": _histogram("set_delay", SET_DELAY_ENDS_MS),
    "group_response": _group_response,
    "dead_letters": _dead_letters,
    "unread": _unread,
}


# --- the tables


def _read_by_groups(stats: Told) -> list[Row]:
    """Return the rows of topics that a group has read."""
    return [row for row in stats["groups"] if row["group"]]


def _of_topics(stats: Told, field: str) -> Iterator[tuple[float, tuple[str, ...]]]:
    for topic, rows in stats["topics"]:
        yield sum(row[field] for row in rows), (topic,)


def _each(part: str, *names: str, having: str | None = None) -> Callable[[Told, str], Rows]:
    """Return what reads a field of the rows of a part, labelled by some others of their fields."""

    def read(stats: Told, field: str) -> Rows:
        rows = (row for row in stats[part] if having is None or row[having])
        return [(row[field], tuple(str(row[name]) for name in names)) for row in rows]

    return read


_PARTS: Final[dict[str, tuple[tuple[str, ...], Callable[[Told, str], Rows]]]] = {
    "services": (("service",), _each("services", "name")),
    "stages": (("stage",), _each("stages", "name")),
    "levels": (("level",), _each("levels", "level", having="end")),
    "cleaning": ((), lambda stats, field: [(stats["cleaning"][field], ())]),
    "copies": (("dest",), _each("copies", "dest")),
    "topics": (("topic",), _of_topics),
    "groups": (("topic", "group"), _each("groups", "topic", "group", having="group")),
    "": ((), lambda stats, field: [(stats[field], ())]),
}
"""The labels of a part of the statistics, and what reads a field of it."""


def _metric(line: str) -> Metric:
    """Return the metric of a line: kind, name, unit, what is read, and what it is."""
    kind, name, unit, source, *words = line.split()
    text = " ".join(words)
    reader, is_special, labels = source.partition("!")
    if is_special:
        named = tuple(labels.strip("[]").split(",")) if labels else ()
        return Metric(cast(Any, kind), name, unit, text, named, _READERS[reader])
    path, _, divisor = source.partition("/")
    part, _, field = path.rpartition(".")
    named, read = _PARTS[part]

    def rows(stats: Told) -> Rows:
        found = ((value, labels) for value, labels in read(stats, field) if value is not None)
        return ((value / int(divisor), each) for value, each in found) if divisor else found

    return Metric(cast(Any, kind), name, unit, text, named, rows)


def _metrics(table: str) -> tuple[Metric, ...]:
    return tuple(map(_metric, table.strip().splitlines()))


STORE_METRICS: Final = _metrics(_STORE)
TOPIC_METRICS: Final = _metrics(_TOPICS)
GROUP_METRICS: Final = _metrics(_GROUPS)
METRICS: Final = (*STORE_METRICS, *TOPIC_METRICS, *GROUP_METRICS)


# --- what they are read of


def read_told(known: Callable[[], AnyStore | None]) -> Told | None:
    """Return what metrics are read from; None once the store is closed, or gone.

    It is what `stats().to_dict()` has, with the topics and groups that are shown. `known`: a
    weak reference to the store.
    """
    store = known()
    if store is None:
        return None
    try:
        stats = store.stats().to_dict()
    except StoreClosedError:
        return None
    groups, left_out = shown_rows(stats["groups"])
    shown = {"groups": groups, "groups_left_out": left_out}
    return {**stats, "topics": series_of(stats["topics"]), **shown}


def series_of(topics: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the topics that are shown, by name, each with its row, then OTHERS with theirs."""
    largest = sorted(topics, key=lambda row: (-row["put_count"], row["topic"]))
    shown = sorted(largest[:TOPICS_MAX], key=lambda row: row["topic"])
    series = [(label_of(row["topic"]), [row]) for row in shown]
    return series + ([(OTHERS, largest[TOPICS_MAX:])] if len(largest) > TOPICS_MAX else [])


def shown_rows(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows that are shown, in the order of their names, and how many are not."""
    urgent = sorted(rows, key=lambda row: (-row["lag_count"], row["topic"], row["group"]))
    shown = sorted(urgent[:ROWS_MAX], key=lambda row: (row["topic"], row["group"]))
    labelled: list[Row] = [
        {**row, **{name: label_of(row[name]) for name in ("topic", "group")}} for row in shown
    ]
    return labelled, len(rows) - len(shown)


def label_of(topic: str) -> str:
    """Return a topic's name with what is no UTF-8, of a broker's say, escaped."""
    return topic.encode("utf-8", "backslashreplace").decode()


def cumulative_buckets(
    pairs: Iterable[tuple[float, int]], ends_ms: Sequence[int]
) -> list[tuple[str, int]]:
    """Return a histogram's buckets as Prometheus has them: up to how many seconds, how many.

    `pairs`: a value in ms, and how many there were of it.

    >>> cumulative_buckets([(1, 5), (6, 1), (1, 2)], [1, 4, 8])
    [('0.001', 7), ('0.004', 7), ('0.008', 8), ('+Inf', 8)]
    """
    counts = [0] * (len(ends_ms) + 1)
    for value_ms, count in pairs:
        counts[bisect_left(ends_ms, value_ms)] += count
    names = [*(str(end_ms / 1_000) for end_ms in ends_ms), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
