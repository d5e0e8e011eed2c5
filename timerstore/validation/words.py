"""Numbers, shares, durations as a person says them."""

from __future__ import annotations

from typing import Final

from timerstore.validation.timeaxis import shown

_UNITS: Final = ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def counted(count: float, name: str) -> str:
    """Return a count with its name.

    >>> counted(1, "timer"), counted(285_000, "timer")
    ('1 timer', '285,000 timers')
    """
    return f"{count:,.0f} {name if count == 1 else name + 's'}"


def share(part: float, whole: float = 1.0) -> str:
    """Return a part as a percentage; what is not nothing, or not all, is not shown as such.

    >>> share(1, 3), share(1, 10_000), share(9_999, 10_000), share(0), share(0.031)
    ('33 %', 'under 0.1 %', 'over 99.9 %', '0 %', '3.1 %')
    """
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    digits = 1 if percent < 10 or percent > 99 else 0
    return f"{percent:.{digits}f}".removesuffix(".0") + " %"


def duration(ms: float) -> str:
    """Return a time span as a person says it.

    >>> duration(0), duration(250), duration(1_500), duration(90_000), duration(7_200_000)
    ('0 ms', '250 ms', '1.5 s', '1.5 min', '2 h')
    """
    for unit_ms, name in _UNITS:
        if ms >= unit_ms:
            text = f"{ms / unit_ms:,.1f}".removesuffix(".0")
            return f"{text} {'day' if text == '1' and name == 'days' else name}"
    return f"{ms:,.0f} ms"


def slot_name(precision_ms: int) -> str:
    """Return what a slot is to a reader who knows of none.

    >>> slot_name(1000), slot_name(100)
    ('second', '100 ms')
    """
    return "second" if precision_ms == 1000 else duration(precision_ms)


def slot_time(ms: int, precision_ms: int, form: str = "%-d %b %Y %H:%M:%S") -> str:
    """Return when a slot begins."""
    text = shown(ms, form)
    return f"{text}.{ms % 1000:03d}" if precision_ms % 1000 else text
