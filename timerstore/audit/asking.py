"""Asking an engine what rules find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from timerstore.audit.engines import Engine
from timerstore.audit.rule import NEVER, Limits, Rule, made_for
from timerstore.errors import InvalidArgumentError

PLACES_MAX: Final = 5
"""Rows of a store that a rule returns, at most."""
_COLUMNS: Final = ("store", "value", "checked")


Rows = dict[str, list[dict[str, Any]]]
"""Rows of a rule by store."""


def ask(engine: Engine, rules: Mapping[Rule, Limits]) -> dict[Rule, Rows]:
    """Return what rules find, by store: the rows of the largest values, the first one speaks.

    Rows without a value, or of which fewer were checked than `least`, are left out. `rows_warned`,
    `rows_failed`: how many rows have a value above the limit. What is equal
    is in the order of the other columns, so that it does not depend on the engine. All rules of a
    call are one job of Spark; what it cannot run names them all.
    """
    opened = []
    for rule, limits in rules.items():
        with _told(engine, rule):
            found = open_rule(engine, rule)
            opened.append(engine.open(_ranked(found.columns, limits), found))
    with _told(engine, *rules):
        answers = engine.ask_all(opened)
    by_rule: dict[Rule, Rows] = {}
    for rule, rows in zip(rules, answers, strict=True):
        by_store = by_rule[rule] = {}
        for row in sorted(rows, key=lambda row: (row["store"], row["nth"])):
            by_store.setdefault(row["store"], []).append(row)
    return by_rule


def open_rule(engine: Engine, rule: Rule) -> Any:
    """Return a rule's query, opened. Raises InvalidArgumentError."""
    made = "".join(f"{name} AS ({each.text}), " for name, each in made_for(rule.looks_at).items())
    with _told(engine, rule):
        found = engine.open(f"WITH {made}found AS (\n{rule.text}\n) SELECT * FROM found")
    for name in _COLUMNS:
        if name not in found.columns:
            raise InvalidArgumentError(f"{rule.file} returns no {name}. Select it.")
    return found


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
def _told(engine: Engine, *rules: Rule) -> Iterator[None]:
    """Let an error of the engine name the rules' files."""
    try:
        yield
    except engine.errors as e:
        # Behind this stand DuckDB's copy of the query, Spark's, or Spark's plan.
        said = re.split("\n\n|== SQL|;\n", str(e))[0].strip()
        files = ", ".join(rule.file for rule in rules)
        raise InvalidArgumentError(f"{files} cannot be run. The engine says: {said}") from e
