"""Amounts as text for people, wherever they are shown; loads nothing."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


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
