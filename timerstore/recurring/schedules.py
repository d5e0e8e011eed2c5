"""Recurring jobs of a store: starting, stopping, listing them, carrying them on.

Each job is one timer, found by its key. When it fires, the process that carries jobs on
acknowledges it, and puts its runs and the timer of the next time, as one step. So there is one
timer for each job, over any crash, and each run is put once. A run is a message as any. It is
retried by its own rules, and never holds the next one up.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from timerstore.errors import (
    ForkedProcessError,
    InvalidArgumentError,
    StoreClosedError,
    TimerStoreError,
    TooLateError,
)
from timerstore.recurring.when import (
    JOB,
    SCHEDULED,
    TOPIC,
    Every,
    Job,
    Missed,
    Schedule,
    name_of,
    new_job,
    read_job,
)
from timerstore.services.world.background import BackgroundThread, Failure, Flag
from timerstore.share.link import has_ended
from timerstore.values.ids import parse_id
from timerstore.values.kinds import Duration
from timerstore.values.no_pickle import Stays

if TYPE_CHECKING:
    from timerstore.watching.any_store import AnyStore

log = logging.getLogger("timerstore")

RUNS_MAX: Final = 100
"""Runs that are put at once, if many were missed; the rest follow at once."""
STOPPED: Final = timedelta(days=30)
"""So long a job that was stopped while it fired is kept from going on."""
GRACE: Final = timedelta(minutes=1)
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 1.0
_OTHERS_S: Final = 1.0
"""So long a run that another thread or process is at is waited for."""
_left: Final[WeakKeyDictionary[Any, deque[Any]]] = WeakKeyDictionary()
"""Of each store the messages that were handed out, and could not be carried on: no store hands
them out again before it is reopened."""


class _Start:
    """A call of `start` that is under way, and what it hears of its job's timer."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.next_ms: int | None = None


class Schedules(Stays):
    """The recurring jobs of one store. Several threads and processes may each have one.

    As a context manager it carries jobs on in a thread of its own. Each run is a message of the
    job's topic, with the job's key; `scheduled_ms` says which time it is for.
    """

    def __init__(self, store: AnyStore) -> None:
        self._store, self._stop, self._failure = store, Flag(), Failure()
        self._left = _left.setdefault(store, deque())
        self._starts: list[_Start] = []  # that are under way
        self._thread: BackgroundThread | None = None

    # --- the jobs

    def start(
        self,
        topic: str,
        *,
        key: str,
        body: bytes,
        schedule: Schedule,
        missed: Missed = "one",
        grace: Duration = GRACE,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        jitter: Duration | None = None,
    ) -> int:
        """Start a job, and return when it runs next, in epoch ms.

        There is one job for each topic and key. Call this each time the program starts: if nothing
        changed, the job goes on; if something changed, the new job replaces it, counted from now.

        `missed` says what becomes of runs whose time passed by more than `grace` while nobody
        carried the job on: "all" of them run, "one" for all of them, or "none". A run that is late
        by less runs. With `jitter` each run comes that much later than its time at most, as a `put`
        with `jitter` would; `scheduled_ms` is its time without that, and the next run is counted
        from there. Runs that are closer to each other than `jitter` may come in another order.

        Durable like a put. Raises InvalidArgumentError, and what `put` raises.

        >>> schedules.start("reports", key="daily", body=b"x", schedule=daily)  # doctest: +SKIP
        """
        self._failure.check()
        job = new_job(topic, key, body, schedule, missed, grace, tag, properties, jitter)
        # Its timer may have fired while nobody was there: it is carried on first. One that fires
        # all the time may have no timer at any moment that is looked at.
        mine = _Start(job)
        try:
            self._starts.append(mine)
            self._go_on_as_far()
            known = self._store.get_key(TOPIC, job.name)
            if known is None and self._is_all_carried_on():
                known = self._store.get_key(TOPIC, job.name)
        finally:
            with suppress(ValueError):
                self._starts.remove(mine)
        if known is None and mine.next_ms is not None:
            return mine.next_ms
        if known is not None and job.is_same(known):
            return int(known.due_ms)
        given: dict[str, Any] = {"key": job.name, "tag": tag, "properties": job.said()}
        if isinstance(schedule, Every):
            # The store counts from when it puts: a time that was counted before may have passed,
            # and somebody else who started the job may have run it for that time.
            given["delay_ms"] = schedule.interval_ms
        else:
            now_ms = self._store.health().now_ms
            given["at_ms"] = schedule.after(now_ms, now_ms)
        put = parse_id(self._store.put(body, topic=TOPIC, replace=True, **given))
        assert put is not None
        return put.due_ms

    def stop(self, topic: str, key: str) -> bool:
        """Stop a job; return whether it was waiting for its next run.

        When this returns, no further run is put; a run that was put before comes. If the job's
        timer may have fired just now, a mark stops the job for 30 days, and this waits up to a
        second for a thread or process that carries it on. Durable like a cancel.
        """
        self._failure.check()
        name = name_of(topic, key)
        if self._store.cancel_key(TOPIC, name):
            return True
        if self._oldest_fired_ms() is not None:
            mark = {JOB: json.dumps({"stopped": True})}
            given: dict[str, Any] = {"key": name, "delay": STOPPED, "properties": mark}
            self._store.put(b"stopped", topic=TOPIC, replace=True, **given)
            self._is_all_carried_on()
        return False

    def _oldest_fired_ms(self) -> int | None:
        """Return when the oldest timer fired that is not carried on; None if all are."""
        groups = [each for each in self._store.stats().groups if each.topic == TOPIC]
        return min((each.oldest_fired_ms or 0 for each in groups if each.lag_count), default=None)

    def _is_all_carried_on(self) -> bool:
        """Carry on what has fired by now, and wait for who else does so; False: for too long.

        What fires meanwhile does not count: other jobs may fire without end.
        """
        until, oldest_ms = time.monotonic() + _OTHERS_S, self._oldest_fired_ms()
        # Messages are stamped with a time that never falls, also if the clock went back.
        began_ms = max(self._store.health().now_ms, oldest_ms or 0)
        while oldest_ms is not None and oldest_ms <= began_ms:
            if not self._go_on_as_far():
                if time.monotonic() > until:
                    return False
                time.sleep(_OTHERS_S / 100)
            oldest_ms = self._oldest_fired_ms()
        return True

    def list(self) -> Iterator[tuple[int, Job]]:
        """Yield (next run in epoch ms, job) for each job, by that time."""
        self._failure.check()
        for timer in self._store.pending(topic=TOPIC):
            job = read_job(timer.body, timer.tag, timer.properties)
            if job is not None:
                yield timer.due_ms, job

    # --- carrying them on

    def step(self) -> int:
        """Put the runs that are due now, and each job's next timer; return how many fired.

        The thread of a `with` block does this all the time. Call it yourself with a manual clock,
        or in a loop of your own. If it raises what `put` raises, call it again.
        """
        self._failure.check()
        count, first, now_ms = 0, None, self._store.health().now_ms
        with closing(self._fired(0)) as fired:
            for delivery in fired:
                error = self._carry_on_or_keep(delivery)
                first, count = first or error, count + (error is None)
                if delivery.due_ms > now_ms:
                    break  # the next call's: jobs may fire without end
        if first is not None:
            raise first
        return count

    def _go_on_as_far(self) -> int:
        """Do the same, if what cannot go on is not for the caller to know."""
        try:
            return self.step()
        except TimerStoreError as e:
            log.warning("%s: a job could not be carried on, and is kept: %s", TOPIC, e)
            return 0

    def _fired(self, timeout: float) -> Generator[Any, None, None]:
        """Yield the messages of timers that fired, first those that were left."""
        with suppress(IndexError):  # somebody else took it
            for _ in range(len(self._left)):
                yield self._left.popleft()
        yield from self._store.consume(TOPIC, group=TOPIC, timeout=timeout)

    def _carry_on_or_keep(self, delivery: Any) -> TimerStoreError | None:
        """Carry a job on. After an error, which is returned, the next try carries it on."""
        try:
            self._carry_on(delivery)
        except ForkedProcessError:  # it is the parent's
            raise
        except BaseException as e:
            self._left.append(delivery)
            if isinstance(e, TimerStoreError) and not isinstance(e, StoreClosedError):
                return e
            raise
        return None

    def _carry_on(self, delivery: Any) -> None:
        """Acknowledge a job's timer with what comes in its place."""
        try:
            job = read_job(delivery.body, delivery.tag, delivery.properties)
        except InvalidArgumentError as e:
            log.error("%s: message %s: %s", TOPIC, delivery.id, e)
            delivery.ack()
            return
        if job is None or self._store.get_key(TOPIC, job.name) is not None:
            delivery.ack()  # it was stopped, or another one came in its place
            return
        now_ms = self._store.health().now_ms
        runs, next_ms = job.runs(delivery.due_ms, now_ms, min(RUNS_MAX, job.count_max))
        common = {"body": job.body, "tag": job.tag}
        puts: list[dict[str, Any]] = [
            {
                **common,
                "topic": job.topic,
                "key": job.key,
                "properties": {**job.properties, SCHEDULED: str(at)},
                "delay_ms": random.randint(0, job.jitter_ms),
            }
            for at in runs
        ]
        puts.append(
            {
                **common,
                "topic": TOPIC,
                "key": job.name,
                "properties": job.said(),
                "at_ms": next_ms,
                "if_absent": True,
            }
        )
        try:
            delivery.ack_and_put_many(puts)
        except TooLateError:
            log.warning("%s: message %s was acknowledged elsewhere", TOPIC, delivery.id)
            return
        for each in list(self._starts):
            if each.job.is_same(delivery):
                each.next_ms = next_ms

    # --- the thread

    def __enter__(self) -> Schedules:
        self._stop = Flag()
        self._thread = BackgroundThread("timerstore-recurring", self._run, self._fail)
        self._thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        """Stop; what is under way is finished. Leave it before the store is closed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _fail(self, error: BaseException) -> None:
        """Have each call from now on raise what ended the thread."""
        self._failure.keep(error)
        log.error("jobs are not carried on any more", exc_info=error)

    def _run(self) -> None:
        while not self._stop.is_set():
            again = time.monotonic() + _AGAIN_S
            try:
                for delivery in self._fired(_LOOK_S):
                    if error := self._carry_on_or_keep(delivery):  # paused say, or full
                        text = (
                            "%s: job %s could not be carried on; this is tried again in a "
                            "second: %s"
                        )
                        log.error(text, TOPIC, delivery.key, error)
                    if self._stop.is_set():
                        return
                    if self._left and time.monotonic() > again:
                        break
            except TimerStoreError as e:
                if has_ended(self._store, e):
                    return
                log.exception("%s: looking for jobs failed; this is tried again in a second", TOPIC)
                self._stop.wait(_AGAIN_S)


def scheduled_ms(delivery: Any) -> int | None:
    """Return the time for which a run was scheduled; None if the message is no run of a job.

    >>> scheduled_ms(delivery)  # doctest: +SKIP
    1800000000000
    """
    told = delivery.properties.get(SCHEDULED, "")
    return int(told) if told.isascii() and told.isdigit() else None
