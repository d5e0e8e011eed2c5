"""Amounts, times and names as text for people, wherever they are shown; loads nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
_SPANS = ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s"))
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def shown_bytes(count: int) -> str:
    """Return a size for people.

    >>> shown_bytes(38_707_200)
    '36.9 MiB'
    """
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} bytes"


def exact_span(ms: int) -> str:
    """Return a time span in the largest unit that says it exactly.

    >>> exact_span(3_600_000), exact_span(5_400_000), exact_span(250)
    ('1 h', '90 min', '250 ms')
    """
    for unit_ms, name in _SPANS:
        if ms % unit_ms == 0:
            return f"{ms // unit_ms:,} {name}"
    return f"{ms:,} ms"


def rough_span(ms: float) -> str:
    """Return a time span in one unit, to a tenth of it.

    >>> [rough_span(each) for each in (0.25, 17, 1_500, 90_000, 5_400_000, 172_800_000)]
    ['0.2 ms', '17 ms', '1.5 s', '1.5 min', '1.5 h', '2 d']
    """
    for unit_ms, unit in _SPANS:
        if ms >= unit_ms:
            return f"{ms / unit_ms:.1f}".removesuffix(".0") + f" {unit}"
    return f"{ms:.1f}".removesuffix(".0") + " ms"


def shown_span(ms: int) -> str:
    """Return a duration in one unit, or two, cut off to the smaller one; nothing below a second.

    >>> shown_span(90_061_000)
    '25 h 1 min'
    """
    if ms < MINUTE_MS:
        return f"{ms // SECOND_MS} s" if ms >= SECOND_MS else ""
    if ms < HOUR_MS:
        return f"{ms // MINUTE_MS} min"
    large, large_ms, small, small_ms = "h", HOUR_MS, "min", MINUTE_MS
    if ms >= 2 * DAY_MS:
        large, large_ms, small, small_ms = "d", DAY_MS, "h", HOUR_MS
    count, rest = divmod(ms, large_ms)
    return f"{count:,} {large}" + (f" {rest // small_ms} {small}" if rest >= small_ms else "")


def shown_from(ms: int, now_ms: int) -> str:
    """Return when that is, seen from now.

    >>> shown_from(1_800_003_540_000, 1_800_000_000_000)
    'in 59 min'
    >>> shown_from(1_800_000_000_000, 1_800_000_012_000)
    '12 s ago'
    """
    text = shown_span(abs(ms - now_ms))
    if not text:
        return "now"
    return f"in {text}" if ms > now_ms else f"{text} ago"


def short_count(count: float) -> str:
    """Return a count in at most seven characters.

    >>> [short_count(n) for n in (0, 7, 12_345, 123_456, 1_234_567, 12_345_678_901)]
    ['0', '7', '12,345', '123,456', '1.23 M', '12.3 G']
    """
    if count < 999_999.5:
        return f"{count:,.0f}"
    for unit, size in (("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if count < 999.5 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0e}"


def counted(count: float, name: str) -> str:
    """Return a count with its name.

    >>> counted(1, "timer"), counted(285_000, "timer")
    ('1 timer', '285,000 timers')
    """
    return f"{count:,.0f} {name if count == 1 else name + 's'}"


def share(part: float) -> str:
    """Return a part as a percentage; what is not nothing, or not all, is not shown as such.

    >>> share(1 / 3), share(0.0001), share(0.9999), share(0), share(0.031)
    ('33 %', 'under 0.1 %', 'over 99.9 %', '0 %', '3.1 %')
    """
    percent = 100 * part
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    digits = 1 if percent < 10 or percent > 99 else 0
    return f"{percent:.{digits}f}".removesuffix(".0") + " %"


def shown(text: str) -> str:
    r"""Return text that cannot break a line, nor steer a terminal.

    >>> print(shown("a\tb\x1b[2J"))
    a\tb\x1b[2J
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_ESCAPES.get(c, c if c.isprintable() else ascii(c)[1:-1]) for c in text)


def shown_body(body: bytes, length_max: int = 60) -> str:
    """Return the beginning of a body for a person; "…" says that it goes on."""
    text = whole_text(body[: 4 * length_max])
    is_whole = len(body) <= 4 * length_max and len(text) <= length_max
    return text if is_whole else text[: length_max - 1] + "…"


def whole_text(body: bytes) -> str:
    """Return a body for a program that reads lines: all of it, else a quote is never closed."""
    return body.decode("utf-8", "backslashreplace")


# --- epoch milliseconds as datetimes, or as text


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_FIRST_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def moment(ms: int) -> datetime:
    """Return a time in UTC; the first or the last datetime there is for what lies beyond.

    >>> moment(4_070_908_800_001).isoformat()
    '2099-01-01T00:00:00.001000+00:00'
    """
    return _EPOCH + timedelta(milliseconds=min(max(int(ms), _FIRST_MS), LAST_MS))


T = TypeVar("T", datetime, datetime | None)


class Moment(property, Generic[T]):
    """A property: what `name_ms` says as a datetime in UTC, or None, under the name without `_ms`.

    >>> class Timer:
    ...     due_ms, due = 1_800_000_000_000, Moment[datetime]("When it falls due, in UTC.")
    >>> Timer().due.isoformat()
    '2027-01-15T08:00:00+00:00'
    """

    def __init__(self, told: str) -> None:
        super().__init__(self._read)
        self.__doc__ = told

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)  # type: ignore[misc]
        self._field = f"{name}_ms"

    def _read(self, each: Any) -> datetime | None:
        ms = getattr(each, self._field)
        return None if ms is None else moment(ms)

    if TYPE_CHECKING:

        def __get__(self, each: Any, kind: type | None = None, /) -> T:  # type: ignore[override]
            """Return it."""


def shown_time(ms: int) -> str:
    """Return UTC epoch milliseconds as ISO 8601; in milliseconds what no datetime can say.

    >>> shown_time(1_800_000_000_123)
    '2027-01-15T08:00:00.123Z'
    """
    time = moment(ms)
    if (time - _EPOCH) // _MILLISECOND != ms:
        return f"{ms} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


# --- values as a notebook shows them


_CHARACTERS_MAX: Final = 500
"""Of one cell; a body may have megabytes."""
_INHERITED: Final = "background:none;color:inherit"
_CELL: Final = f"text-align:left;vertical-align:top;{_INHERITED}"


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values, escaped.

    >>> "a&lt;b" in html_table("Timer", [("topic", "a<b")])
    True
    """
    lines = "".join(
        f'<tr><th style="{_CELL}">{_cell(name)}</th><td style="{_CELL}">{_cell(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table style="{_INHERITED}"><caption>{_cell(title)}</caption>{lines}</table>'


def html_text(text: str) -> str:
    """Return a text whose lines and columns stay as they are, escaped."""
    return f'<pre style="{_INHERITED}">{_escaped(text)}</pre>'


def _cell(text: str) -> str:
    if len(text) > _CHARACTERS_MAX:
        text = text[:_CHARACTERS_MAX] + "…"
    return _escaped(text)


def _escaped(text: str) -> str:
    from html import escape  # which brings the names of all of HTML's characters

    return escape(text)
