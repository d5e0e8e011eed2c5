"""What the user's own rules find in a store that is validated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from timerstore.audit import Rule, ask, open_on
from timerstore.audit.own import add_stores, check_rules
from timerstore.audit.sentences import filled
from timerstore.validation.evidence import Example
from timerstore.validation.result import RuleResult

_COUNTS: Final = ("checked", "rows_warned", "rows_failed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_own(rules: Sequence[Rule], spark: SparkSession | None = None) -> None:
    """Try rules before a store is read. Raises InvalidArgumentError."""
    check_rules(rules, {}, open_on(spark))


def ask_own(
    rules: Sequence[Rule],
    path: str | os.PathLike[str],
    upto: str | None,
    delay_levels: str,
    spark: SparkSession | None = None,
) -> tuple[RuleResult, ...]:
    """Return how each rule does in a store. Raises InvalidArgumentError."""
    if not rules:
        return ()
    name = os.fspath(path)
    with open_on(spark)({}) as engine:
        add_stores(engine, rules, {name: name}, upto, delay_levels)
        asked = [(rule, ask(engine, rule, rule.limits)) for rule in rules]
    return tuple(_result(rule, found.get(name, [])) for rule, found in asked)


def _result(rule: Rule, rows: Sequence[Mapping[str, Any]]) -> RuleResult:
    """Let a row with a value above `fail` fail; if there is none, one above `warn` warns."""
    first: Mapping[str, Any] = rows[0] if rows else dict.fromkeys(_COUNTS, 0)
    fails = first["rows_failed"] > 0
    limit = rule.limits.fail if fails else rule.limits.warn
    return RuleResult(
        replace(rule, severity="error" if fails else "warning"),
        int(first["checked"]),
        int(first["rows_failed"] or first["rows_warned"]),
        tuple(_example(rule, row) for row in rows if row["value"] > limit),
    )


def _example(rule: Rule, row: Mapping[str, Any]) -> Example:
    if row.get("file") is None:
        return Example("", 0, filled(rule.says, rule.limits._asdict() | dict(row)))
    return Example(row["file"], int(row["offset"]), filled(rule.place, row))
