"""Asking an engine: what a rule of distribution finds, what one store's facts say of each other."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Formatter
from typing import Any, Final

from timerstore.audit.engines import Engine
from timerstore.audit.rule import (
    CONSISTENCY_RULES,
    NEVER,
    OURS,
    OWN,
    RESULTS,
    RULES,
    Limits,
    Rule,
    made_for,
    read_head,
    read_rule,
    sql_files,
)
from timerstore.errors import InvalidArgumentError
from timerstore.tables.schema import STORE, TABLES, arrow_schema
from timerstore.values.kinds import check_path, meant

PLACES_MAX: Final = 5
"""Rows of a store that a rule returns, at most."""
_COLUMNS: Final = ("store", "value", "checked")


def ask(engine: Engine, rule: Rule, limits: Limits) -> dict[str, list[dict[str, Any]]]:
    """Return what a rule finds, by store: the rows of the largest values, the first one speaks.

    Rows without a value, or of which fewer were checked than `least`, are left out. `rows_warned`,
    `rows_failed`: how many rows have a value above the limit. What is equal
    is in the order of the other columns, so that it does not depend on the engine.
    """
    columns = columns_of(engine, rule)
    with _told(engine, rule):
        rows = engine.rows(_found(rule) + _ranked(columns, limits))
    by_store: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["store"], row["nth"])):
        by_store.setdefault(row["store"], []).append(row)
    return by_store


def columns_of(engine: Engine, rule: Rule) -> list[str]:
    """Check a rule's query; return the names of its columns. Raises InvalidArgumentError."""
    with _told(engine, rule):
        columns = engine.columns(_found(rule) + "SELECT * FROM found")
    for name in _COLUMNS:
        if name not in columns:
            raise InvalidArgumentError(f"{rule.file} returns no {name}. Select it.")
    return columns


def _found(rule: Rule) -> str:
    """Return the head of a query that reads what a rule finds as the table `found`."""
    made = "".join(f"{name} AS ({each.text}), " for name, each in made_for(rule.looks_at).items())
    return f"WITH {made}found AS (\n{rule.text}\n) "


def _ranked(columns: Iterable[str], limits: Limits) -> str:
    order = ", ".join(f"found.{each}" for each in columns if each not in ("store", "value"))
    return (
        "SELECT * FROM (SELECT found.*, row_number() OVER (PARTITION BY found.store ORDER BY "
        f"found.value DESC, {order}) AS nth, {_above(limits.warn)} AS rows_warned, "
        f"{_above(limits.fail)} AS rows_failed FROM found WHERE found.value IS NOT NULL AND "
        f"found.checked >= {limits.least}) AS ranked WHERE nth <= {PLACES_MAX}"
    )


def _above(limit: float) -> str:
    """Return an expression for how many rows of a store have a value above a limit."""
    if limit == NEVER:
        return "0"
    return f"count(CASE WHEN found.value > {limit} THEN 1 END) OVER (PARTITION BY found.store)"


@contextmanager
def _told(engine: Engine, rule: Rule) -> Iterator[None]:
    """Let an error of the engine name the rule's file."""
    try:
        yield
    except engine.errors as e:
        # Behind this stand DuckDB's copy of the query, Spark's, or Spark's plan.
        said = re.split("\n\n|== SQL|;\n", str(e))[0].strip()
        raise InvalidArgumentError(f"{rule.file} cannot be run. The engine says: {said}") from e


JOINS: Final = {
    name.lstrip("0123456789_"): text for name, text in sql_files(OURS / "joins").items()
}
COUNTS: Final = JOINS.pop("counts")
MEASURES: Final = {
    name: query for name, text in RESULTS.items() if (query := read_head(name, text)[1])
}


def places_query(named_max: int) -> str:
    """Return the query for the places at which rules fail: the first, and how many there are."""
    every = " UNION ALL ".join(
        f"SELECT '{rule.name}' AS rule, file, place, reason, is_torn FROM (\n{rule.text}) AS found"
        for rule in CONSISTENCY_RULES
        if rule.text
    )
    return (
        "SELECT * FROM (SELECT *, count(*) OVER (PARTITION BY rule, is_torn) AS places, "
        "row_number() OVER (PARTITION BY rule, is_torn ORDER BY file, place, reason) AS nth "
        f"FROM ({every}) AS failing) AS ranked WHERE nth <= {named_max}"
    )


def checked_queries() -> dict[str, str]:
    """Return queries for how much each rule looked at: a column each, one pass over a table."""
    columns: dict[str, list[str]] = defaultdict(list)
    for rule in CONSISTENCY_RULES:
        for looks_at in rule.looks_at:
            rows, _, where = looks_at.partition(" WHERE ")
            count, _, table = rows.rpartition(" of ")
            each = f"CASE WHEN {where or 'TRUE'} THEN {count or 1} END"
            columns[table].append(f"coalesce(sum({each}), 0) AS {rule.name}")
    return {
        f"checked_{table}": f"SELECT {', '.join(each)} FROM {table}"
        for table, each in columns.items()
    }


_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,60}")
_WORD: Final = re.compile(r"\w+")


def read_rules(folder: str | os.PathLike[str] | None) -> tuple[Rule, ...]:
    """Read the rules in a folder, none if it is None. Raises InvalidArgumentError."""
    if folder is None:
        return ()
    place = check_path(folder)
    try:
        found = sql_files(place)
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidArgumentError(
            f"{place} cannot be read: {e}. Pass a folder with a file of SQL for each rule."
        ) from e
    if not found:
        raise InvalidArgumentError(f"{place} has no file that ends with .sql. Write a rule there.")
    return tuple(_read(place / f"{name}.sql", text) for name, text in found.items())


def _read(file: Path, text: str) -> Rule:
    name = file.stem
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{file} is no name of a rule. Use small letters, digits and _, such as far_ahead.sql."
        )
    if name in RULES:
        raise InvalidArgumentError(
            f"{file} has the name of a rule that timerstore has. Use another name."
        )
    return read_rule(name, text, str(file), OWN)


def check_rules(
    rules: Sequence[Rule], others: Mapping[str, Any], open_on: Callable[[dict[str, Any]], Any]
) -> None:
    """Try rules on tables without rows, so that what is wrong with one is told before work begins.

    `others`: schemas of the tables beside a store's, by name. `open_on`: opens an engine on Arrow
    tables. Raises InvalidArgumentError, which names the file, and says what the engine said.
    """
    if not rules:
        return
    known: dict[str, Any] = {name: _schema(name) for name in TABLES} | dict(others)
    made = made_for(each for rule in rules for each in rule.looks_at) if others else {}
    for rule in rules:
        for name in rule.looks_at:
            if name not in known and name not in made:
                raise InvalidArgumentError(
                    f"{rule.file} looks at {name!r}, which is not there. {meant(name, known)}"
                )
    asked = columns_asked(rules)
    needed = {each for rule in (*rules, *made.values()) for each in rule.looks_at} - made.keys()
    tables = {
        name: (_schema(name, asked[name]) if name in asked else known[name]).empty_table()
        for name in needed
    }
    with open_on(tables) as engine:
        for rule in rules:
            _check(engine, rule)


def _check(engine: Engine, rule: Rule) -> None:
    columns = columns_of(engine, rule)
    if "file" in columns and not ("offset" in columns and rule.place):
        raise InvalidArgumentError(
            f"{rule.file} returns a file. Let it return its offset too, and write -- place: …"
        )
    filled = {*columns, *Limits._fields}
    lacks = "its query returns no such column. Select it."
    keys = {"says": (filled, lacks), "place": (filled, lacks)}
    keys["none"] = {*Limits._fields}, "there is no row then. Use warn, fail or least."
    for key, (names, lack) in keys.items():
        for _, name, _, _ in Formatter().parse(getattr(rule, key)):
            if name is not None and name not in names:
                raise InvalidArgumentError(f"{rule.file} says {{{name}}} in {key!r}, and {lack}")


def _schema(table: str, columns: Sequence[str] | None = None) -> Any:
    names = [each.name for each in TABLES[table].columns] if columns is None else columns
    return arrow_schema(table, [STORE, *names])


def columns_asked(rules: Iterable[Rule]) -> dict[str, list[str]]:
    """Return the tables of a store that rules look at, with the columns that they name."""
    asked: dict[str, set[str]] = {}
    for rule in rules:
        words = set(_WORD.findall(rule.text))
        for name in rule.looks_at:
            if name in TABLES:
                asked.setdefault(name, set()).update(words)
    return {
        name: [each.name for each in TABLES[name].columns if each.name in words]
        for name, words in asked.items()
    }


def add_stores(
    engine: Engine,
    rules: Sequence[Rule],
    paths: Mapping[str, str],
    upto: str | None,
    delay_levels: str,
) -> None:
    """Let an engine have what rules look at of stores, given by their names. O(rows)."""
    for table, columns in columns_asked(rules).items():
        engine.add_stores(table, _schema(table, columns), paths, upto, delay_levels)
