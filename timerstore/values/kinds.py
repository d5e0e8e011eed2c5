"""Checking kinds of arguments that many calls share: paths, numbers, names, times."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from timerstore.errors import InvalidArgumentError

if TYPE_CHECKING:  # the shell's help does without
    import numpy as np

    from timerstore.values.ids import Int64s

# --- times of NumPy (datetime64, timedelta64) in milliseconds; fractions round up


_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_UNIT_MS.update(D=86_400_000, W=604_800_000)
_PER_MS: Final = {"us": 10**3, "ns": 10**6, "ps": 10**9, "fs": 10**12, "as": 10**15}
_MS_MAX: Final = 1 << 53
"""Past the year 9999: what is longer is refused by who knows the limit."""


def units_ms(values: np.ndarray[Any, Any], name: str) -> Int64s:
    """Return datetime64s or timedelta64s in ms, or refuse them."""
    import numpy as np

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


# --- kinds


Duration = timedelta | float
"""A length of time: a timedelta, or seconds."""

ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*)://")
_NAMES_SHOWN: Final = 20
_ELSEWHERE: Final = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://|(s3|gs|gcs|abfss?|hdfs):/")
"""Addresses; a Path has lost one of the two slashes."""


def check_path(path: Any) -> Path:
    """Return a path, or refuse it."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidArgumentError(f"path is {path!r}. Pass a str, or a pathlib.Path.")
    text = os.path.expanduser(os.fspath(path))  # "~/timers", which only a shell knows
    try:
        refused = "\0" in text or not text or not os.fsencode(text)
    except UnicodeEncodeError:
        refused = True
    if refused:
        raise InvalidArgumentError(
            f"path is {text!r}, and no file can have that name. Pass another path."
        )
    if _ELSEWHERE.match(text):
        text = re.sub(":/+", "://", text, count=1)
        raise InvalidArgumentError(
            f"{text} is an address, and this takes a folder of this machine. If a backup lies "
            f"there, make a store of it first: timerstore restore {text} FOLDER."
        )
    return Path(text)


def is_url(place: object) -> TypeGuard[str]:
    """Tell whether a place is named by an address, such as s3://bucket/timers."""
    return isinstance(place, str) and ADDRESS.match(place) is not None


def check_place(path: Any) -> Path:
    """Return a path that stays the same wherever the process goes (`chdir`), or refuse it."""
    if isinstance(path, str) and path.startswith("file://"):
        raise InvalidArgumentError(f"{path} is an address. Pass the folder itself.")
    try:
        return check_path(path).absolute()
    except OSError as e:
        raise InvalidArgumentError(
            f"path is {path!r}, but the working directory was removed. Pass a path that begins "
            "with /."
        ) from e


def check_bool(value: Any, what: str) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what} is {value!r}. Pass True or False.")


def check_kind(value: Any, kind: type, what: str) -> None:
    """Refuse what is no instance of a class."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{what} is {value!r}. Pass a {kind.__name__}.")


def check_int(value: Any, what: str, low: int, high: int) -> int:
    """Return a whole number of any library as one of Python's, or refuse it."""
    number = as_int(value)
    if number is None:
        raise InvalidArgumentError(f"{what} is {value!r}. Pass an int, {low} to {high}.")
    if not low <= number <= high:
        raise InvalidArgumentError(f"{what} is {shown_int(number)}. Use {low} to {high}.")
    return number


def as_int(value: Any) -> int | None:
    """Return a whole number of any library as one of Python's; None for what is none, or a bool."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def shown_int(value: Any) -> str:
    """Return what was passed, for an error; Python refuses to write very long numbers."""
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def check_choice(value: Any, what: str, choices: Iterable[str]) -> None:
    """Refuse what is none of some words."""
    words = tuple(choices)
    if not isinstance(value, str) or value not in words:
        raise InvalidArgumentError(f"{what} is {value!r}. Use {', '.join(words)}.")


def meant(name: Any, known: Iterable[str]) -> str:
    """Return the end of an error about a name that is not known: a near one, then what there is."""
    words = tuple(known)
    near = get_close_matches(name.lower(), words, 1) if isinstance(name, str) else []
    asked = f"Did you mean {near[0]}? " if near else ""
    return f"{asked}Use {', '.join(words)}."


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return an error about the name of a topic or group that a store has never seen."""
    words = sorted(known)
    near = get_close_matches(name, words, 1)
    asked = f" Did you mean {near[0]!r}?" if near else ""
    if not words:
        return f"There is no {what} {name!r}: the store has no {what} yet."
    more = f", and {len(words) - _NAMES_SHOWN:,} more" if len(words) > _NAMES_SHOWN else ""
    return (
        f"There is no {what} {name!r} in this store.{asked} "
        f"It has {', '.join(words[:_NAMES_SHOWN])}{more}."
    )


def check_list(values: Any, what: str, wanted: str) -> list[Any]:
    """Return what can be gone through as a list, or refuse it: the error says what is `wanted`.

    Whether it can is only known by trying: an array without a dimension says so, and cannot.
    """
    cause = None
    try:
        if not isinstance(values, str | bytes):
            return list(values)
    except (NotImplementedError, TypeError) as e:
        cause = e
    raise InvalidArgumentError(f"{what} is {values!r}. {wanted}") from cause


def check_names(names: Any, what: str) -> list[str]:
    """Return some names as a list, or refuse them."""
    wanted = "Pass a list of names."
    found = check_list(names, what, wanted)
    if not all(isinstance(name, str) for name in found):
        raise InvalidArgumentError(f"{what} is {names!r}. {wanted}")
    return found


def check_positive(value: Any, what: str) -> None:
    """Refuse what is no positive, finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise InvalidArgumentError(f"{what} is {value!r}. Pass a number above 0.")


def check_duration(value: Any, what: str) -> timedelta:
    """Return a duration, given as a length of time or in seconds, or refuse it."""
    value = _plain(value, what)
    if isinstance(value, timedelta):
        return value
    wanted = "Pass a datetime.timedelta, or seconds as a number."
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgumentError(f"{what} is {value!r}. {wanted}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError) as e:
        shown = shown_int(value)
        raise InvalidArgumentError(
            f"{what} is {shown}, which is no length of time. {wanted}"
        ) from e


def _plain(value: Any, what: str) -> Any:
    """Return a number, or a length of time, of any library as one of Python's."""
    if type(value) in (int, float, timedelta, bool):
        return value
    if hasattr(value, "to_timedelta64"):  # pandas.Timedelta has nanoseconds
        value = value.to_timedelta64()
    if getattr(getattr(value, "dtype", None), "kind", "") == "m":
        try:
            return timedelta(milliseconds=int(units_ms(value, what)))
        except (OverflowError, TypeError) as e:
            raise InvalidArgumentError(f"{what} is {value!r}, which is no length of time.") from e
    if isinstance(value, Integral):
        return int(value)
    try:
        return float(value) if isinstance(value, Real | Decimal) else value
    except (OverflowError, ValueError) as e:  # a fraction that is too large; a signalling NaN
        raise InvalidArgumentError(f"{what} is {value!r}, which is no length of time.") from e


def check_timeout(timeout: Any) -> float | None:
    """Return how many seconds to wait, None for ever, or refuse it."""
    if timeout is None or (type(timeout) is float and timeout == timeout):
        return timeout
    if type(timeout) is not int:
        timeout = _plain(timeout, "timeout")
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout:
        raise InvalidArgumentError(
            f"timeout is {timeout!r}. Pass seconds, a timedelta, or None to wait for ever."
        )
    try:
        return float(timeout)
    except OverflowError:
        return None  # longer than any process


def check_name(name: Any) -> bytes:
    """Return the bytes of a topic that is looked for, with any characters, or refuse it."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"topic is {name!r}. Pass a str.")
    try:
        return name.encode("utf-8", "surrogateescape")  # as `pending` names what is no UTF-8
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(f"topic is no valid Unicode: {e}. Correct it.") from e


# --- what is taken for a length of time or an instant, of Python, NumPy, pandas, Arrow or Polars
#
# A number is a length of time in seconds. A `datetime64` of NumPy counts from 1970 in UTC. A
# datetime without a time zone is refused, and so is one of pandas, Arrow or Polars, alone or in
# an array. A fraction of a millisecond rounds up.


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
    import numpy as np

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
    import numpy as np

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
    import numpy as np

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
