"""Asking an engine what a rule finds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from timerstore.audit.engines import Engine, rows_of
from timerstore.audit.rule import NEVER, Limits, Rule, made_for
from timerstore.errors import InvalidArgumentError

PLACES_MAX: Final = 5
"""Rows of a store that a rule returns, at most."""
_COLUMNS: Final = ("store", "value", "checked")


def ask(engine: Engine, rule: Rule, limits: Limits) -> dict[str, list[dict[str, Any]]]:
    """Return what a rule finds, by store: the rows of the largest values, the first one speaks.

    Rows without a value, or of which fewer were checked than `least`, are left out. `rows_warned`,
    `rows_failed`: how many rows have a value above the limit. What is equal
    is in the order of the other columns, so that it does not depend on the engine.
    """
    with _told(engine, rule):
        found = open_rule(engine, rule)
        rows = rows_of(engine.ask(_ranked(found.columns, limits), found))
    by_store: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["store"], row["nth"])):
        by_store.setdefault(row["store"], []).append(row)
    return by_store


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
def _told(engine: Engine, rule: Rule) -> Iterator[None]:
    """Let an error of the engine name the rule's file."""
    try:
        yield
    except engine.errors as e:
        # Behind this stand DuckDB's copy of the query, Spark's, or Spark's plan.
        said = re.split("\n\n|== SQL|;\n", str(e))[0].strip()
        raise InvalidArgumentError(f"{rule.file} cannot be run. The engine says: {said}") from e
