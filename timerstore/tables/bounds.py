"""What a filter asks for, as far as it helps to skip what nobody wants.

A bound only ever leaves out rows that the filter refuses; the caller still applies the filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from timerstore.errors import InvalidArgumentError
from timerstore.tables.schema import BIGINT, INT, STORE, STRING, TIMESTAMP, find_table

LOWEST: Final = -(1 << 63)
HIGHEST: Final = (1 << 63) - 1
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class Bounds:
    """Bounds of numbers, inclusive on both ends; the texts that are allowed."""

    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    texts: dict[str, frozenset[str]] = field(default_factory=dict)

    def narrow(self, column: str, low: int = LOWEST, high: int = HIGHEST) -> None:
        """Allow only numbers from `low` to `high`; what 8 bytes do not hold, none has."""
        if low > HIGHEST or high < LOWEST:
            low, high = HIGHEST, LOWEST
        before = self.of(column)
        self.numbers[column] = max(before[0], low), min(before[1], high)

    def allow(self, column: str, texts: Iterable[str]) -> None:
        """Allow only some texts."""
        allowed = frozenset(texts)
        self.texts[column] = self.texts.get(column, allowed) & allowed

    def within(self, other: Bounds) -> Bounds:
        """Return the bounds that allow what both allow."""
        both = Bounds(dict(self.numbers), dict(self.texts))
        for name, (low, high) in other.numbers.items():
            both.narrow(name, low, high)
        for name, texts in other.texts.items():
            both.allow(name, texts)
        return both

    def of(self, column: str) -> tuple[int, int]:
        """Return the bounds of a column."""
        return self.numbers.get(column, (LOWEST, HIGHEST))

    def may_be(self, column: str, text: str) -> bool:
        """Tell whether a text is allowed."""
        return text in self.texts[column] if column in self.texts else True


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, over UTF-16 units, as a signed 32-bit number."""
    units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2")
    value = 0
    for unit in units.tolist():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


# --- a condition in words, as bounds
#
#     due >= '2026-11-21' and topic in ('mail', 'billing')
#
# The tables understand it by themselves, without Spark: comparisons of a column with a value,
# joined by `and`. What it leaves out is never read.


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


FILTERED: Final = ("messages", "fired", "timers", "units", "slots", "queues")
"""Tables that leave rows out exactly, before their texts are read."""
_TEXTS: Final = ("topic", STORE)
"""The texts that can be compared."""


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
    for name in bounds.numbers:
        least = find_table(table).find(name).least
        if least is not None:  # a comparison with null is not true
            bounds.narrow(name, low=least)
    return bounds


def _kind(table: str, name: str) -> tuple[str, str]:
    """Return the column that is bounded, and the type of what it is compared with."""
    kind = find_table(table).find(name).kind
    if name != STORE and not (
        table in FILTERED and (name in _TEXTS or kind in (BIGINT, INT, TIMESTAMP))
    ):
        raise InvalidArgumentError(
            f"where cannot filter the table {table} by {name}. Filter the rows after reading "
            "them, or use numbers, times, topic or store."
        )
    return f"{name}_ms" if kind == TIMESTAMP else name, kind


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
