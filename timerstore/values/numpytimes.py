"""Times of NumPy (datetime64, timedelta64) in milliseconds; fractions round up."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.errors import InvalidArgumentError
from timerstore.values.ids import Int64s

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_UNIT_MS.update(D=86_400_000, W=604_800_000)
_PER_MS: Final = {"us": 10**3, "ns": 10**6, "ps": 10**9, "fs": 10**12, "as": 10**15}
_MS_MAX: Final = 1 << 53
"""Past the year 9999: what is longer is refused by who knows the limit."""


def units_ms(values: np.ndarray[Any, Any], name: str) -> Int64s:
    """Return datetime64s or timedelta64s in ms, or refuse them."""
    if np.isnat(values).any():
        raise InvalidArgumentError(f"{name} has NaT, which is no time. Leave it out.")
    unit, step = np.datetime_data(values.dtype)
    if values.dtype.kind == "M" and unit in ("Y", "M"):
        values, unit, step = values.astype("datetime64[D]"), "D", 1
    counts = values.astype(np.int64)
    if unit in _PER_MS:
        per_ms = _PER_MS[unit]
        if step > 1:  # "10us", say: with Python's integers, which do not overflow
            many = [-(-int(each) * step // per_ms) for each in counts.ravel()]
            return np.array(many, np.int64).reshape(counts.shape)
        whole: Int64s = -(-counts // per_ms)
        return whole
    if unit not in _UNIT_MS:
        raise InvalidArgumentError(
            f"{name} has the type {values.dtype}, whose unit has no fixed length. Use one of "
            "weeks, days, hours, minutes, seconds or less."
        )
    unit_ms = step * _UNIT_MS[unit]
    limit = _MS_MAX // unit_ms
    length_ms: Int64s = np.clip(counts, -limit, limit) * unit_ms
    return length_ms
