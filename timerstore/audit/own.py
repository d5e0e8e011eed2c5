"""Rules of your own: a folder with a file of SQL each, as `rule.py` reads them.

They look at the tables that a store is read as (docs/spark.md), with the column `store`, and in a
run of the pipeline at the run's tables too. Of a store's table only the columns that a query names
are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any, Final

from timerstore.audit.asking import open_rule
from timerstore.audit.engines import Engine
from timerstore.audit.rule import OWN, RULES, Limits, Rule, made_for, read_rule, sql_files
from timerstore.errors import InvalidArgumentError
from timerstore.tables.schema import STORE, TABLES, arrow_schema
from timerstore.values.kinds import check_path, meant

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
    columns = open_rule(engine, rule).columns
    if "file" in columns and not ("offset" in columns and rule.place):
        raise InvalidArgumentError(
            f"{rule.file} returns a file. Let it return its offset too, and write -- place: …"
        )
    filled = {*columns, *Limits._fields}
    for key, names in (("says", filled), ("place", filled), ("none", set(Limits._fields))):
        for _, name, _, _ in Formatter().parse(getattr(rule, key)):
            if name is not None and name not in names:
                raise InvalidArgumentError(
                    f"{rule.file} says {{{name}}} in {key!r}, and {_lack(key)}."
                )


def _lack(key: str) -> str:
    if key == "none":
        return "there is no row then. Use warn, fail or least"
    return "its query returns no such column. Select it"


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
