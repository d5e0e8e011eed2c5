"""What a run returns: findings, a verdict for each store, one for all; what one rule said last."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from timerstore.audit import Rule
from timerstore.audit.asking import read_rules
from timerstore.audit.rule import CONSISTENCY, FAIL, OK, RULES, VERDICTS, Finding, worst
from timerstore.errors import InvalidArgumentError
from timerstore.pipeline.tablefiles import RUNS, read_results
from timerstore.values.amounts import counted
from timerstore.values.kinds import meant


@dataclass(frozen=True)
class StoreResult:
    """What a run found in one store; what is ok is only in the table `findings`."""

    name: str
    path: str
    state: str
    """sound, damaged or unreadable."""
    verdict: str
    error: str | None = None
    findings: tuple[Finding, ...] = ()
    """The worst first."""
    messages: int = 0
    units: int = 0
    files: tuple[str, ...] = ()
    """What was written."""

    def to_dict(self) -> dict[str, Any]:
        """Return all but the files, for JSON."""
        names = ("name", "path", "state", "verdict", "error", "messages", "units")
        told = {name: getattr(self, name) for name in names}
        told["findings"] = [each.to_dict() for each in self.findings]
        return told

    @property
    def why(self) -> str:
        """The worst finding's sentence, or why the store could not be read; "" if all is ok."""
        if self.error is not None:
            return self.error
        return "".join(f"{each.name}: {each.says}" for each in self.findings[:1])


@dataclass(frozen=True)
class RunResult:
    """What a run found."""

    run: str
    day: str
    out: str
    seconds: float
    stores: tuple[StoreResult, ...]
    kept: object = field(default=None, repr=False, compare=False)
    """What keeps the tables until nobody needs them, if they are temporary."""

    @property
    def verdict(self) -> str:
        """The worst of all stores: ok, warn or fail."""
        return worst(each.verdict for each in self.stores)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; what warns is ok."""
        return self.verdict != FAIL

    def __getitem__(self, name: str) -> StoreResult:
        """Return what was found in a store, by its name. Raises KeyError."""
        return {each.name: each for each in self.stores}[name]

    def read(self, table: str) -> Any:
        """Return one of its tables as an Arrow table, with the columns `day` and `store`.

        Raises InvalidArgumentError if there is no such table.

        >>> timerstore.pipeline.run("timers/").read("stores").num_rows
        1
        """
        return read_results(self.out, table, run=self.run)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "run": self.run,
            "day": self.day,
            "out": self.out,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "stores": [each.to_dict() for each in self.stores],
        }

    def to_prometheus(self) -> str:
        """Return verdicts, values and seconds in the text format of Prometheus.

        As for the textfile collector of its node exporter. Needs the extra `metrics`.

        >>> "timerstore_pipeline_verdict" in timerstore.pipeline.run("timers/").to_prometheus()
        True
        """
        from prometheus_client import CollectorRegistry, Gauge, generate_latest

        registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"timerstore_pipeline_{name}", text, labels, registry=registry)

        (run,) = self.read("runs").to_pylist()
        gauge("run_seconds", "How long the run took").set(self.seconds)
        gauge("run_end_seconds", "When it ended, seconds since 1970").set(run["ended"].timestamp())
        verdict = gauge("verdict", "Of a store: 0 ok, 1 warn, 2 fail", "store")
        pending = gauge("pending", "Timers that wait in a store", "store")
        for row in self.read("stores").to_pylist():
            verdict.labels(row["store"]).set(VERDICTS.index(row["verdict"]))
            if row["pending"] is not None:
                pending.labels(row["store"]).set(row["pending"])
        rule = gauge("rule_verdict", "Of a rule: 0 ok, 1 warn, 2 fail", "store", "rule")
        value = gauge("rule_value", "What a rule measured", "store", "rule")
        for row in self.read("findings").to_pylist():
            names = row["store"], row["rule"]
            rule.labels(*names).set(VERDICTS.index(row["verdict"]))
            value.labels(*names).set(row["value"])
        took = gauge("part_seconds", "How long a part of the run took", "part", "name")
        for row in self.read("metrics").to_pylist():
            took.labels(row["part"], row["name"]).set(row["seconds"])
        return generate_latest(registry).decode()

    def __str__(self) -> str:
        """Return a line for the run, and one for each store that is not ok."""
        counts = Counter(each.verdict for each in self.stores)
        told = ", ".join(f"{counts[each]} {each}" for each in VERDICTS if counts[each])
        lines = [f"{self.run}: {counted(len(self.stores), 'store')}, {told}"]
        bad = [each for each in self.stores if each.verdict != OK]
        bad.sort(key=lambda each: -VERDICTS.index(each.verdict))
        return "\n".join([*lines, *(f"  {each.verdict} {each.name}: {each.why}" for each in bad)])


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
