"""A condition in words, as bounds.

    due >= '2026-11-21' and topic in ('mail', 'billing')

The tables understand it by themselves, without Spark: comparisons of a column with a value, joined
by `and`. What it leaves out is never read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from timerstore.errors import InvalidArgumentError
from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds
from timerstore.tables.schema import BIGINT, INT, STRING, TIMESTAMP, find_table

_VALUE: Final = r"(?:-?[0-9]+|'(?:[^']|'')*')"
_COMPARISON: Final = re.compile(rf"\s*(\w+)\s*(>=|<=|=|<|>)\s*({_VALUE})\s*")
_CHOICE: Final = re.compile(
    rf"\s*(\w+)\s+in\s*\(\s*({_VALUE}(?:\s*,\s*{_VALUE})*)?\s*\)\s*", re.IGNORECASE
)
_TEXT: Final = re.compile(r"'((?:[^']|'')*)'")
_AND: Final = re.compile(r"and\b", re.IGNORECASE)
_DIGITS_MAX: Final = 19
"""Of what 8 bytes hold; a longer number is beyond them."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

BOUNDED: Final[dict[str, tuple[str, ...]]] = {
    "messages": (
        *("offset", "size", "queue_id", "queue_offset", "born_ms", "stored_ms", "due_ms"),
        *("origin", "topic"),
    ),
    "fired": (
        *("offset", "size", "queue_id", "queue_offset", "put_ms", "fired_ms", "due_ms"),
        *("origin", "topic"),
    ),
    "timers": (
        *("due_ms", "topic", "put_ms", "message_offset", "message_size", "queue_offset"),
        *("roll_count", "unit_offset", "slot_time_ms"),
    ),
    "units": (
        *("offset", "prev_pos", "magic", "written_ms", "due_ms", "message_offset", "topic_hash"),
    ),
    "slots": ("index", "time_ms", "first", "last", "count"),
    "queues": ("topic", "queue_id", "index", "offset", "size", "tags_code"),
}
"""The columns by which each table leaves rows out exactly; `store` is one of every table."""
_NULLABLE: Final = {
    "messages": ("due_ms", "origin"),
    "fired": ("due_ms", "origin"),
    "timers": ("unit_offset", "slot_time_ms"),
    "slots": ("time_ms",),
}
"""Columns whose nulls are below 0 inside: a comparison with null is not true."""


def parse_where(text: str, table: str) -> Bounds:
    """Return the bounds that a condition sets. Raises InvalidArgumentError.

    >>> parse_where("due_ms >= 5 and topic in ('a', 'b')", "timers").of("due_ms")[0]
    5
    """
    bounds, at = Bounds(), 0
    while True:
        choice, comparison = _CHOICE.match(text, at), _COMPARISON.match(text, at)
        found = choice or comparison
        if found is None:
            raise InvalidArgumentError(
                f"where is not understood at {text[at:]!r}. Join comparisons such as "
                "due_ms >= 5, topic = 'a' or topic in ('a', 'b') with and."
            )
        if choice is not None:
            texts = [each.replace("''", "'") for each in _TEXT.findall(choice[2] or "")]
            _allow(bounds, table, choice[1], texts)
        elif comparison is not None:
            _compare(bounds, table, *comparison.groups())
        at = found.end()
        if at == len(text):
            break
        joined = _AND.match(text, at)
        if joined is None:
            raise InvalidArgumentError(f"where is not understood at {text[at:]!r}. Write and.")
        at = joined.end()
    for name in _NULLABLE.get(table, ()):
        if name in bounds.numbers:
            bounds.narrow(name, low=0)
    return bounds


def _kind(table: str, name: str) -> tuple[str, str]:
    """Return the column that is bounded, and the type of what it is compared with."""
    kind = find_table(table).find(name).kind
    counted = f"{name}_ms" if kind == TIMESTAMP else name
    known = BOUNDED.get(table, ())
    if counted not in known and name != "store":
        raise InvalidArgumentError(
            f"where cannot filter the table {table} by {name}. Filter the rows after reading "
            f"them, or use one of {', '.join((*known, 'store'))}."
        )
    return counted, kind


def _allow(bounds: Bounds, table: str, name: str, texts: list[str]) -> None:
    counted, kind = _kind(table, name)
    if kind != STRING:
        raise InvalidArgumentError(f"{name} is {kind}. Compare it with =, <, <=, > or >=.")
    bounds.allow(counted, texts)


def _compare(bounds: Bounds, table: str, name: str, sign: str, value: str) -> None:
    counted, kind = _kind(table, name)
    text = value[1:-1].replace("''", "'") if value.startswith("'") else None
    if kind == STRING:
        if text is None or sign != "=":
            raise InvalidArgumentError(f"{name} is a text. Compare it with = 'text', or use in.")
        bounds.allow(counted, [text])
        return
    if kind in (BIGINT, INT) and text is None:
        low = high = _number(value)
    elif kind == TIMESTAMP and text is not None:
        low, high = _around(name, text)
    else:
        example = "'2026-11-21 14:00:00'" if kind == TIMESTAMP else "5"
        raise InvalidArgumentError(f"{name} is {kind}. Compare it with a value such as {example}.")
    if sign == "=" and low < high:
        bounds.narrow(counted, 1, 0)  # no time in whole milliseconds is equal
    elif sign == "=":
        bounds.narrow(counted, low, high)
    elif sign in (">", ">="):
        bounds.narrow(counted, high + (sign == ">" and low == high), HIGHEST)
    else:
        bounds.narrow(counted, LOWEST, low - (sign == "<" and low == high))


def _number(text: str) -> int:
    """Return a number; of one with more digits than a column can have, one that is beyond all."""
    sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("-0")
    return sign * (10**_DIGITS_MAX if len(digits) > _DIGITS_MAX else int(digits or "0"))


def _around(name: str, text: str) -> tuple[int, int]:
    """Return the whole milliseconds next to a time; UTC, if no zone is named."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as e:
        raise InvalidArgumentError(
            f"{text!r} is no time to compare {name} with. Write 2026-11-21 14:00:00."
        ) from e
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    low, rest = divmod(time - _EPOCH, _MILLISECOND)
    return low, low + bool(rest)
