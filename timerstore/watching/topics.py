"""What each topic holds, by the counts that are kept of it, without a scan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np

from timerstore.calls.consuming.groupreader import read_queued
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError
from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, text, user_properties
from timerstore.timelog.writing.compose import ACKS_TOPIC
from timerstore.timelog.writing.tally import (
    CANCELLED_COUNT,
    COUNTERS,
    DELAY_REST_MS,
    DELAY_SUM_S,
    DELAYS,
    FIRED_COUNT,
    HISTOGRAM_BUCKETS,
    LATENESS_MAX_MS,
    LATENESS_SUM_MS,
    LATENESSES,
    LATER,
    LOST_COUNT,
    NEVER_MS,
    NEXT_MS,
    OLDEST_MS,
    OVERDUE,
    PENDING_BYTES,
    PUT_COUNT,
    TALLY_WORDS,
    WITHIN,
    bucket_max,
    sum_ahead,
)
from timerstore.values.amounts import Moment
from timerstore.values.kinds import check_int, check_name

WITHIN_MS: Final = (
    *(1_000, 10_000, 60_000, 600_000, 3_600_000),  # up to an hour
    *(86_400_000, 7 * 86_400_000),  # a day, a week
)
_WITHIN_MS: Final = np.array(WITHIN_MS, np.int64)
SECONDS_AHEAD: Final = 60
_BUCKET_MAX_MS: Final = [bucket_max(bucket) for bucket in range(HISTOGRAM_BUCKETS)]


@dataclass(frozen=True, slots=True)
class Upcoming:
    """How many pending timers fall due by when.

    `within`: pairs of a time from now in ms, and how many are due until then, for 1 s, 10 s, a
    minute, 10 minutes, an hour, a day and 7 days; `later_count` are due after that. A timer's due
    time is known to a second, or to a 56th of the delay that it was put with if that is more (of a
    retry: of the time since the first put). If now or one of these times lies within that span, a
    share of the timer counts before it, and the rest after it. The sum is exactly what is pending.
    """

    overdue_count: int
    within: tuple[tuple[int, int], ...]
    later_count: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values in ms came: two buckets for each doubling.

    `buckets`: pairs of a bucket's largest value and how many there were; those without any are left
    out.
    """

    count: int
    sum_ms: int
    buckets: tuple[tuple[int, int], ...]

    def quantile_ms(self, share: float) -> int:
        """Return a quantile: the largest value of its bucket; 0 if there is none."""
        left = max(1, -(-self.count * share // 1))
        for top, count in self.buckets:
            left -= count
            if left <= 0:
                return top
        return 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A look at one topic, whose timers may wait in slots or in delay levels.

    put − fired − cancelled − unreadable = pending. A reschedule is a put with a cancel. Counters
    with both histograms go on after a restart. `pending_bytes`: bodies of what is pending.
    `next_due_ms`, `oldest_due_ms`: of what is still to come, or is overdue; None, or no later than
    it really is, known as well as `upcoming`. `lateness` of what was fired: its quantiles are the
    largest values of their buckets, `lateness_max_ms` is exact. `set_delay`: how far ahead timers
    were put.
    """

    topic: str
    pending_count: int
    pending_bytes: int
    put_count: int
    fired_count: int
    cancelled_count: int
    unreadable_count: int
    next_due_ms: int | None
    oldest_due_ms: int | None
    lateness_p50_ms: int
    lateness_p99_ms: int
    lateness_max_ms: int
    upcoming: Upcoming
    lateness: Histogram
    set_delay: Histogram

    next_due = Moment[datetime | None]("`next_due_ms` as a datetime in UTC.")
    oldest_due = Moment[datetime | None]("`oldest_due_ms` as a datetime in UTC.")


def read_topics(core: Core) -> tuple[TopicStats, ...]:
    """Collect what each topic holds that a timer was ever put to, by name. O(queues)."""
    queues = core.engine.queues
    count = len(queues.files)
    counters, pending = _counters(core.engine, np.arange(count)), _pending(core.engine, count)
    rows = np.flatnonzero(counters[:, : LOST_COUNT + 1].any(axis=1) | (pending != 0))
    topics = [queues.topics[row] for row in rows.tolist()]
    names = sorted(set(topics))
    places = {name: i for i, name in enumerate(names)}
    which = np.array([places[topic] for topic in topics], np.int64)
    sums = np.zeros((len(names), counters.shape[1]), np.int64)
    np.add.at(sums, which, counters[rows])
    sums[:, LATENESS_MAX_MS] = 0
    np.maximum.at(sums[:, LATENESS_MAX_MS], which, counters[rows, LATENESS_MAX_MS])
    pending_counts = np.zeros(len(names), np.int64)
    np.add.at(pending_counts, which, pending[rows])
    ahead = _sum_ahead(core, rows, which, len(names))
    words = sums[:, [*range(DELAYS), PENDING_BYTES]].tolist()
    columns = zip(
        names, pending_counts.tolist(), words, ahead.tolist(), _buckets(sums), strict=True
    )
    return tuple(_topic_stats(*column) for column in columns)


@inside
def read_upcoming(core: Core, topic: str | None) -> Upcoming:
    """Sum when what is pending falls due; see `TimerStore.upcoming`."""
    core.check_open(stopped=True)
    queues = core.engine.queues
    rows = np.arange(len(queues.files))
    if topic is not None:
        rows = np.array(queues.rows(check_name(topic)), np.int64)
    ahead = _sum_ahead(core, rows, np.zeros(len(rows), np.int64), 1)
    return _upcoming(ahead[0].tolist())


@inside
def read_seconds_ahead(core: Core) -> list[int]:
    """Return about how many timers fall due in each of the next SECONDS_AHEAD. O(queues)."""
    core.check_open(stopped=True)
    within_ms = 1_000 * np.arange(1, SECONDS_AHEAD + 1, dtype=np.int64)
    rows = np.arange(len(core.engine.queues.files))
    ahead = _sum_ahead(core, rows, np.zeros(len(rows), np.int64), 1, within_ms)
    found: list[int] = np.diff(ahead[0, WITHIN:], prepend=0).tolist()
    return found


def _counters(engine: Engine, rows: Words) -> Words:
    """Return the counters of some rows, with their pending bytes behind."""
    words = engine.queues.table.tally.words.reshape(-1, TALLY_WORDS)
    return words[rows, : COUNTERS + 1]


def _pending(engine: Engine, count: int) -> Words:
    timers, levels = engine.queues.table.pending.reshape(2, -1)
    return timers[:count] + levels[:count]


def _sum_ahead(
    core: Core, rows: Words, which: Words, count: int, within_ms: Words = _WITHIN_MS
) -> Words:
    """Sum what is ahead of some rows by the topic that each is of."""
    now_ms, engine = core.clock.now_ms, core.engine
    fired_ms = engine.read_slot * engine.precision_ms
    if fired_ms + 2 * engine.precision_ms > now_ms:
        fired_ms = now_ms  # its slot has not ended, or only just
    each = np.zeros((len(rows), WITHIN + len(within_ms)), np.int64)
    sum_ahead(engine.queues.table.tally, rows, now_ms, fired_ms, within_ms, each)
    sums = np.zeros((count, each.shape[1]), np.int64)
    np.add.at(sums, which, each)
    for column in (NEXT_MS, OLDEST_MS):
        sums[:, column] = NEVER_MS
        np.minimum.at(sums[:, column], which, each[:, column])
    return sums


def _buckets(sums: Words) -> list[tuple[Any, Any]]:
    """Return the buckets that are not empty of each topic's two histograms."""
    found: list[list[Any]] = []
    for first in (LATENESSES, DELAYS):
        counts = sums[:, first : first + HISTOGRAM_BUCKETS]
        mine: list[Any] = [[] for _ in sums]
        for topic, bucket in zip(*(each.tolist() for each in np.nonzero(counts)), strict=True):
            mine[topic].append((_BUCKET_MAX_MS[bucket], int(counts[topic, bucket])))
        found.append(mine)
    return list(zip(*found, strict=True))


def _topic_stats(
    topic: bytes, pending_count: int, counters: list[int], ahead: list[int], buckets: Any
) -> TopicStats:
    late, delays = map(tuple, buckets)
    lateness = Histogram(sum(n for _, n in late), counters[LATENESS_SUM_MS], late)
    delay_ms = 1_000 * counters[DELAY_SUM_S] + counters[DELAY_REST_MS]
    max_ms = counters[LATENESS_MAX_MS]
    return TopicStats(
        topic=text(topic),
        pending_count=pending_count,
        pending_bytes=counters[-1],
        put_count=counters[PUT_COUNT],
        fired_count=counters[FIRED_COUNT],
        cancelled_count=counters[CANCELLED_COUNT],
        unreadable_count=counters[LOST_COUNT],
        next_due_ms=_time(ahead[NEXT_MS]),
        oldest_due_ms=_time(ahead[OLDEST_MS]),
        lateness_p50_ms=min(max_ms, lateness.quantile_ms(0.5)),
        lateness_p99_ms=min(max_ms, lateness.quantile_ms(0.99)),
        lateness_max_ms=max_ms,
        upcoming=_upcoming(ahead),
        lateness=lateness,
        set_delay=Histogram(sum(n for _, n in delays), delay_ms, delays),
    )


def _time(ms: int) -> int | None:
    return None if ms == NEVER_MS else ms


def _upcoming(ahead: list[int]) -> Upcoming:
    within = tuple(zip(WITHIN_MS, ahead[WITHIN:], strict=True))
    return Upcoming(ahead[OVERDUE], within, max(0, ahead[LATER] - ahead[-1]))


# --- what fires, as it fires


FIRED_MAX: Final = 10_000
"""Messages of one call at most."""
_OWN: Final = (fmt.TIMER_TOPIC, fmt.LEVEL_TOPIC, ACKS_TOPIC)
_PREFIXES: Final = (fmt.RETRY_PREFIX, fmt.DEAD_PREFIX)

Places = dict[str, int]
"""Of each queue, by its folder's name, the index of the next message."""


@dataclass(frozen=True, slots=True)
class Fired:
    """A message that a timer became; `attempt` counts from 0."""

    id: str
    topic: str
    due_ms: int
    fired_ms: int
    key: str | None
    tag: str | None
    properties: dict[str, str]
    attempt: int
    body: bytes

    due = Moment[datetime]("When it was due, in UTC.")
    fired = Moment[datetime]("When it fired, in UTC.")


@dataclass(frozen=True, slots=True)
class FiredNow:
    """What fired since the last look: `messages` in the order in which they fired.

    `next`: from where the next look goes on. `skipped_count`: messages that came too fast, or were
    removed, to be shown.
    """

    messages: tuple[Fired, ...]
    next: Places
    skipped_count: int


@inside
def read_fired(
    core: Core, after: Places | None = None, topic: str | None = None, limit: int = 1_000
) -> FiredNow:
    """Return what fired behind `after`, the newest `limit`; without it, the last `limit`.

    Of one topic, or of all but retries and dead letters. O(queues + limit for each queue with
    something new). What cannot be read is left out, and named in the log.
    """
    core.check_open()
    check_int(limit, "limit", 0, FIRED_MAX)
    if after is not None and not isinstance(after, dict):
        raise InvalidArgumentError(
            f"after is {after!r}. Pass the `next` that the previous call returned."
        )
    wanted = None if topic is None else check_name(topic)
    queues, places, found, count = core.engine.queues, Places(), list[Message](), 0
    for row, name in enumerate(queues.topics):
        if wanted is None and (name in _OWN or name.startswith(_PREFIXES)):
            continue
        if wanted is not None and name != wanted:
            continue
        folder, end = queues.name(row), queues.next_index(row)
        places[folder] = end
        start = 0 if after is None else min(end, int(after.get(folder, 0)))
        count += 0 if after is None else end - start
        newest = read_queued(core, row, max(start, end - limit), end)
        found += [message for _, message in newest]
    found.sort(key=lambda each: each.stored_ms)
    shown = found[-limit:] if limit else []
    return FiredNow(tuple(map(_shown, shown)), places, max(0, count - len(shown)))


def _shown(message: Message) -> Fired:
    properties: dict[str, Any] = message.properties
    due = properties.get("TIMER_OUT_MS", "")
    return Fired(
        id=properties.get("UNIQ_KEY", ""),
        topic=message.topic,
        due_ms=int(due) if due.isascii() and due.isdigit() else message.stored_ms,
        fired_ms=message.stored_ms,
        key=properties.get("KEYS"),
        tag=properties.get("TAGS"),
        properties=user_properties(properties),
        attempt=message.reconsume_times,
        body=message.body,
    )
