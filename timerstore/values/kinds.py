"""Checking kinds of arguments that many calls share: paths, numbers, durations, names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from difflib import get_close_matches
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import Any, Final, TypeGuard

from timerstore.errors import InvalidArgumentError

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
        from timerstore.values.numpytimes import units_ms  # NumPy with it, which is there by now

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


def check_name(name: Any, what: str = "topic") -> bytes:
    """Return the bytes of a name that is looked for, with any characters, or refuse it."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{what} is {name!r}. Pass a str.")
    try:
        return name.encode("utf-8", "surrogateescape")  # as `pending` names what is no UTF-8
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(f"{what} is no valid Unicode: {e}. Correct it.") from e
