"""When a recurring job runs, so often or by a cron expression; what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.values.check_arguments import DUE_MS_MAX, check_jitter_ms, check_text, check_topic
from timerstore.values.kinds import Duration, check_choice, check_duration, whole_ms

INTERVAL_MIN: Final = timedelta(milliseconds=10)
_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000
_EPOCH: Final = datetime.fromisoformat("1970-01-01")


@dataclass(frozen=True, slots=True)
class Every:
    """Times that are `interval_ms` apart, from the first one on; made by `every`."""

    interval_ms: int

    def after(self, ms: int, start_ms: int) -> int:
        """Return the first time after `ms`, of those that `start_ms` is one of."""
        return start_ms + ((ms - start_ms) // self.interval_ms + 1) * self.interval_ms

    def last(self, start_ms: int, ms: int) -> int:
        """Return the last time up to `ms`, from `start_ms` on, which is one."""
        return max(start_ms, self.after(ms, start_ms) - self.interval_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in the job's timer."""
        return {"every_ms": self.interval_ms}


@dataclass(frozen=True, slots=True)
class Cron:
    """Times of a cron expression by the clock of a time zone; made by `cron`."""

    expression: str
    tz: str

    def after(self, ms: int, start_ms: int) -> int:
        """Return the first time after `ms`."""
        found = next(self._from(ms), None)
        if found is None:
            raise InvalidArgumentError(
                f"The expression {self.expression!r} has no time after {ms} (epoch ms). Use "
                "another expression."
            )
        return found

    def last(self, start_ms: int, ms: int) -> int:
        """Return the last time up to `ms`, from `start_ms` on, which is one. O(log time)."""
        step_ms = _MINUTE_MS
        while ms - step_ms > start_ms and self._first(ms - step_ms) > ms:
            step_ms *= 2
        found = start_ms
        for each in self._from(max(start_ms, ms - step_ms)):
            if each > ms:
                break
            found = each
        return found

    def _first(self, ms: int) -> int:
        return next(self._from(ms), DUE_MS_MAX)

    def _from(self, ms: int) -> Iterator[int]:
        zone, fields = _zone(self.tz), self.expression.split(" ")
        following = _by_clock if "*" in (fields[0][:1], fields[1][:1]) else _by_day
        found = following(self.expression, zone, ms)
        while found is not None:
            yield found
            found = following(self.expression, zone, found)

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in the job's timer."""
        return {"cron": self.expression, "tz": self.tz}


Schedule = Every | Cron


def every(interval: Duration) -> Every:
    """Return a schedule that runs every `interval`, the first time one interval after `start`.

    It counts elapsed time, without a time zone or daylight saving. Raises InvalidArgumentError.

    >>> every(timedelta(minutes=5)).interval_ms
    300000
    """
    length = check_duration(interval, "interval")
    if length < INTERVAL_MIN:
        raise InvalidArgumentError(f"interval is {interval!r}. Pass {INTERVAL_MIN} at least.")
    return Every(whole_ms(length))


def cron(expression: str, *, tz: str) -> Cron:
    """Return a schedule of the five fields of cron: minute, hour, day, month, day of the week.

    `tz`: the time zone, such as "Europe/Berlin" or "UTC". When clocks change, Debian's rules hold:
    a fixed time in the hour that is skipped runs after the skip; one in the hour that comes twice
    runs the first time; an expression with `*` in its minute or hour follows the clock. Needs the
    extra `recurring`. Raises InvalidArgumentError.

    >>> cron("0 9 * * MON-FRI", tz="Europe/Berlin").tz
    'Europe/Berlin'
    """
    if not isinstance(expression, str):
        raise InvalidArgumentError(f"expression is {expression!r}. Pass a str.")
    schedule = Cron(" ".join(expression.split()), tz)
    _zone(tz)
    if next(_parsed(schedule.expression, _EPOCH), None) is None:
        raise InvalidArgumentError(
            f"expression is {expression!r}, and no time matches it. Correct it."
        )
    return schedule


def _parsed(expression: str, begin: datetime) -> Iterator[datetime]:
    """Yield the local times after `begin`, which has no zone, that an expression names."""
    from cronsim import CronSim, CronSimError

    if len(expression.split(" ")) != 5:
        raise InvalidArgumentError(f"expression is {expression!r}. Write five fields.")
    try:
        times: Iterator[datetime] = CronSim(expression, begin)
    except CronSimError as e:
        raise InvalidArgumentError(f"expression is {expression!r}: {e}. Correct it.") from e
    return times


# --- what a clock shows
#
# The library says which local times an expression names; which instants those are is said here,
# for its own way skips times if clocks change by half an hour.


def _by_day(expression: str, zone: ZoneInfo, ms: int) -> int | None:
    """Return the first time after `ms`, counting each local time once.

    One that comes twice counts the first time; one that is missing when the clock has jumped. So
    later local times are never earlier instants.
    """
    for local in _parsed(expression, _shown(zone, ms)):
        at = _instant(zone, local)
        if at > ms:
            return at
    return None


def _by_clock(expression: str, zone: ZoneInfo, ms: int) -> int | None:
    """Return the first time after `ms` at which the clock shows what is named."""
    offset_ms, after = _offset_ms(zone, ms), _shown(zone, ms)
    while True:
        local = next(_parsed(expression, after), None)
        if local is None:
            return None
        found = _ms_of(local) - offset_ms
        change = _next_change(zone, ms, found)
        if change is None:
            return found
        # What it shows when it was changed counts, and goes on from there.
        ms, offset_ms = change, _offset_ms(zone, change)
        after = _shown(zone, change) - timedelta(seconds=1)


def _instant(zone: ZoneInfo, local: datetime) -> int:
    """Return when a clock first shows a local time, or has jumped over it."""
    early = _ms_of(local) - _utc_offset_ms(local.replace(tzinfo=zone))
    if _shown(zone, early) == local:
        return early
    before = _ms_of(local) - _utc_offset_ms(local.replace(tzinfo=zone, fold=1))
    change = _next_change(zone, before - 1, early)
    return early if change is None else change


def _next_change(zone: ZoneInfo, ms: int, stop_ms: int) -> int | None:
    """Return when a clock is next changed, after `ms` and not after `stop_ms`; None for never."""
    low = ms
    while low < stop_ms:
        high = min(stop_ms, low + _DAY_MS // 2)
        if _offset_ms(zone, high) != _offset_ms(zone, low):
            while high - low > 1:
                middle = (low + high) // 2
                same = _offset_ms(zone, middle) == _offset_ms(zone, low)
                low, high = (middle, high) if same else (low, middle)
            return high
        low = high
    return None


def _shown(zone: ZoneInfo, ms: int) -> datetime:
    """Return what a clock shows, in whole seconds."""
    return datetime.fromtimestamp(ms // 1_000, zone).replace(tzinfo=None, fold=0)


def _offset_ms(zone: ZoneInfo, ms: int) -> int:
    return _utc_offset_ms(datetime.fromtimestamp(ms // 1_000, zone))


def _utc_offset_ms(at: datetime) -> int:
    offset = at.utcoffset()
    assert offset is not None
    return offset // timedelta(milliseconds=1)


def _ms_of(local: datetime) -> int:
    """Return a local time as if it were UTC."""
    return (local - _EPOCH) // timedelta(milliseconds=1)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as e:
        raise InvalidArgumentError(
            f"tz is {name!r}, and this machine has no time zone of that name. Pass one such as "
            '"Europe/Berlin".'
        ) from e


def read_schedule(content: dict[str, Any]) -> Schedule:
    """Return the schedule that stands in a job's timer.

    >>> read_schedule({"every_ms": 1000})
    Every(interval_ms=1000)
    """
    if "every_ms" in content:
        return every(timedelta(milliseconds=int(content["every_ms"])))
    return cron(str(content["cron"]), tz=str(content["tz"]))


# --- what a job says of itself, in its timer


TOPIC: Final = "timerstore-recurring"
"""Where jobs wait; a group of this name carries them on."""
JOB: Final = "timerstore.job"
"""The property that has the job."""
SCHEDULED: Final = "scheduled_ms"
"""The property of a run that says for when it was scheduled."""
Missed = Literal["all", "one", "none"]
_AT_ONCE_BYTES: Final = 4_000_000
"""Of the messages that a job is acknowledged with, some less than `ack_and_put_many` takes."""
_BESIDE_BYTES: Final = 33_000
"""Of a message, at most, beside its body."""
BODY_BYTES_MAX: Final = _AT_ONCE_BYTES // 2 - _BESIDE_BYTES


@dataclass(frozen=True, slots=True)
class Job:
    """What runs when: `body`, `tag` and `properties` are put to `topic`, with `key`.

    `missed`, `grace_ms`: what becomes of runs whose time passed while nobody carried the job on.
    `jitter_ms`: how much later than its time each run comes at most.
    """

    topic: str
    key: str
    body: bytes
    schedule: Schedule
    missed: Missed
    grace_ms: int
    tag: str | None
    properties: Mapping[str, str]
    jitter_ms: int = 0

    @property
    def name(self) -> str:
        """The key of its timer: one for each topic and key, since a topic has no slash."""
        return name_of(self.topic, self.key)

    @property
    def count_max(self) -> int:
        """How many runs fit beside the timer of the next time."""
        return _AT_ONCE_BYTES // (len(self.body) + _BESIDE_BYTES) - 1

    def said(self) -> dict[str, str]:
        """Return the properties of its timer."""
        told = {
            "topic": self.topic,
            "key": self.key,
            "missed": self.missed,
            "grace_ms": self.grace_ms,
            **({"jitter_ms": self.jitter_ms} if self.jitter_ms else {}),
            **self.schedule.to_dict(),
        }
        return {**self.properties, JOB: json.dumps(told, sort_keys=True)}

    def is_same(self, timer: Any) -> bool:
        """Tell whether a timer is that of this job, as it is."""
        told = timer.body, timer.tag, timer.properties
        return bool(told == (bytes(self.body), self.tag, self.said()))

    def runs(self, first_ms: int, now_ms: int, count_max: int) -> tuple[list[int], int]:
        """Return which of the times up to now it runs, `count_max` at most, and when it is next.

        `first_ms`: the time that its timer was due. What is left over is next, at once.
        """
        if self.missed == "all":
            runs, at = [first_ms], self.schedule.after(first_ms, first_ms)
            while at <= now_ms and len(runs) < count_max:
                runs.append(at)
                at = self.schedule.after(at, first_ms)
            return runs, at
        last_ms = self.schedule.last(first_ms, max(first_ms, now_ms))
        is_late = now_ms - last_ms > self.grace_ms
        runs = [] if is_late and self.missed == "none" else [last_ms]
        return runs, self.schedule.after(max(now_ms, last_ms), first_ms)


def name_of(topic: str, key: str) -> str:
    """Return the key of a job's timer."""
    check_topic(topic)
    check_text(key, "key")
    return f"{topic}/{key}"


def new_job(
    topic: str,
    key: str,
    body: bytes,
    schedule: Schedule,
    missed: Missed,
    grace: Duration,
    tag: str | None,
    properties: Mapping[str, str] | None,
    jitter: Duration | None,
) -> Job:
    """Return a job, or refuse it; what the store refuses itself is left to it."""
    if not isinstance(schedule, Every | Cron):
        raise InvalidArgumentError(f"schedule is {schedule!r}. Pass what every or cron returned.")
    check_choice(missed, "missed", ("all", "one", "none"))
    grace = check_duration(grace, "grace")
    if grace < timedelta(0):
        raise InvalidArgumentError(f"grace is {grace!r}. Pass 0 or more.")
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidArgumentError(f"properties is {properties!r}. Pass a dict of str to str.")
    if isinstance(body, bytes | bytearray | memoryview) and len(body) > BODY_BYTES_MAX:
        raise InvalidArgumentError(
            f"body has {len(body)} bytes. Pass {BODY_BYTES_MAX} at most, because each run is put "
            "together with the timer of the next one."
        )
    own = dict(properties or {})
    for name in (JOB, SCHEDULED):
        if name in own:
            raise InvalidArgumentError(
                f"properties has the name {name!r}, which belongs to jobs. Use another name."
            )
    name_of(topic, key)
    jitter_ms = 0 if jitter is None else check_jitter_ms(jitter)
    return Job(topic, key, body, schedule, missed, whole_ms(grace), tag, own, jitter_ms)


def read_job(body: bytes, tag: str | None, properties: Mapping[str, str]) -> Job | None:
    """Return the job of a timer; None for what says that a job was stopped.

    Raises InvalidArgumentError for what is neither, TimerStoreError for a job whose schedule this
    process cannot follow.
    """
    try:
        told: dict[str, Any] = json.loads(properties[JOB])
        if told.get("stopped"):
            return None
        own = {name: value for name, value in properties.items() if name != JOB}
        grace_ms, jitter_ms = int(told["grace_ms"]), int(told.get("jitter_ms", 0))
        check_jitter_ms(timedelta(milliseconds=jitter_ms))
        try:
            schedule = read_schedule(told)
        except (InvalidArgumentError, ImportError) as e:  # a time zone that is not installed, say
            raise TimerStoreError(
                f"Job {told['topic']}/{told['key']} cannot be carried on in this process: {e}"
            ) from e
        return Job(
            *(str(told["topic"]), str(told["key"]), body, schedule),
            *(told["missed"], grace_ms, tag, own),
            jitter_ms=jitter_ms,
        )
    except (
        *(ValueError, TypeError, KeyError, AttributeError),
        *(OverflowError, RecursionError),  # a number or a nesting that nothing has room for
    ) as e:
        raise InvalidArgumentError(
            f"A message of the topic {TOPIC!r} is no job: {e!r}. Do not put messages to that topic."
        ) from e
