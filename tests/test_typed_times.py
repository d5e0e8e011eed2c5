"""Times as people write them: which instant is meant. A typo means none."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.errors import InvalidArgumentError
from timerstore.values.times import parse_delay, parse_instant

NOW_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("now", "2027-01-15T08:00Z"),
        ("+1h", "2027-01-15T09:00Z"),
        ("now+90s", "2027-01-15T08:01:30Z"),
        ("-1d", "2027-01-14T08:00Z"),
        ("today", "2027-01-15T00:00+01:00"),
        ("tomorrow 09:00", "2027-01-16T09:00+01:00"),
        ("yesterday  23:59:59.5", "2027-01-14T23:59:59.5+01:00"),
        ("tomorrow 09:00Z", "2027-01-16T09:00Z"),
        ("2026-11-22", "2026-11-22T00:00+01:00"),
        ("2026-07-22T09:00", "2026-07-22T09:00+02:00"),
        (" 2026-07-22 09:00:30 ", "2026-07-22T09:00:30+02:00"),
        ("2026-07-22T09:00Z", "2026-07-22T09:00Z"),
        ("2026-07-22 09:00 UTC", "2026-07-22T09:00Z"),
        ("2026-07-22 09:00 -0330", "2026-07-22T09:00-03:30"),
        ("1799999999999", "2027-01-15T07:59:59.999Z"),
    ],
)
def test_what_is_meant(text: str, instant: str) -> None:
    assert parse_instant(text, from_ms=NOW_MS, zone=BERLIN).ms == ms(instant)


@pytest.mark.parametrize(
    "text",
    [
        *("", "noon", "tomorow", "Tomorrow", "tomorrow 9:00", "tomorrow 25:00", "09:00", "nowish"),
        *("2026-11-31", "2026-13-01", "2026-1-1", "22.11.2026", "11/22/2026", "2026-11-22x09:00"),
        *("2026-11-22T09", "2026-W47-7", "20261122", "1800000000", "1e12", "-", "+", "+1", "+1hh"),
        *(
            "+1h 30",
            "2026-11-22T09:00+25:00",
            "2026-11-22T09:00 CET",
            "２０２６-11-22",
            "+9999999w",
        ),
        *("1 h", "h", "inf", "nan", "-5", "2026-11-22T09:00:00.1234567", "0000-00-00"),
    ],
)
def test_a_typo_is_no_time(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_instant(text, from_ms=NOW_MS, zone=BERLIN)


def test_only_what_says_its_zone_is_exact() -> None:
    """All else is told to whoever typed it."""
    exact = {
        text: parse_instant(text, from_ms=NOW_MS).is_exact
        for text in ("now", "+1h", "tomorrow", "2026-11-22", "2026-11-22T09:00", "tomorrow 09:00Z")
    }
    assert not any(exact.values())
    for text in ("2026-11-22T09:00Z", "2026-11-22T09:00+01:00", "1799999999999"):
        assert parse_instant(text).is_exact


def test_a_clock_that_is_set_forward_skips_times() -> None:
    with pytest.raises(InvalidArgumentError, match="does not exist here"):
        parse_instant("2026-03-29 02:30", zone=BERLIN)
    assert parse_instant("2026-03-29 03:00", zone=BERLIN).ms == ms("2026-03-29T01:00Z")
    assert parse_instant("2026-03-29 01:59", zone=BERLIN).ms == ms("2026-03-29T00:59Z")


def test_a_clock_that_is_set_back_shows_times_twice() -> None:
    with pytest.raises(InvalidArgumentError, match="comes twice here") as caught:
        parse_instant("2026-10-25 02:30", zone=BERLIN)
    assert "2026-10-25T02:30:00+0200 or 2026-10-25T02:30:00+0100" in str(caught.value)
    # What it proposes is understood, as two instants.
    both = [
        parse_instant(f"2026-10-25T02:30:00{zone}", zone=BERLIN).ms for zone in ("+0200", "+0100")
    ]
    assert both[1] - both[0] == 3_600_000
    assert parse_instant("2026-10-25 03:00", zone=BERLIN).ms == ms("2026-10-25T02:00Z")


@pytest.mark.parametrize(
    ("zone", "day", "first"),
    [
        ("Africa/Cairo", "2026-04-24", "2026-04-24T01:00+03:00"),  # forward at midnight
        ("America/Havana", "2026-11-01", "2026-11-01T00:00-04:00"),  # back to midnight
        ("Europe/Berlin", "2026-10-25", "2026-10-25T00:00+02:00"),
    ],
)
def test_a_day_begins_with_its_first_instant(zone: str, day: str, first: str) -> None:
    assert parse_instant(day, zone=ZoneInfo(zone)).ms == ms(first)


def test_a_day_that_a_zone_skipped_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        parse_instant("2011-12-30", zone=ZoneInfo("Pacific/Apia"))


@pytest.fixture
def machine_zone() -> Iterator[None]:
    """A machine of Berlin, by a rule that needs no data of zones."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("machine_zone")
def test_the_machine_s_zone_is_that_of_times_without() -> None:
    assert parse_instant("2026-07-22 09:00").ms == ms("2026-07-22T07:00Z")
    assert parse_instant("2026-03-29").ms == ms("2026-03-28T23:00Z")
    for text in ("2026-03-29 02:30", "2026-10-25 02:30"):
        with pytest.raises(InvalidArgumentError, match="here"):
            parse_instant(text)


@given(st.integers(0, 4_102_444_800_000), st.sampled_from(["Europe/Berlin", "Asia/Kathmandu"]))
def test_what_a_clock_shows_is_that_instant_or_refused(at_ms: int, zone: str) -> None:
    """A local time is read as the one instant at which a clock shows it."""
    local = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone(ZoneInfo(zone))
    text = local.replace(tzinfo=None).isoformat(timespec="milliseconds")
    twice = [local.replace(fold=fold).utcoffset() for fold in (0, 1)]
    if twice[0] != twice[1]:
        with pytest.raises(InvalidArgumentError, match="comes twice"):
            parse_instant(text, zone=ZoneInfo(zone))
    else:
        assert parse_instant(text, zone=ZoneInfo(zone)).ms == at_ms


def test_delays() -> None:
    assert parse_delay("1h30m").total_seconds() == 5_400
    for text in ("", "1", "h", "1h30", "1H", "-1h", "1 h", "1h,30m", "1.h"):
        with pytest.raises(InvalidArgumentError):
            parse_delay(text)
