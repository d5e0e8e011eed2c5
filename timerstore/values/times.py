"""Reading the times that a person types.

    now  +1h  -15m                   from now on
    today  tomorrow  yesterday       their first instant, or with an hour: tomorrow 09:00
    2026-11-22  2026-11-22 09:00     ISO 8601, with seconds, with a zone, or without
    1800000000000                    UTC epoch milliseconds

A time without a zone is one of the machine's own (TZ). If a clock that is set forward skips it,
or one that is set back shows it twice, it is refused; a day begins with its first instant. Nothing
else is a time: what somebody mistyped must not become one.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple

from timerstore.errors import InvalidArgumentError

_UNITS = {
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_FROM_NOW = re.compile(r"(?:now)?([+-])(.+)")
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_HOUR = r"(?P<hour>\d\d:\d\d(?::\d\d(?:[.,]\d{1,6})?)?)"
_ZONE = r"(?P<zone>Z|UTC|[+-]\d\d:?\d\d)"
_ON_A_DAY = re.compile(
    rf"(?P<day>{'|'.join(_DAYS)}|\d{{4}}-\d\d-\d\d)(?:[ T]{_HOUR}(?: ?{_ZONE})?)?", re.ASCII
)
_EPOCH_MS = re.compile(r"\d{12,15}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
HOW = "Write now, +1h, tomorrow 09:00, 2026-11-22, 2026-11-22T09:00+01:00, or epoch milliseconds."


class Instant(NamedTuple):
    """A time that was understood."""

    ms: int
    """UTC epoch milliseconds."""
    is_exact: bool
    """It was given as this very instant: its reader need not be told which one it is."""


def parse_delay(text: str) -> timedelta:
    """Read a delay of numbers with units.

    >>> parse_delay("1h30m")
    datetime.timedelta(seconds=5400)
    >>> parse_delay("250ms")
    datetime.timedelta(microseconds=250000)
    """
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidArgumentError(
            f"The delay is {text!r}. Write numbers with ms, s, m, h, d or w, such as 1h30m."
        )
    try:
        return sum((timedelta(**{_UNITS[u]: float(n)}) for n, u in parts), timedelta())
    except OverflowError as e:
        raise InvalidArgumentError(f"The delay {text!r} is too long. Write a shorter one.") from e


def now_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


def parse_instant(text: str, *, from_ms: int | None = None, zone: tzinfo | None = None) -> Instant:
    """Read a time; `from_ms` is now, `zone` the machine's, if they are not to be asked for.

    >>> parse_instant("2027-01-15T08:00Z")
    Instant(ms=1800000000000, is_exact=True)
    >>> parse_instant("+1h", from_ms=1_800_000_000_000)
    Instant(ms=1800003600000, is_exact=False)
    """
    start_ms = now_ms() if from_ms is None else from_ms
    given = " ".join(text.split())
    if given == "now":
        return Instant(start_ms, False)
    if found := _FROM_NOW.fullmatch(given):
        delay = parse_delay(found[2])
        return Instant(_moved(start_ms, -delay if found[1] == "-" else delay, text), False)
    if _EPOCH_MS.fullmatch(given):
        return Instant(int(given), True)
    if given.isascii() and given.isdigit():
        raise InvalidArgumentError(
            f"{text!r} is no time in milliseconds: it looks like seconds or like a date. {HOW}"
        )
    if not (found := _ON_A_DAY.fullmatch(given)):
        raise InvalidArgumentError(f"{text!r} is no time. {HOW}")
    try:
        day = _day(found["day"], start_ms, zone)
        if found["hour"] is None:
            return Instant(_ms(_first_of(day, zone)), False)
        local = datetime.fromisoformat(f"{day} {found['hour'].replace(',', '.')}")
        if found["zone"]:
            offset = found["zone"].replace("UTC", "Z")
            exact = datetime.fromisoformat(f"{local.isoformat()}{offset}")
            return Instant(_ms(exact), found["day"] not in _DAYS)
        return Instant(_ms(_only(local, zone, text)), False)
    except (ValueError, OverflowError) as e:
        raise InvalidArgumentError(f"{text!r} is no time: {e}. {HOW}") from e


def _moved(start_ms: int, delay: timedelta, text: str) -> int:
    moved_ms = start_ms - (-delay // _MS)
    if not 0 <= moved_ms < 1 << 48:
        raise InvalidArgumentError(f"{text!r} is too far away. Write a nearer time.")
    return moved_ms


def _day(text: str, start_ms: int, zone: tzinfo | None) -> date:
    if text not in _DAYS:
        return date.fromisoformat(text)
    today = (_EPOCH + timedelta(milliseconds=start_ms)).astimezone(zone).date()
    return today + timedelta(days=_DAYS[text])


def _readings(local: datetime, zone: tzinfo | None) -> list[datetime]:
    """Return the instants at which a clock in a zone shows a time: one, none, or two."""
    found: list[datetime] = []
    for fold in (0, 1):
        instant = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        shows = instant.astimezone(zone).replace(tzinfo=None, fold=0)
        if shows == local and instant not in found:
            found.append(instant)
    return found


def _only(local: datetime, zone: tzinfo | None, text: str) -> datetime:
    """Return the one instant at which a clock shows a time, or refuse it."""
    found = _readings(local, zone)
    if not found:
        raise InvalidArgumentError(
            f"{text!r} does not exist here, because clocks are set forward over it. Write "
            "another time, or one with its zone."
        )
    if len(found) > 1:
        twice = " or ".join(f"{each.astimezone(zone):%Y-%m-%dT%H:%M:%S%z}" for each in found)
        raise InvalidArgumentError(
            f"{text!r} comes twice here, because clocks are set back. Write {twice}."
        )
    return found[0]


def _first_of(day: date, zone: tzinfo | None) -> datetime:
    """Return a day's first instant, which is not midnight if clocks are set forward then."""
    midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001, a clock's face
    for minutes in range(0, 24 * 60, 15):
        if found := _readings(midnight + timedelta(minutes=minutes), zone):
            return found[0]
    raise ValueError(f"{day} does not exist here")


def _ms(instant: datetime) -> int:
    return -(-(instant - _EPOCH) // _MS)
