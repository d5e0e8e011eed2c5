"""Asking an engine what a rule finds."""

from __future__ import annotations

from typing import Any, Final

from timerstore.audit.engines import Engine, rows_of
from timerstore.audit.rule import Limits, Rule, made_for
from timerstore.errors import InvalidArgumentError

PLACES_MAX: Final = 5
"""Rows of a store that a rule returns, at most."""
_COLUMNS: Final = ("store", "value", "checked")


def ask(engine: Engine, rule: Rule, limits: Limits) -> dict[str, list[dict[str, Any]]]:
    """Return what a rule finds, by store: the rows of the largest values, the first one speaks.

    Rows without a value, or of which fewer were checked than `least`, are left out. What is equal
    is in the order of the other columns, so that it does not depend on the engine.
    """
    tables = "".join(f"{name} AS ({made.text}), " for name, made in made_for(rule.looks_at).items())
    found = f"WITH {tables}found AS ({rule.text})"
    columns = engine.columns(f"{found} SELECT * FROM found")
    for name in _COLUMNS:
        if name not in columns:
            raise InvalidArgumentError(f"The rule {rule.name} returns no {name}. Select it.")
    order = ", ".join(f"found.{each}" for each in columns if each not in ("store", "value"))
    rows = engine.ask(
        f"{found} SELECT * FROM (SELECT found.*, row_number() OVER (PARTITION BY found.store "
        f"ORDER BY found.value DESC, {order}) AS nth FROM found WHERE found.value IS NOT NULL "
        f"AND found.checked >= {limits.least}) AS ranked WHERE nth <= {PLACES_MAX}"
    )
    by_store: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows_of(rows), key=lambda row: (row["store"], row["nth"])):
        by_store.setdefault(row["store"], []).append(row)
    return by_store
