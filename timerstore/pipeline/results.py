"""What a run returns: findings, a verdict for each store, one for all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from timerstore.audit.verdicts import FAIL, OK, VERDICTS, Finding, worst
from timerstore.pipeline.tablefiles import read_results
from timerstore.values.amounts import counted


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
