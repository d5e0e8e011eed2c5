"""Conditions in words: exactly the rows that they say, of every table."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.table_stores import EVENTFUL, live
from timerstore.tables import TABLES, read_table
from timerstore.tables.bounds import FILTERED, HIGHEST, LOWEST, parse_where


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("where") / "s"
    live(path, EVENTFUL).close()
    return path


SIGNS = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


NUMBERS = [
    (table, each.name)
    for table in FILTERED
    for each in TABLES[table].columns
    if each.kind in ("int", "bigint")
]


@given(
    which=st.sampled_from(NUMBERS),
    pick=st.integers(0, 10_000),
    sign=st.sampled_from(sorted(SIGNS)),
    more=st.integers(-1, 1),
)
def test_numbers(closed: Path, which: tuple[str, str], pick: int, sign: str, more: int) -> None:
    table, name = which
    values = read_table(closed, table, [name])[name].to_pylist()
    known = [value for value in values if value is not None]
    value = known[pick % len(known)] + more if known else pick
    bounds = parse_where(f"{name} {sign} {value}", table)
    read = read_table(closed, table, [name], bounds)[name].to_pylist()
    assert read == [v for v in values if v is not None and SIGNS[sign](v, value)]


def test_texts_and_several(closed: Path) -> None:
    for table in ("messages", "fired", "timers", "queues"):
        topics = read_table(closed, table, ["topic"])["topic"].to_pylist()
        for where, wanted in (
            ("topic = 'second'", ["second"]),
            ("TOPIC IN ('second','it''s')".replace("TOPIC", "topic"), ["second"]),
            ("topic in ('second', 'default') AND topic = 'default'", ["default"]),
        ):
            read = read_table(closed, table, ["topic"], parse_where(where, table))
            assert read["topic"].to_pylist() == [each for each in topics if each in wanted]
    assert parse_where("topic = 'it''s'", "timers").texts == {"topic": {"it's"}}


@pytest.mark.parametrize(
    ("where", "low", "high"),
    [
        ("due >= '1970-01-01 00:00:00.005'", 5, HIGHEST),
        ("due > '1970-01-01 00:00:00.005'", 6, HIGHEST),
        ("due > '1970-01-01 00:00:00.0055'", 6, HIGHEST),
        ("due < '1970-01-01 00:00:00.005'", LOWEST, 4),
        ("due < '1970-01-01 00:00:00.0055'", LOWEST, 5),
        ("due <= '1970-01-01T01:00:00.005+01:00'", LOWEST, 5),
        ("due = '1970-01-01 00:00:00.005Z'", 5, 5),
        ("due = '1970-01-01 00:00:00.0055'", 1, 0),
        ("due_ms>=3 and due_ms<7", 3, 6),
    ],
)
def test_times(where: str, low: int, high: int) -> None:
    assert parse_where(where, "timers").of("due_ms") == (low, high)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("", "where is not understood at ''"),
        ("due_ms = 5 or due_ms = 6", "not understood at 'or due_ms = 6'. Write and"),
        ("due_ms = 5 and", "where is not understood at ''"),
        ("none = 5", "has no column 'none'"),
        (
            "key = 'a'",
            "cannot filter the table timers by key. Filter the rows after reading them, or use "
            "numbers, times, topic or store.",
        ),
        ("due_ms = 'a'", "due_ms is bigint. Compare it with a value such as 5"),
        ("due = 5", "due is timestamp. Compare it with a value such as '2026"),
        ("due = 'soon'", "'soon' is no time to compare due with"),
        ("topic > 'a'", "topic is a text"),
        ("topic = 5", "topic is a text"),
        ("topic in ('a' 'b')", "where is not understood at"),
        ("topic in ('a' or 'b')", "where is not understood at"),
        ("due_ms in (1, 2)", "due_ms is bigint. Compare it with ="),
    ],
)
def test_refusals(where: str, words: str) -> None:
    with pytest.raises(timerstore.InvalidArgumentError, match=re.escape(words)):
        parse_where(where, "timers")


@pytest.mark.parametrize("digits", ["9223372036854775808", "9" * 30, "0" * 30 + "9" * 5_000])
def test_numbers_that_no_column_holds(closed: Path, digits: str) -> None:
    count = timerstore.read(closed).num_rows
    for where, wanted in ((f"< {digits}", count), (f"> {digits}", 0), (f"= {digits}", 0)):
        assert timerstore.read(closed, where=f"due_ms {where}").num_rows == wanted
    for where, wanted in ((f"> -{digits}", count), (f"= -{digits}1", 0), (f"< -{digits}1", 0)):
        assert timerstore.read(closed, where=f"due_ms {where}").num_rows == wanted
    assert timerstore.read(closed, where=f"due_ms > {'0' * 5_000}5").num_rows == count


def test_texts_with_brackets_and_commas(closed: Path) -> None:
    wanted = {"/old (1)/s", "a,b", "it's"}
    assert parse_where("store in ('/old (1)/s', 'a,b','it''s' )", "timers").texts["store"] == wanted
    assert parse_where("topic in ()", "timers").texts["topic"] == set()
