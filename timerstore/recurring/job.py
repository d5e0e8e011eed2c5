"""A recurring job as its timer says it: whose next run it is, when it runs, what is put then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.recurring.when import Cron, Every, Schedule, read_schedule
from timerstore.values.arguments import check_text, check_topic
from timerstore.values.instants import whole_ms
from timerstore.values.kinds import Duration, check_choice, check_duration

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
    """

    topic: str
    key: str
    body: bytes
    schedule: Schedule
    missed: Missed
    grace_ms: int
    tag: str | None
    properties: Mapping[str, str]

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
    return Job(topic, key, body, schedule, missed, whole_ms(grace), tag, own)


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
        grace_ms = int(told["grace_ms"])
        try:
            schedule = read_schedule(told)
        except (InvalidArgumentError, ImportError) as e:  # a time zone that is not installed, say
            raise TimerStoreError(
                f"Job {told['topic']}/{told['key']} cannot be carried on in this process: {e}"
            ) from e
        return Job(
            *(str(told["topic"]), str(told["key"]), body, schedule),
            *(told["missed"], grace_ms, tag, own),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise InvalidArgumentError(
            f"A message of the topic {TOPIC!r} is no job: {e!r}. Do not put messages to that topic."
        ) from e
