"""What a rule asks, what it means, and what it said last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from timerstore.audit import DISTRIBUTION_RULES, Rule
from timerstore.audit.meeting import INTEGRITY
from timerstore.audit.own import read_rules
from timerstore.errors import InvalidArgumentError
from timerstore.pipeline.finding import CONSISTENCY, DISTRIBUTION, OWN
from timerstore.pipeline.tablefiles import RUNS, read_results
from timerstore.validation.rules import RULES
from timerstore.values.kinds import meant

_SHOWN: Final = ("store", "verdict", "value", "warn", "fail", "says")


@dataclass(frozen=True)
class Explanation:
    """A rule in words and as SQL; `last`: a row for each store of the last run that asked it."""

    rule: str
    kind: str
    """consistency, distribution or own."""
    measures: str
    means: str
    do: str
    warn: float | None
    fail: float | None
    least: float | None
    """As the rule's file says; a run may have had other limits, which are in `last`."""
    query: str
    """"" of a rule that needs the bytes: no query asks it."""
    run: str | None = None
    """The last run that asked it, if there are tables."""
    last: tuple[dict[str, Any], ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return told | {"last": list(self.last)}

    def __str__(self) -> str:
        """Return it as a text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        limits = {"warn": self.warn, "fail": self.fail, "least": self.least or None}
        yield f"{self.rule}: {self.measures}"
        yield f"means: {self.means}"
        if self.do:
            yield f"do: {self.do}"
        told = [f"{name} {value:,.10g}" for name, value in limits.items() if value is not None]
        if self.kind != CONSISTENCY:
            yield f"limits: {', '.join(told)}"
        yield ""
        yield self.query.rstrip() or "No query: it is asked of the bytes while they are read."
        if self.run is not None:
            yield f"\n{self.run}:"
        yield from (f"  {each['verdict']} {each['store']}: {each['says']}" for each in self.last)


def explain(
    rule: str,
    out: str | os.PathLike[str] | None = None,
    *,
    rules: str | os.PathLike[str] | None = None,
) -> Explanation:
    """Return what a rule asks, what it means, what to do, its limits, and what it said last.

    `out`: the folder of result tables, if there are some. `rules`: a folder of rules of your own.
    Raises InvalidArgumentError.

    >>> timerstore.pipeline.explain("chains_depth").means
    'All units of a chain are read before its slot fires.'
    """
    own = {each.name: each for each in read_rules(rules)}
    ours = {each.name: each for each in DISTRIBUTION_RULES}
    sound = {each.name: each for each in RULES}
    known = [*own, *ours, *sound]
    if rule not in known:
        raise InvalidArgumentError(f"There is no rule {rule!r}. {meant(rule, known)}")
    run, last = (None, ()) if out is None else _last(out, rule)
    if rule in sound:
        told = sound[rule]
        return Explanation(
            rule=rule,
            kind=CONSISTENCY,
            measures=f"{told.counts}: {told.says}",
            means=told.means,
            do="",
            warn=None,
            fail=None,
            least=None,
            query=INTEGRITY.get(rule, ""),
            run=run,
            last=last,
        )
    return _of_query(own.get(rule) or ours[rule], OWN if rule in own else DISTRIBUTION, run, last)


def _of_query(
    rule: Rule, kind: str, run: str | None, last: tuple[dict[str, Any], ...]
) -> Explanation:
    return Explanation(
        rule=rule.name,
        kind=kind,
        measures=rule.measures,
        means=rule.means,
        do=rule.do,
        warn=rule.limits.warn,
        fail=rule.limits.fail_or_none,
        least=rule.limits.least,
        query=rule.text,
        run=run,
        last=last,
    )


def _last(out: str | os.PathLike[str], rule: str) -> tuple[str | None, tuple[dict[str, Any], ...]]:
    """Return the last run in which a rule was asked, and what it said there of each store."""
    runs = read_results(out, RUNS, columns=["run", "began"]).sort_by([("began", "descending")])
    for run in runs.column("run").to_pylist():
        rows = read_results(out, "findings", run=run, columns=["rule", *_SHOWN]).to_pylist()
        found = [{name: row[name] for name in _SHOWN} for row in rows if row["rule"] == rule]
        if found:
            return run, tuple(sorted(found, key=lambda row: str(row["store"])))
    return None, ()
