"""What a put is given: one row, values as JSON, the columns of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from timerstore.errors import InvalidArgumentError
from timerstore.values.check_arguments import (
    DUE_MS_MAX,
    check_due_ms,
    encode_properties,
    given_instant,
)
from timerstore.values.kinds import Duration, check_duration, meant, whole_ms

# --- when it moves, until when it is of use


def given_expires(
    expires: Duration | datetime | np.datetime64 | None, expires_ms: int | None
) -> timedelta | int | None:
    """Return how long from when it is put a timer expires, or when, epoch ms; None: never."""
    if expires is None:
        return None if expires_ms is None else check_due_ms(expires_ms, "expires_ms")
    if expires_ms is not None or isinstance(expires, datetime | np.datetime64):
        return given_instant(expires, expires_ms, "expires")
    return check_duration(expires, "expires")


def resolve_expires_ms(
    expires: timedelta | int | None, now_ms: int, due_ms: int | None
) -> int | None:
    """Return when a timer expires that is due then, at the latest of several; None: never."""
    if expires is None:
        return None
    if isinstance(expires, timedelta):
        expires = check_due_ms(now_ms + whole_ms(expires), "expires")
    if due_ms is not None and expires < due_ms:
        raise InvalidArgumentError(
            f"A timer is due at {due_ms}, and expires at {expires} (epoch ms): it would never be "
            "handed out. Pass a later expires, or an earlier time."
        )
    return expires


class Debounce(NamedTuple):
    """A put that moves the timer of its key: so far from now, and `at_most` from the first put."""

    wait: timedelta
    at_most: timedelta | None

    def most_ms(self, first_ms: int) -> int:
        """Return when the timer is due at the latest that was put first at `first_ms`."""
        return DUE_MS_MAX if self.at_most is None else first_ms + whole_ms(self.at_most)


def given_debounce(
    debounce: Duration | None, at_most: Duration | None, key: object, *others: object
) -> Debounce:
    """Return how a put moves the timer of its key, or refuse it. `others`: what it excludes."""
    if debounce is None:
        raise InvalidArgumentError("at_most was passed without debounce. Pass debounce as well.")
    if any(each is not None and each is not False for each in others):
        raise InvalidArgumentError(
            "debounce says when the timer is due, and replaces the one that is pending. Leave out "
            "delay, at, at_ms, delay_level, jitter, if_absent and replace."
        )
    if key is None:
        raise InvalidArgumentError("debounce was passed without a key. Pass key as well.")
    wait = check_duration(debounce, "debounce")
    longest = None if at_most is None else check_duration(at_most, "at_most")
    if wait < timedelta(0):
        raise InvalidArgumentError(f"debounce is {debounce!r}. Pass a length of time, 0 or more.")
    if longest is not None and longest < wait:
        raise InvalidArgumentError(
            f"at_most is {at_most!r}, and debounce is {debounce!r}. Pass an at_most that is as "
            "long, or longer."
        )
    return Debounce(wait, longest)


# --- one row


Given = tuple[Any, ...]
"""A row's fields as a plain tuple: making the row itself takes a quarter of a short put's time."""


class Timing(TypedDict, total=False):
    """What each call that puts one timer takes besides body and topic, by name."""

    delay: Duration | None
    delay_ms: int | None
    at: datetime | None
    at_ms: int | None
    key: str | None
    tag: str | None
    properties: Mapping[str, str] | None
    delay_level: int | None
    if_absent: bool
    expires: Duration | datetime | None
    expires_ms: int | None


class Described(Timing, total=False):
    """What `put` takes besides the body, by name."""

    topic: str
    replace: bool
    jitter: Duration | None
    debounce: Duration | None
    at_most: Duration | None


class Put(NamedTuple):
    """The arguments of `AnyStore.put`, in their order, with what they are if left out."""

    body: bytes
    topic: str = "default"
    delay: timedelta | None = None
    at: datetime | None = None
    at_ms: int | None = None
    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    delay_level: int | None = None
    if_absent: bool = False
    replace: bool | Debounce = False
    expires: timedelta | int | None = None

    @property
    def is_conditional(self) -> bool:
        """Whether it depends on what is pending; or what says so is wrong."""
        return self.if_absent is not False or self.replace is not False

    @property
    def times(self) -> tuple[timedelta | None, datetime | None, int | None]:
        """What says when it is due, except a delay level."""
        return self.delay, self.at, self.at_ms

    def described(self) -> bytes:
        """Return key, tag and properties as they stand in a message, or refuse them."""
        return encode_properties(self.key, self.tag, self.properties)


class Many(NamedTuple):
    """The arguments of `AnyStore.put_many` besides the bodies."""

    topic: str
    at_ms: Any = None
    delay_ms: Any = None
    keys: Any = None
    tag: str | None = None
    delay_level: int | None = None
    jitter: Duration | None = None
    expires: timedelta | int | None = None


Changes = tuple[
    timedelta | None, datetime | None, int | None, bytes | None, Mapping[str, str] | None
]
"""What `AnyStore.reschedule` is given: delay, at, at_ms, body, properties."""


# --- values as JSON, frames as columns, for a put


def json_body(value: object) -> bytes:
    """Return a value as JSON in UTF-8, or refuse it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidArgumentError(
            f"value cannot be written as JSON: {e}. Pass a dict, a list, a text, a number, True, "
            "False or None."
        ) from e


def put_columns(table: Any, due: str | None, body: str, key: str | None) -> dict[str, Any]:
    """Return the arguments of a `put_many` from the columns of a table, or refuse it.

    `table` is whatever exports itself to Arrow, so none of the libraries is imported here.
    """
    if not hasattr(table, "__arrow_c_stream__") and not hasattr(table, "__arrow_c_array__"):
        raise InvalidArgumentError(
            f"table has the type {type(table).__name__}. Pass a table of Arrow, or a DataFrame of "
            "Polars or of pandas 2.2 or newer."
        )
    try:
        columns = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise InvalidArgumentError(f"table cannot be read as one of Arrow: {e}.") from e
    given = {"bodies": _binaries(_column(columns, body, "body"))}
    if key is not None:
        given["keys"] = _binaries(_column(columns, key, "key"))
    if due is not None:
        times = _column(columns, due, "due")
        is_delay, is_ms = kinds.is_duration(times.type), kinds.is_integer(times.type)
        given["delay" if is_delay else "at_ms" if is_ms else "at"] = times
    return given


def _column(columns: pa.Table, name: Any, what: str) -> pa.ChunkedArray:
    if not isinstance(name, str) or columns.column_names.count(name) != 1:
        raise InvalidArgumentError(
            f"{what} is {name!r}, and the table has no such column, or several. "
            f"{meant(name, columns.column_names)}"
        )
    if columns[name].null_count:
        raise InvalidArgumentError(f"The column {name!r} has nulls. Leave those rows out.")
    return columns[name]


def _binaries(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return what kernels read: neither a dictionary, as categories of pandas are, nor a view."""
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kinds.is_string_view(column.type) or kinds.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    return column
