"""What a rule asks, what it means, and what it said last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from timerstore.audit import Rule
from timerstore.audit.asking import read_rules
from timerstore.audit.rule import CONSISTENCY, RULES
from timerstore.errors import InvalidArgumentError
from timerstore.pipeline.tablefiles import RUNS, read_results
from timerstore.values.kinds import meant

_SHOWN: Final = ("store", "verdict", "value", "warn", "fail", "says")


@dataclass(frozen=True)
class Explanation:
    """A rule, with what it said of each store in the last run that asked it."""

    rule: Rule
    run: str | None = None
    """The last run that asked it, if there are tables."""
    last: tuple[dict[str, Any], ...] = ()
    """Rows of `findings`; a run may have had other limits than the rule's file."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON; `query` is "" if the rule needs the bytes."""
        rule = self.rule
        told = {name: getattr(rule, name) for name in ("kind", "measures", "says", "means", "do")}
        limits = rule.limits._asdict() | {"fail": rule.limits.fail_or_none}
        if rule.kind == CONSISTENCY:
            limits = dict.fromkeys(limits)
        last = {"run": self.run, "last": list(self.last)}
        return {"rule": rule.name, **told, **limits, "query": rule.text, **last}

    def __str__(self) -> str:
        """Return it as a text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        rule, told = self.rule, self.to_dict()
        yield f"{rule.name}: {rule.measures}"
        if rule.kind == CONSISTENCY:
            yield f"says: {rule.says}"
        yield f"means: {rule.means}"
        if rule.kind != CONSISTENCY:
            yield f"do: {rule.do}"
            limits = [name for name in rule.limits._fields if told[name] or name == "warn"]
            yield f"limits: {', '.join(f'{name} {told[name]:,.10g}' for name in limits)}"
        yield ""
        yield rule.text.rstrip() or "No query: it is asked of the bytes while they are read."
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

    >>> timerstore.pipeline.explain("chains_depth").rule.means
    'All units of a chain are read before its slot fires.'
    """
    known = {each.name: each for each in read_rules(rules)} | RULES
    if rule not in known:
        raise InvalidArgumentError(f"There is no rule {rule!r}. {meant(rule, known)}")
    if out is None:
        return Explanation(known[rule])
    return Explanation(known[rule], *_last(out, rule))


def _last(out: str | os.PathLike[str], rule: str) -> tuple[str | None, tuple[dict[str, Any], ...]]:
    """Return the last run in which a rule was asked, and what it said there of each store."""
    runs = read_results(out, RUNS, columns=["run", "began"]).sort_by([("began", "descending")])
    for run in runs.column("run").to_pylist():
        rows = read_results(out, "findings", run=run, columns=["rule", *_SHOWN]).to_pylist()
        found = [{name: row[name] for name in _SHOWN} for row in rows if row["rule"] == rule]
        if found:
            return run, tuple(sorted(found, key=lambda row: str(row["store"])))
    return None, ()
