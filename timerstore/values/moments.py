"""Epoch milliseconds as datetimes, or as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

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


def shown_time(ms: int) -> str:
    """Return UTC epoch milliseconds as ISO 8601; in milliseconds what no datetime can say.

    >>> shown_time(1_800_000_000_123)
    '2027-01-15T08:00:00.123Z'
    """
    time = moment(ms)
    if (time - _EPOCH) // _MILLISECOND != ms:
        return f"{ms} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
