"""Spark's filters as bounds: never narrower than the filter."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from timerstore.tables.bounds import HIGHEST, LOWEST
from timerstore.tables.schema import find_table

pytestmark = pytest.mark.slow

MESSAGES = find_table("messages")
AT = datetime(2026, 1, 1, 0, 0, 0, 1_500, tzinfo=UTC)
MS = 1_767_225_600_001


def bounds(name: str, column: str, value: Any) -> Any:
    from pyspark.sql import datasource

    from timerstore.spark.filters import bounds_of

    return bounds_of([getattr(datasource, name)((column,), value)], MESSAGES)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("EqualTo", 5, 5),
        ("EqualNullSafe", 5, 5),
        ("GreaterThan", 5, HIGHEST),
        ("GreaterThanOrEqual", 5, HIGHEST),
        ("LessThan", LOWEST, 5),
        ("LessThanOrEqual", LOWEST, 5),
    ],
)
def test_numbers(name: str, low: int, high: int) -> None:
    assert bounds(name, "offset", 5).numbers == {"offset": (low, high)}
    assert bounds(name, "none", 5).numbers == {}
    assert bounds(name, "crc_ok", True).numbers == {}


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("EqualTo", MS, MS + 1),
        ("GreaterThan", MS, HIGHEST),
        ("LessThan", LOWEST, MS + 1),
    ],
)
def test_times(name: str, low: int, high: int) -> None:
    assert bounds(name, "stored", AT).numbers == {"stored_ms": (low, high)}
    elsewhere = AT.astimezone(timezone(timedelta(hours=5)))
    assert bounds(name, "stored", elsewhere).numbers == {"stored_ms": (low, high)}


def test_lists_and_texts() -> None:
    assert bounds("In", "offset", (3, None, 9)).numbers == {"offset": (3, 9)}
    assert bounds("In", "topic", ("a", "b")).texts == {"topic": {"a", "b"}}
    assert bounds("EqualTo", "topic", "a").texts == {"topic": {"a"}}
    assert bounds("EqualTo", "store", "a").texts == {"store": {"a"}}
    assert bounds("GreaterThan", "topic", "a").texts == {}
    assert bounds("In", "offset", ("a", 1)).numbers == {}


def test_what_is_not_understood_narrows_nothing() -> None:
    from pyspark.sql import datasource

    from timerstore.spark.filters import bounds_of

    equal = datasource.EqualTo(("offset",), 5)
    filters = [
        datasource.Not(equal),
        datasource.IsNull(("offset",)),
        datasource.StringStartsWith(("topic",), "a"),
        datasource.EqualTo(("properties", "offset"), 5),
    ]
    found = bounds_of(filters, MESSAGES)
    assert found.numbers == {} and found.texts == {}
