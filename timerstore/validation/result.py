"""What a validation found: a row for each rule, with how the store's timers are spread."""

from __future__ import annotations

import html
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from timerstore.timelog.files.batchqueues import folder_name
from timerstore.validation.evidence import Evidence, Example
from timerstore.validation.files import bytes_read, store_name
from timerstore.validation.plan import Scope
from timerstore.validation.rules import NAMES, RULES, Rule, Severity
from timerstore.validation.spread import Spread, gini, sentences
from timerstore.validation.timeaxis import HOUR_MS, MINUTE_MS
from timerstore.validation.words import counted


@dataclass(frozen=True, slots=True)
class RuleResult:
    """How one rule did."""

    rule: Rule
    checked: int
    failed: int
    examples: tuple[Example, ...]
    """The first places, by file and offset; `failed` counts all."""
    mended: int = 0
    """Other places, which a crash left: the next opening mends them."""

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    @property
    def severity(self) -> Severity:
        """What a failure means: "error", or "warning" for what opening corrects."""
        return self.rule.severity

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.failed == 0

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {
            "rule": self.name,
            "group": self.rule.group,
            "severity": self.severity,
            "checked": self.checked,
            "failed": self.failed,
            "mended": self.mended,
            "examples": [example._asdict() for example in self.examples],
        }


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found in one store."""

    path: str
    rules: tuple[RuleResult, ...]
    counts: dict[str, int]
    """Messages, units, slots, entries; timers, and those that are pending, fired, …"""
    spread: Spread
    bytes_count: int
    by_broker: bool
    """RocketMQ wrote last."""
    was_open: bool
    """`abort` exists: the store is open, or was not closed."""
    unread: tuple[str, ...] = ()
    """Queues of RocketMQ that timerstore does not read; their messages are compared with none."""

    @classmethod
    def make(cls, scope: Scope, tally: Evidence, fire_rate_per_s: float | None) -> Validation:
        """Make one of everything that was found."""
        view = scope.view
        rules = [
            RuleResult(
                rule,
                tally.checked[rule.name],
                tally.failed[rule.name],
                tuple(tally.failed.examples.get(rule.name, ())),
                tally.mended[rule.name],
            )
            for rule in RULES
        ]
        names = ("messages", "entries", "units", "slots", "timers", "pending", "in_levels")
        counts = {name: tally.counts[name] for name in (*names, "fired", "rolls", "deletes")}
        return cls(
            path=store_name(scope),
            rules=tuple(rules),
            counts=counts,
            spread=_spread(scope, tally, fire_rate_per_s),
            bytes_count=bytes_read(scope),
            by_broker=view.checkpoint is not None and not view.ours,
            was_open=view.cut.is_open,
            unread=tuple(folder_name(*each) for each in view.batch_queues),
        )

    @property
    def ok(self) -> bool:
        """Whether no rule failed, except those that only warn."""
        return all(each.ok or each.severity == "warning" for each in self.rules)

    @property
    def failures(self) -> tuple[RuleResult, ...]:
        """The rules that failed, errors first."""
        failed = [each for each in self.rules if not each.ok]
        return tuple(sorted(failed, key=lambda each: each.severity == "warning"))

    def __getitem__(self, name: str) -> RuleResult:
        """Return how a rule did, by its name."""
        return next(each for each in self.rules if each.rule is NAMES[name])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the tables behind the plots, for JSON."""
        return {
            "path": self.path,
            "ok": self.ok,
            "by_broker": self.by_broker,
            "was_open": self.was_open,
            "bytes_count": self.bytes_count,
            "unread": list(self.unread),
            "counts": self.counts,
            "rules": [each.to_dict() for each in self.rules],
            "spread": self.spread.to_dict(),
        }

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each rule. Needs pandas."""
        import pandas as pd

        rows = [
            each.to_dict() | {"says": each.rule.says, "examples": [*each.examples]}
            for each in self.rules
        ]
        return pd.DataFrame(rows).set_index("rule")

    def plot(self) -> Any:
        """Return a Matplotlib figure of how the timers are spread. Needs Matplotlib."""
        from timerstore.validation.plots import plot_spread

        return plot_spread(self.spread, f"{os.path.basename(self.path)}: {self.verdict}")

    @property
    def verdict(self) -> str:
        """One sentence."""
        errors = [each for each in self.rules if not each.ok and each.severity == "error"]
        if not errors:
            return "sound"
        fail = "rule fails" if len(errors) == 1 else "rules fail"
        places = counted(sum(each.failed for each in errors), "place")
        return f"DAMAGED: {len(errors)} {fail}, at {places}"

    def __str__(self) -> str:
        """Return the verdict, the first places of each failure, and how the timers are spread."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        counts = self.counts
        yield f"{self.path}: {self.verdict}"
        yield (
            f"  {sum(1 for each in self.rules if each.checked)} rules looked at "
            f"{counted(counts['messages'], 'message')} and {counted(counts['units'], 'timer unit')}"
        )
        yield from (f"  not read: {each}" for each in self.unread)
        for each in self.failures:
            yield f"  {each.severity} {each.name}: {each.failed:,} of {each.checked:,}"
            yield from (
                f"    {file} at {offset}: {reason}" for file, offset, reason in each.examples[:5]
            )
        yield from (
            f"  {each.name}: {counted(each.mended, 'place')} that the next opening mends"
            for each in self.rules
            if each.mended
        )
        yield from (f"  {sentence}" for sentence in sentences(self.spread))

    def _repr_html_(self) -> str:
        """Return the rules as a table, failures with their places."""
        head = "<tr><th>rule</th><th>of</th><th>checked</th><th>failed</th><th>where</th></tr>"
        body = "".join(_html_row(each) for each in self.rules)
        colour = "#2a7f3f" if self.ok else "#b3261e"
        title = f"<b style='color:{colour}'>{html.escape(self.verdict)}</b>"
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items() if count)
        return (
            f"<div>{html.escape(self.path)}: {title}<br><small>{counts}</small>"
            f"<table>{head}{body}</table></div>"
        )


def _html_row(result: RuleResult) -> str:
    style = ""
    if not result.ok:
        style = " style='background:#fde7e7'" if result.severity == "error" else ""
    where = "<br>".join(
        html.escape(f"{file} at {offset}: {reason}") for file, offset, reason in result.examples[:3]
    )
    cells = f"<td title='{html.escape(result.rule.says, quote=True)}'>{result.name}</td>"
    cells += f"<td>{result.rule.group}</td>"
    cells += f"<td style='text-align:right'>{result.checked:,}</td>"
    mended = f" (+ {result.mended:,} that opening mends)" if result.mended else ""
    cells += f"<td style='text-align:right'>{result.failed:,}{mended}</td>"
    return f"<tr{style}>{cells}<td style='text-align:left'>{where}</td></tr>"


def _spread(scope: Scope, tally: Evidence, fire_rate_per_s: float | None) -> Spread:
    hours: dict[str, dict[int, int]] = defaultdict(dict)
    for (hour, topic), count in sorted(tally.hours.items()):
        hours[tally.topics[topic]][hour * HOUR_MS] = count
    precision_ms, loads = scope.view.reader.precision_ms, tally.slot_loads
    slots, timers = sum(loads.values()), sum(load * count for load, count in loads.items())
    topics = {topic: sum(counts.values()) for topic, counts in hours.items()}
    return Spread(
        from_ms=scope.view.read_slot * precision_ms,
        pending_count=tally.counts["pending"],
        rolled_count=tally.counts["rolled"],
        roll_unit_count=tally.counts["to_roll"],
        topics=dict(sorted(topics.items(), key=lambda item: -item[1])),
        hours=dict(hours),
        minutes={minute * MINUTE_MS: n for minute, n in sorted(tally.minutes.items())},
        slot_count=slots,
        slot_max=max(loads, default=0),
        slot_mean=timers / slots if slots else 0.0,
        slot_gini=gini(loads),
        heaviest=tuple((slot * precision_ms, load) for load, slot in tally.heaviest),
        fired_count=sum(tally.lateness.values()),
        lateness=dict(sorted(tally.lateness.items())),
        fire_rate_per_s=fire_rate_per_s,
        precision_ms=precision_ms,
    )
