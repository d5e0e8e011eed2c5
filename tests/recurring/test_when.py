"""When jobs run, against a slow twin that looks at every minute; at real changes of clocks."""

from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore import InvalidArgumentError
from timerstore.recurring import Cron, cron, every
from timerstore.recurring.when import Schedule, read_schedule

pytest.importorskip("cronsim")
pytestmark = pytest.mark.outside
MINUTE_MS = 60_000

# A clock's changes: the zone, the UTC time of the change, what it does.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),  # 02:00 becomes 03:00
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),  # 03:00 becomes 02:00
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3, tzinfo=UTC)),  # midnight is missing
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),  # a day is missing
    ("Asia/Kolkata", datetime(2026, 6, 1, tzinfo=UTC)),  # none
]
MINUTES = {"0": [0], "30": [30], "15,45": [15, 45], "*/20": [0, 20, 40], "*": list(range(60))}
HOURS = {"0": [0], "2": [2], "1-3": [1, 2, 3], "9": [9], "*/2": list(range(0, 24, 2))}
HOURS["*"] = list(range(24))


def ms_of(when: datetime) -> int:
    return round(when.timestamp() * 1_000)


def twin(minute: str, hour: str, zone: str, start: datetime, stop: datetime) -> list[int]:
    """The times in (start, stop], by looking at what the clock shows in each minute."""
    shown = []
    at = start.replace(second=0, microsecond=0) - timedelta(hours=30)
    while at <= stop:
        shown.append((at, at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)))
        at += timedelta(minutes=1)
    found = set()
    if minute.startswith("*") or hour.startswith("*"):
        for at, local in shown:
            if local.hour in HOURS[hour] and local.minute in MINUTES[minute]:
                found.add(at)
    else:
        days = {local.date() for _, local in shown}
        day = min(days)
        while day <= max(days):  # also one that no clock shows
            for h in HOURS[hour]:
                for m in MINUTES[minute]:
                    wanted = datetime.combine(day, clock_time(h, m))
                    exact = [at for at, local in shown if local == wanted]
                    later = [at for at, local in shown if local >= wanted]
                    if shown[0][1] < wanted and later:
                        found.add(min(exact or later))
            day += timedelta(days=1)
    return sorted(ms_of(each) for each in found if start < each <= stop)


@given(
    change=st.sampled_from(CHANGES),
    minute=st.sampled_from(list(MINUTES)),
    hour=st.sampled_from(list(HOURS)),
    before_minutes=st.integers(0, 200),
    ms=st.integers(0, 59_999),
)
def test_a_cron_expression_is_met_as_its_rule_says(
    change: tuple[str, datetime], minute: str, hour: str, before_minutes: int, ms: int
) -> None:
    zone, at = change
    start = at - timedelta(minutes=before_minutes) + timedelta(milliseconds=ms)
    stop = at + timedelta(hours=30)
    schedule, found = cron(f"{minute} {hour} * * *", tz=zone), list[int]()
    next_ms = schedule.after(ms_of(start), 0)
    while next_ms <= ms_of(stop):
        found.append(next_ms)
        next_ms = schedule.after(next_ms, 0)
    assert found == twin(minute, hour, zone, start, stop)
    for i, each in enumerate(found):
        assert schedule.last(found[0], each) == each
        assert schedule.last(found[0], each + 59_999) == found[i]
        assert schedule.last(ms_of(start) + 1, each - 1) == (
            found[i - 1] if i else ms_of(start) + 1
        )


@pytest.mark.parametrize(
    ("expression", "day", "expected"),
    [
        ("30 2 * * *", "2026-03-29", ["03:00+0200"]),  # the hour is missing: when it has jumped
        ("30 2 * * *", "2026-10-25", ["02:30+0200"]),  # the hour comes twice: the first time
        ("*/30 2 * * *", "2026-03-29", []),  # by what the clock shows: never
        ("*/30 2 * * *", "2026-10-25", ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
        ("0 9 * * *", "2026-03-29", ["09:00+0200"]),
        ("0 9 * * *", "2026-10-25", ["09:00+0100"]),
    ],
)
def test_in_berlin(expression: str, day: str, expected: list[str]) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    at = ms_of(datetime.fromisoformat(day).replace(tzinfo=berlin)) - 1
    end = ms_of((datetime.fromisoformat(day) + timedelta(days=1)).replace(tzinfo=berlin))
    schedule, found = cron(expression, tz="Europe/Berlin"), list[str]()
    while (at := schedule.after(at, 0)) < end:
        found.append(datetime.fromtimestamp(at / 1_000, berlin).strftime("%H:%M%z"))
    assert found == expected


@given(
    interval_ms=st.integers(10, 10**9),
    start_ms=st.integers(10**12, 10**13),
    ms=st.integers(10**12, 10**13),
)
def test_every_so_often(interval_ms: int, start_ms: int, ms: int) -> None:
    schedule = every(timedelta(milliseconds=interval_ms))
    after_ms = schedule.after(ms, start_ms)
    assert 0 < after_ms - ms <= interval_ms and (after_ms - start_ms) % interval_ms == 0
    if ms >= start_ms:
        last_ms = schedule.last(start_ms, ms)
        assert start_ms <= last_ms <= ms < last_ms + interval_ms
        assert schedule.after(last_ms, start_ms) == after_ms


@pytest.mark.parametrize("schedule", [every(timedelta(hours=7)), cron("5 4 1 * MON", tz="UTC")])
def test_written_and_read(schedule: Schedule) -> None:
    assert read_schedule(schedule.to_dict()) == schedule


@pytest.mark.parametrize(
    "make",
    [
        lambda: every("5"),  # type: ignore[arg-type]
        lambda: every(timedelta(0)),
        lambda: every(timedelta(milliseconds=9)),
        lambda: cron("* * * *", tz="UTC"),
        lambda: cron("0 0 9 * * *", tz="UTC"),
        lambda: cron("61 * * * *", tz="UTC"),
        lambda: cron("0 0 31 2 *", tz="UTC"),
        lambda: cron("", tz="UTC"),
        lambda: cron(None, tz="UTC"),  # type: ignore[arg-type]
        lambda: cron("0 9 * * *", tz="Mars/Base"),
        lambda: cron("0 9 * * *", tz="../etc"),
        lambda: cron("0 9 * * *", tz=None),  # type: ignore[arg-type]
        lambda: cron("0 9 * * *", tz=""),
    ],
)
def test_what_is_no_schedule(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_blanks_do_not_matter() -> None:
    assert cron(" 0  9 * *\t* ", tz="UTC") == Cron("0 9 * * *", "UTC")
