"""Amounts as text for people, wherever they are shown; loads nothing."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def shown_bytes(count: int) -> str:
    """Return a size for people.

    >>> shown_bytes(38_707_200)
    '36.9 MiB'
    """
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} bytes"
