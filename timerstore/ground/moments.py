"""Epoch milliseconds as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_FIRST_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def moment(ms: int) -> datetime:
    """Return a time in UTC; the first or the last datetime there is for what lies beyond.

    >>> moment(4_070_908_800_001).isoformat()
    '2099-01-01T00:00:00.001000+00:00'
    """
    return _EPOCH + timedelta(milliseconds=min(max(int(ms), _FIRST_MS), _LAST_MS))
