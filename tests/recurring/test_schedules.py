"""Recurring jobs: each run once, one timer for each job, over stops, crashes, several starts."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from zoneinfo import ZoneInfoNotFoundError

import pytest

import timerstore
from tests.rigs.together import together
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import (
    Delivery,
    InvalidArgumentError,
    ManualClock,
    PausedError,
    TimerStore,
    TimerStoreError,
)
from timerstore.recurring import Schedules, cron, every, scheduled_ms
from timerstore.recurring.when import BODY_BYTES_MAX, SCHEDULED, TOPIC
from timerstore.testing.disk import QuietDisk

pytest.importorskip("cronsim")
START = datetime(2026, 3, 27, 12, tzinfo=UTC)
START_MS = round(START.timestamp() * 1_000)
# What is due in days hops a few times only.
LARGER = replace(SMALL, wheel_slot_count=1 << 15, roll_window_slots=1 << 14)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
LATER = timedelta(minutes=10)
DAILY = cron("0 9 * * *", tz="Europe/Berlin")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[TimerStore]:
    with TimerStore(tmp_path / "s", config=LARGER, clock=clock, disk=QuietDisk()) as store:
        yield store


def runs(store: TimerStore, topic: str = "reports", group: str = "g") -> list[str]:
    """For when those are that come now, as UTC."""
    found = list(store.consume(topic, group=group, timeout=0))
    for each in found:
        each.ack()
    shown = [datetime.fromtimestamp((scheduled_ms(d) or 0) / 1_000, UTC) for d in found]
    return [each.strftime("%d. %H:%M:%S") for each in shown]


def test_a_daily_job_over_a_change_of_clocks(store: TimerStore, clock: ManualClock) -> None:
    jobs = Schedules(store)
    next_ms = jobs.start("reports", key="daily", body=b"report", schedule=DAILY, tag="t")
    assert next_ms == START_MS + 20 * 3_600_000
    found = []
    for _ in range(4 * 24):
        clock.advance(HOUR)
        jobs.step()
        assert store.count(TOPIC) == 1
        for d in store.consume("reports", group="g", timeout=0):
            told = d.body, d.key, d.tag, list(d.properties)
            assert told == (b"report", "daily", "t", ["scheduled_ms"])
            d.ack()
            found.append(datetime.fromtimestamp((scheduled_ms(d) or 0) / 1_000, UTC))
    assert [f"{each:%d. %H:%M}" for each in found] == [
        *("28. 08:00", "29. 07:00", "30. 07:00", "31. 07:00")
    ]
    assert len(runs(store, group="another")) == 4  # each group gets each run


def test_started_again_as_it_is_and_changed(store: TimerStore, clock: ManualClock) -> None:
    jobs = Schedules(store)
    hourly: dict[str, Any] = {"key": "k", "body": b"x", "schedule": every(HOUR)}
    first_ms = jobs.start("reports", **hourly)
    clock.advance(HOUR / 2)
    assert jobs.start("reports", **hourly) == first_ms
    for change in ({"body": b"y"}, {"schedule": every(2 * HOUR)}, {"missed": "all"}, {"tag": "t"}):
        other = jobs.start("reports", **(hourly | change))
        assert other > first_ms and store.count(TOPIC) == 1
    assert jobs.start("reports", **hourly) == START_MS + 5_400_000
    jobs.start("reports", **(hourly | {"key": "l", "properties": {"a": "b"}}))
    jobs.start("other", **hourly)
    assert [(job.topic, job.key) for _, job in jobs.list()] == [
        *(("reports", "k"), ("reports", "l"), ("other", "k"))
    ]
    clock.advance(HOUR)
    jobs.step()
    (d,) = [d for d in store.consume("reports", group="g", timeout=0) if d.key == "l"]
    assert d.properties == {"a": "b", "scheduled_ms": str(START_MS + 5_400_000)}


@pytest.mark.parametrize(
    ("missed", "stop_minutes", "expected"),
    [
        ("all", 35, ["12:10:00", "12:20:00", "12:30:00"]),
        ("one", 35, ["12:30:00"]),
        ("none", 35, []),
        ("none", 30, ["12:30:00"]),  # it is on time
        ("none", 31, ["12:30:00"]),
        ("one", 10, ["12:10:00"]),
        ("all", 9, []),
    ],
)
@pytest.mark.parametrize("schedule", [every(timedelta(minutes=10)), cron("*/10 * * * *", tz="UTC")])
@pytest.mark.parametrize("end", ["close", "abandon", "nobody carries on"])
def test_missed_runs(
    tmp_path: Path, missed: Any, stop_minutes: int, expected: list[str], schedule: Any, end: str
) -> None:
    path, now_ms = tmp_path / "s", START_MS + stop_minutes * 60_000
    clock = ManualClock(START_MS)
    store = TimerStore(path, config=LARGER, clock=clock, disk=QuietDisk())
    given: dict[str, Any] = {"key": "k", "body": b"x", "schedule": schedule, "missed": missed}
    Schedules(store).start("reports", **given)
    if end == "nobody carries on":
        clock.advance(timedelta(minutes=stop_minutes))
    else:
        getattr(store, end)()
        store = TimerStore(path, config=LARGER, clock=ManualClock(now_ms), disk=QuietDisk())
    with store:
        jobs = Schedules(store)
        if stop_minutes % 2:
            jobs.start("reports", **given)  # as programs do; the old one may have fired
        jobs.step()
        assert runs(store) == [f"27. {each}" for each in expected]
        ((next_ms, _),) = jobs.list()
        assert next_ms == START_MS + (stop_minutes // 10 + 1) * 600_000
        assert jobs.step() == 0


def test_very_many_were_missed(store: TimerStore, clock: ManualClock) -> None:
    jobs = Schedules(store)
    for missed in ("all", "one"):
        given: dict[str, Any] = {"key": missed, "schedule": every(SECOND), "missed": missed}
        jobs.start(missed, body=b"x", **given)
    clock.advance(timedelta(seconds=1_000))
    while jobs.step():
        assert store.count(TOPIC) <= 2
    assert [len(runs(store, topic)) for topic in ("all", "one")] == [1_000, 1]


def test_stopped(store: TimerStore, clock: ManualClock) -> None:
    jobs = Schedules(store)
    given: dict[str, Any] = {"key": "k", "body": b"x", "schedule": every(HOUR)}
    assert not jobs.stop("reports", "k") and store.count() == 0
    jobs.start("reports", **given)
    assert jobs.stop("reports", "k") and store.count() == 0
    jobs.start("reports", **given)
    clock.advance(HOUR)  # it has fired, and nobody carried it on
    assert not jobs.stop("reports", "k")
    assert list(jobs.list()) == [] and jobs.step() == 0
    assert runs(store) == []
    clock.advance(40 * 24 * HOUR)  # the mark goes by itself
    jobs.step()
    assert store.count() == 0 and runs(store) == []
    jobs.start("reports", **given)
    clock.advance(HOUR)
    assert not jobs.stop("reports", "k")
    jobs.start("reports", **given)  # in the place of the mark
    clock.advance(HOUR)
    jobs.step()
    assert len(runs(store)) == 1
    assert len(list(jobs.list())) == 1


def test_what_is_wrong(store: TimerStore) -> None:
    jobs = Schedules(store)
    good: dict[str, Any] = {"key": "k", "body": b"x", "schedule": DAILY}
    wrong: list[dict[str, Any]] = [
        {"key": ""},
        {"key": None},
        {"body": "x"},
        {"body": b""},
        {"schedule": "0 9 * * *"},
        {"missed": "two"},
        {"grace": "5"},
        {"grace": -SECOND},
        {"tag": ""},
        {"properties": {"scheduled_ms": "1"}},
        {"properties": [1]},
        {"properties": {"a": 1}},
    ]
    for each in wrong:
        with pytest.raises(InvalidArgumentError):
            jobs.start("reports", **(good | each))
    with pytest.raises(InvalidArgumentError):
        jobs.start("a b", **good)
    with pytest.raises(InvalidArgumentError):
        jobs.stop("reports", "")
    store.put(b"what is no job", topic=TOPIC)
    store.put(b"nor this", topic=TOPIC, properties={"timerstore.job": "{"})
    assert jobs.step() == 2 and jobs.step() == 0
    assert store.count() == 0


def test_runs_are_spread_and_their_times_are_not(store: TimerStore, clock: ManualClock) -> None:
    jobs, seen = Schedules(store), []
    started = {"key": "k", "body": b"x", "schedule": every(HOUR)}
    jobs.start("reports", **started, jitter=600)  # type: ignore[arg-type]
    random.seed(1)
    clock.advance(LATER)
    for hour in range(1, 20):
        clock.advance(HOUR - LATER)
        assert jobs.step() == 1
        (run,) = [*store.pending(topic="reports"), *store.consume("reports", timeout=0)]
        at_ms = int(run.properties[SCHEDULED])
        assert at_ms == START_MS + hour * 3_600_000
        seen.append(run.due_ms - at_ms)
        assert 0 <= seen[-1] <= 600_000
        assert store.count(TOPIC) == 1
        clock.advance(LATER)
        for d in store.consume("reports", timeout=0):
            assert scheduled_ms(d) == at_ms
            d.ack()
    assert len(set(seen)) > 10
    ((next_ms, job),) = jobs.list()
    assert job.jitter_ms == 600_000 and next_ms == START_MS + 20 * 3_600_000
    assert jobs.start("reports", **started, jitter=600) == next_ms  # type: ignore[arg-type]
    assert jobs.start("reports", **started) > next_ms  # type: ignore[arg-type]
    for wrong in (-1, "x", timedelta(days=10**6)):
        with pytest.raises(InvalidArgumentError, match="jitter"):
            jobs.start("reports", **started, jitter=wrong)  # type: ignore[arg-type]


def test_putting_is_paused(store: TimerStore, clock: ManualClock) -> None:
    jobs = Schedules(store)
    jobs.start("reports", key="k", body=b"x", schedule=every(HOUR))
    clock.advance(HOUR)
    store.pause("putting")
    with pytest.raises(PausedError):
        jobs.step()
    store.resume("putting")
    store.close()
    with TimerStore(store.path, config=LARGER, clock=clock, disk=QuietDisk()) as store:
        assert Schedules(store).step() == 1 and len(runs(store)) == 1


def test_a_job_that_cannot_go_on_holds_up_no_other(tmp_path: Path, clock: ManualClock) -> None:
    day = every(24 * HOUR)
    with TimerStore(tmp_path / "s", config=LARGER, clock=clock, disk=QuietDisk()) as store:
        Schedules(store).start("reports", key="far", body=b"x", schedule=day)
        store.close()
    config = replace(LARGER, max_delay_ms=2 * 3_600_000)
    with TimerStore(store.path, config=config, clock=clock, disk=QuietDisk()) as store:
        jobs = Schedules(store)
        jobs.start("reports", key="near", body=b"x", schedule=every(HOUR))
        for count in range(1, 4):
            clock.advance(24 * HOUR)
            with pytest.raises(InvalidArgumentError):
                jobs.step()
            assert len(runs(store)) == 1 and store.count(TOPIC) == 1, count
        jobs.start("reports", key="other", body=b"x", schedule=every(HOUR))
        jobs.start("reports", key="far", body=b"x", schedule=every(HOUR))
        assert jobs.step() == 1 and store.count(TOPIC) == 3


def test_a_schedule_that_is_unknown_here_is_kept(
    store: TimerStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may lack the time zone: then another one carries the job on, or this one later."""
    jobs = Schedules(store)
    jobs.start("reports", key="k", body=b"x", schedule=cron("0 9 * * *", tz="Europe/Berlin"))
    with monkeypatch.context() as patch:
        patch.setattr(
            "timerstore.recurring.when.ZoneInfo", Mock(side_effect=ZoneInfoNotFoundError("none"))
        )
        clock.advance(24 * HOUR)
        with pytest.raises(TimerStoreError, match="reports/k cannot be carried on in this process"):
            jobs.step()
        assert runs(store) == []
    assert jobs.step() == 1 and len(runs(store)) == 1 and store.count(TOPIC) == 1


def test_large_runs_that_were_missed(tmp_path: Path, clock: ManualClock) -> None:
    """All of them come, as many at once as one step takes; a larger one is refused at once."""
    config = replace(LARGER, commitlog_segment_bytes=1 << 23)
    with TimerStore(tmp_path / "s", config=config, clock=clock, disk=QuietDisk()) as store:
        jobs, given = Schedules(store), {"schedule": every(HOUR), "missed": "all"}
        with pytest.raises(InvalidArgumentError, match="at most"):
            jobs.start("reports", key="k", body=b"x" * BODY_BYTES_MAX + b"x", **given)  # type: ignore[arg-type]
        jobs.start("reports", key="k", body=b"x" * BODY_BYTES_MAX, **given)  # type: ignore[arg-type]
        jobs.start("reports", key="l", body=b"x" * 100_000, **given)  # type: ignore[arg-type]
        clock.advance(50 * HOUR)
        while jobs.step():
            pass
        assert len(runs(store)) == 100 and store.count(TOPIC) == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("does", ["start", "stop"])
def test_beside_who_carries_it_on(
    tmp_path: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts or stops a job waits for its run that is under way elsewhere."""
    monkeypatch.setattr("timerstore.recurring.schedules._OTHERS_S", 30.0)
    path, given = tmp_path / "s", {"key": "k", "body": b"x", "schedule": every(HOUR / 100)}
    clock = ManualClock(START_MS)
    with TimerStore(path, config=LARGER, clock=clock, disk=QuietDisk()) as store:
        jobs, others = Schedules(store), Schedules(store)
        first_ms = jobs.start("reports", **given)  # type: ignore[arg-type]
        clock.advance(HOUR / 100)
        fired = next(others._fired(0))
        other = threading.Timer(0.2, others._carry_on_or_keep, [fired])
        other.start()
        if does == "start":
            assert jobs.start("reports", **given) == first_ms + 36_000  # type: ignore[arg-type]
        else:
            assert not jobs.stop("reports", "k")
        assert not any(each.lag_count for each in store.stats().groups if each.topic == TOPIC)
        other.join()
        assert len(runs(store)) == (does == "start")


class Busy:
    """A store in which time passes with each look, so that fast jobs fire without end."""

    def __init__(self, store: TimerStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def stats(self) -> Any:
        self.clock.advance(SECOND / 100)
        return self.store.stats()

    def consume(self, *args: Any, **given: Any) -> Iterator[Delivery]:
        for delivery in self.store.consume(*args, **given):
            yield delivery
            self.clock.advance(SECOND / 100)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("key", ["slow", "fast"])
def test_others_fire_without_end(tmp_path: Path, clock: ManualClock, key: str) -> None:
    """A job that is started again as it is keeps its grid, and its missed run."""
    fast: dict[str, Any] = {"body": b"x", "schedule": every(SECOND / 100)}
    period_ms = {"slow": 3_000, "fast": 10}[key]
    given: dict[str, Any] = {"body": b"x", "schedule": every(timedelta(milliseconds=period_ms))}
    with TimerStore(tmp_path / "s", config=LARGER, clock=clock, disk=QuietDisk()) as store:
        first_ms = Schedules(store).start("reports", key=key, missed="all", **given)
        clock.advance(SECOND / 300)
        for i in range(4):
            Schedules(store).start("others", key=f"f{i}", **fast)
        store.close()
    clock.advance(SECOND * 4)
    with TimerStore(store.path, config=LARGER, clock=clock, disk=QuietDisk()) as store:
        next_ms = Schedules(Busy(store, clock)).start("reports", key=key, missed="all", **given)
        assert (next_ms - first_ms) % period_ms == 0
        assert runs(store)[0] == datetime.fromtimestamp(first_ms / 1_000, UTC).strftime(
            "%d. %H:%M:%S"
        )


def test_what_could_not_go_on_does_later(store: TimerStore, clock: ManualClock) -> None:
    """Nobody is handed a fired timer twice: whoever carries jobs on next takes what was left."""
    jobs, given = Schedules(store), {"body": b"x", "schedule": every(HOUR)}
    for key in ("a", "b", "c"):
        jobs.start("reports", key=key, **given)  # type: ignore[arg-type]
    clock.advance(HOUR)
    store.pause("putting")
    for _ in range(2):
        with pytest.raises(PausedError):
            jobs.step()
    with pytest.raises(PausedError):
        jobs.start("reports", key="d", **given)  # type: ignore[arg-type]
    store.resume("putting")
    assert Schedules(store).step() == 3 and jobs.step() == 0
    assert len(runs(store)) == store.count(TOPIC) == 3


@pytest.mark.parametrize("seed", range(6))
def test_each_run_once_over_any_crash(tmp_path: Path, seed: int) -> None:
    rnd, path, now_ms = random.Random(seed), tmp_path / "s", START_MS
    schedule = rnd.choice([every(10 * SECOND), cron("*/1 * * * *", tz="UTC")])
    given: dict[str, Any] = {"key": "k", "body": b"x", "schedule": schedule, "missed": "all"}
    clock = ManualClock(now_ms)
    store = TimerStore(path, config=LARGER, clock=clock, disk=QuietDisk())
    first_ms = Schedules(store).start("reports", **given)
    try:
        for _ in range(80):
            jobs = Schedules(store)
            act = rnd.choice(("advance", "advance", "go on", "go on", "start", "flush", "end"))
            if act == "advance":
                step_ms = rnd.choice((1_000, 9_999, 30_000, 200_000))
                now_ms += step_ms
                clock.advance(timedelta(milliseconds=step_ms))
            elif act == "go on":
                jobs.step()
            elif act == "start":
                jobs.start("reports", **given)
            elif act == "flush":
                store.flush()
            else:
                now_ms += rnd.choice((0, 500, 70_000))
                rnd.choice((store.close, store.abandon))()
                clock = ManualClock(now_ms)
                store = TimerStore(path, config=LARGER, clock=clock, disk=QuietDisk())
            assert store.count(TOPIC) <= 1
        while Schedules(store).step():
            pass
        found = sorted(
            scheduled_ms(d) or 0 for d in store.consume("reports", group="audit", timeout=0)
        )
        step_ms = 60_000 if isinstance(schedule, type(DAILY)) else 10_000
        assert found == list(range(first_ms, now_ms + 1, step_ms))
        assert store.count(TOPIC) == 1
    finally:
        store.abandon()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_by_itself(tmp_path: Path) -> None:
    """In a thread, on the wall clock; also while putting is paused for a moment."""
    with TimerStore(tmp_path / "s", config=SMALL) as store, Schedules(store) as jobs:
        jobs.start("ticks", key="k", body=b"x", schedule=every(20 * SECOND / 1_000), missed="all")
        found: list[int] = []
        for d in store.consume("ticks", timeout=30):
            found.append(scheduled_ms(d) or 0)
            d.ack()
            if len(found) == 5:
                store.pause("putting", duration=SECOND / 5)
            if len(found) == 30:
                break
        assert all(b - a == 20 for a, b in pairwise(found))
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        assert store.count(TOPIC) + len(list(store.consume(TOPIC, group=TOPIC, timeout=0))) == 1


class HeldUp:
    """A store whose first put waits until something else was done."""

    def __init__(self, store: TimerStore, meanwhile: Callable[[], object]) -> None:
        self._store, self._meanwhile = store, [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, *given: Any, **named: Any) -> str:
        while self._meanwhile:
            self._meanwhile.pop()()
        return self._store.put(*given, **named)


@pytest.mark.parametrize("body", [b"same", b"other"])
def test_a_start_that_is_held_up_runs_nothing_twice(
    store: TimerStore, clock: ManualClock, body: bytes
) -> None:
    """Another one starts the job and runs it, between a start's look and its put."""
    given: dict[str, Any] = {"key": "k", "schedule": every(SECOND)}
    jobs = Schedules(store)

    def meanwhile() -> None:
        jobs.start("reports", body=b"same", **given)
        clock.advance(SECOND)
        assert jobs.step() == 1

    held_up = Schedules(HeldUp(store, meanwhile))  # type: ignore[arg-type]
    assert held_up.start("reports", body=body, **given) == START_MS + 2_000
    for _ in range(3):
        jobs.step()
        clock.advance(SECOND)
    jobs.step()
    assert store.count(TOPIC) == 1
    assert runs(store) == [f"27. 12:00:0{second}" for second in (1, 2, 3, 4)]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_many_start_it_and_carry_it_on(tmp_path: Path) -> None:
    """Threads that start, change and carry on the same job never have two of it.

    If it is changed in the millisecond in which its timer fires, the old one and the new one may
    each run for the same time.
    """
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        jobs, until = [Schedules(store) for _ in range(4)], time.monotonic() + 3

        def work(number: int) -> None:
            rnd = random.Random(number)
            while time.monotonic() < until:
                body = b"b" if rnd.random() < 0.005 else b"a"
                given: dict[str, Any] = {"key": "k", "schedule": every(30 * SECOND / 1_000)}
                jobs[number].start("ticks", body=body, **given)
                jobs[number].step()
                assert store.count(TOPIC) <= 1

        together(work, range(4))
        found = [(scheduled_ms(d), d.body) for d in store.consume("ticks", timeout=0)]
        assert len(found) == len(set(found)) > 3
        assert isinstance(store, timerstore.TimerStore)


@pytest.mark.timeout(60)
def test_jobs_are_carried_on_once_there_is_an_owner_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if there was none for longer than a call waits."""
    path = tmp_path / "s"
    owner = timerstore.open(path)
    timerstore.serve(owner)
    with owner, timerstore.connect(path, timeout=0.1) as client, Schedules(client) as jobs:
        jobs.start("reports", key="k", body=b"x", schedule=every(timedelta(seconds=0.2)))
        wait_until(lambda: runs(owner))
        owner.close()
        wait_until(lambda: "tried again" in caplog.text)
        with timerstore.open(path) as owner, timerstore.serve(owner):
            wait_until(lambda: runs(owner))


def test_what_ended_its_thread_is_raised_by_each_call(tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s") as store:
        schedules = Schedules(store)
        schedules._fail(OSError("broken"))
        calls: list[Callable[[], object]] = [
            lambda: schedules.stop("t", "k"),
            lambda: list(schedules.list()),
            schedules.step,
        ]
        for call in calls:
            with pytest.raises(OSError, match="broken"):
                call()
