"""What is taken for a length of time or an instant, of Python, NumPy, pandas, Arrow or Polars.

A number is a length of time in seconds. A `datetime64` of NumPy counts from 1970 in UTC. A datetime
without a time zone is refused, and so is one of pandas, Arrow or Polars, alone or in an array. A
fraction of a millisecond rounds up.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from timerstore.errors import InvalidArgumentError
from timerstore.values.ids import Int64s
from timerstore.values.kinds import check_duration
from timerstore.values.numpytimes import units_ms

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_ZONE: Final = (
    "which has no time zone. Pass an aware datetime, such as datetime.now(timezone.utc)."
)


def whole_ms(delay: timedelta) -> int:
    """Return a duration in ms; fractions round up. The longest one has no negative."""
    return (delay.days * 86_400 + delay.seconds) * 1_000 - (-delay.microseconds // 1_000)


def instant_ms(at: object, name: str) -> int:
    """Return an aware datetime, or a datetime64, as epoch ms, or refuse it."""
    if type(at) is not datetime and _dtype_kind(at) != "M":
        if not isinstance(at, datetime):
            raise InvalidArgumentError(f"{name} is {at!r}. Pass an aware datetime.datetime.")
        if at != at:  # pandas.NaT
            raise InvalidArgumentError(f"{name} is {at!r}, which is no time. Pass an instant.")
        if hasattr(at, "to_datetime64") and at.utcoffset() is not None:
            at = at.to_datetime64()  # with the nanoseconds of pandas.Timestamp
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidArgumentError(f"{name} is {at!r}, {_NO_ZONE}")
        return whole_ms(at - EPOCH)
    return int(units_ms(np.asarray(at), name)[()])


def instants_ms(at: Any, name: str) -> int | Int64s:
    """Return one instant as epoch ms, or an array of them, or refuse it."""
    if isinstance(at, datetime) or getattr(at, "ndim", None) == 0:
        return instant_ms(at, name)
    return _each(at, name, "M", instant_ms)


def delays_ms(delay: Any, name: str) -> int | Int64s:
    """Return one length of time in ms, or an array of them, or refuse it."""
    if not hasattr(delay, "__len__") or getattr(delay, "ndim", None) == 0:
        return whole_ms(check_duration(delay, name))
    return _each(delay, name, "m", lambda each, what: whole_ms(check_duration(each, what)))


def _dtype_kind(value: object) -> str:
    """Return the letter of NumPy's kind of a value, or array; "" if it has none."""
    return str(getattr(getattr(value, "dtype", None), "kind", ""))


def _each(values: Any, name: str, kind: str, one: Callable[[Any, str], int]) -> Int64s:
    """Return what many say in ms; `one` reads those that are no array's of NumPy's `kind`."""
    array = as_array(values, name)
    if array.dtype.kind == kind:
        return units_ms(array, name)
    if array.ndim != 1 or array.dtype.kind == "M" or (kind == "M" and array.dtype.kind in "biuf"):
        if array.size:
            what = "instants" if kind == "M" else "lengths of time"
            raise InvalidArgumentError(f"{name} has the type {array.dtype}. Pass {what}.")
    return np.array([one(each, name) for each in array.tolist()], np.int64)


def as_array(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Return an array of NumPy; what has a time zone as datetime64 in UTC."""
    dtype = getattr(values, "dtype", getattr(values, "type", None))
    zones = [getattr(dtype, each) for each in ("tz", "time_zone") if hasattr(dtype, each)]
    try:
        if zones and zones[0] is not None:
            unit = getattr(dtype, "unit", None) or getattr(dtype, "time_unit", "ns")
            return np.asarray(values, f"datetime64[{unit}]")
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as e:
        raise InvalidArgumentError(
            f"{name} cannot be read as an array: {e}. Pass one for all, or an array."
        ) from e
    if array.dtype.kind == "M" and dtype is not None and not isinstance(values, np.ndarray):
        raise InvalidArgumentError(f"{name} is an array of {dtype}, {_NO_ZONE}")
    return array
