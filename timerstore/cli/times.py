"""Reading the times that a person types."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from timerstore.errors import InvalidArgumentError

_UNITS = {
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


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


def parse_time(text: str) -> datetime:
    """Read an ISO 8601 time that says its zone.

    >>> parse_time("2030-01-01T09:00+02:00").isoformat()
    '2030-01-01T09:00:00+02:00'
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as e:
        raise InvalidArgumentError(
            f"{text!r} is no time. Write ISO 8601, such as 2030-01-01T09:00Z."
        ) from e
    if time.utcoffset() is None:
        raise InvalidArgumentError(
            f"{text!r} has no time zone. End it with Z for UTC, or with an offset such as +02:00."
        )
    return time


def parse_time_ms(text: str | None) -> int | None:
    """Read a bound: epoch milliseconds, or an ISO 8601 time that says its zone.

    >>> parse_time_ms("2027-01-15T08:00Z")
    1800000000000
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return -(-(parse_time(text) - epoch) // timedelta(milliseconds=1))
