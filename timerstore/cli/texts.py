"""Values as text for people: times, sizes, durations, bodies."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


def shown(text: str) -> str:
    r"""Return text that cannot break a line, nor steer a terminal.

    >>> print(shown("a\tb\x1b[2J"))
    a\tb\x1b[2J
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_ESCAPES.get(c, c if c.isprintable() else ascii(c)[1:-1]) for c in text)


def shown_here(ms: int) -> str:
    """Return UTC epoch milliseconds as this machine's clock shows them, with its zone."""
    try:
        time = (_EPOCH + timedelta(milliseconds=ms)).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return time.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


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


def shown_span(ms: int) -> str:
    """Return a duration in one unit, or two, cut off to the smaller one; nothing below a second.

    >>> shown_span(90_061_000)
    '25 h 1 min'
    """
    if ms < _MINUTE_MS:
        return f"{ms // _SECOND_MS} s" if ms >= _SECOND_MS else ""
    if ms < _HOUR_MS:
        return f"{ms // _MINUTE_MS} min"
    large, large_ms, small, small_ms = "h", _HOUR_MS, "min", _MINUTE_MS
    if ms >= 2 * _DAY_MS:
        large, large_ms, small, small_ms = "d", _DAY_MS, "h", _HOUR_MS
    count, rest = divmod(ms, large_ms)
    return f"{count:,} {large}" + (f" {rest // small_ms} {small}" if rest >= small_ms else "")


def shown_delay(ms: int) -> str:
    """Return a duration of whole seconds in the largest unit that says it exactly.

    >>> shown_delay(5_400_000)
    '90m'
    """
    for unit, unit_ms in (("d", _DAY_MS), ("h", _HOUR_MS), ("m", _MINUTE_MS)):
        if ms % unit_ms == 0:
            return f"{ms // unit_ms}{unit}"
    return f"{ms // 1000}s"


def body_field(body: bytes) -> dict[str, str]:
    """Return a body for JSON: as text if it is UTF-8, else in base64 under another name."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shown_body(body: bytes, length_max: int = 60) -> str:
    """Return the beginning of a body for a person; "…" says that it goes on."""
    text = whole_text(body[: 4 * length_max])
    is_whole = len(body) <= 4 * length_max and len(text) <= length_max
    return text if is_whole else text[: length_max - 1] + "…"


def whole_text(body: bytes) -> str:
    """Return a body for a program that reads lines: all of it, else a quote is never closed."""
    return body.decode("utf-8", "backslashreplace")
