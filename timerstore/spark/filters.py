"""What Spark's filters ask for, as bounds.

Spark applies every filter again, so a bound may let pass more than its filter does.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds
from timerstore.tables.schema import BIGINT, INT, STRING, TIMESTAMP, Table

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_COMPARED: Final = frozenset(
    ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
)


def bounds_of(filters: Iterable[Any], table: Table) -> Bounds:
    """Return the bounds within which the rows lie that all filters accept."""
    bounds = Bounds()
    for each in filters:
        path = getattr(each, "attribute", ())
        known = [column for column in table.columns if path == (column.name,)]
        if path == ("store",):
            known = [table.find("store")]
        if not known:
            continue
        name, kind = known[0].name, known[0].kind
        which = type(each).__name__
        if which in _COMPARED:
            _compare(bounds, name, kind, which, each.value)
        elif which == "In":
            _choose(bounds, name, kind, each.value)
    return bounds


def _compare(bounds: Bounds, name: str, kind: str, which: str, value: Any) -> None:
    if kind == STRING and isinstance(value, str) and which.startswith("Equal"):
        bounds.allow(name, [value])
        return
    span = _span(kind, value)
    if span is None:
        return
    low, high = span
    if which.startswith("Less"):
        low = LOWEST
    if which.startswith("Greater"):
        high = HIGHEST
    bounds.narrow(_counted(name, kind), low, high)


def _choose(bounds: Bounds, name: str, kind: str, values: Iterable[Any]) -> None:
    values = [value for value in values if value is not None]
    if kind == STRING and all(isinstance(value, str) for value in values):
        bounds.allow(name, values)
        return
    spans = [_span(kind, value) for value in values]
    known = [span for span in spans if span is not None]
    if known and len(known) == len(spans):
        low, high = min(span[0] for span in known), max(span[1] for span in known)
        bounds.narrow(_counted(name, kind), low, high)


def _counted(name: str, kind: str) -> str:
    """Return the column that has the bounds: a time is bounded by its milliseconds."""
    return f"{name}_ms" if kind == TIMESTAMP else name


def _span(kind: str, value: Any) -> tuple[int, int] | None:
    """Return the whole numbers next to a value, which is between them."""
    if kind == TIMESTAMP and isinstance(value, datetime):
        value = value if value.tzinfo is not None else value.astimezone(UTC)
        low, rest = divmod(value - _EPOCH, _MILLISECOND)
        return low, low + bool(rest)
    if kind in (BIGINT, INT) and isinstance(value, int) and not isinstance(value, bool):
        return max(LOWEST, value), min(HIGHEST, value)
    return None
