"""What a filter asks for, as far as it helps to skip what nobody wants.

A bound only ever leaves out rows that the filter refuses; the caller still applies the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

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

    def choose(self, names: Container[str], values: Callable[[str], Any]) -> Flags | None:
        """Tell which rows are within the bounds; None: all of them.

        `names`: the columns that can have bounds. `values`: gives one of them, int64[n].
        """
        chosen: Flags | None = None
        for name, (low, high) in self.numbers.items():
            if name in names:
                numbers = values(name)
                within = (numbers >= low) & (numbers <= high)
                chosen = within if chosen is None else chosen & within
        return None if chosen is not None and chosen.all() else chosen


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, over UTF-16 units, as a signed 32-bit number."""
    units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2")
    value = 0
    for unit in units.tolist():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
