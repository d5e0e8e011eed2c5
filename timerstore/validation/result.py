"""What a validation found: a row for each rule, and how much there is of what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from timerstore.audit.rule import CONSISTENCY_RULES, FAIL, OWN, Finding, of_places, worst_first
from timerstore.timelog.files.refuse_rocksdb import folder_name
from timerstore.validation.facts import Evidence
from timerstore.validation.files import bytes_read
from timerstore.validation.plan import Scope
from timerstore.values.amounts import counted, html_text


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found in one store."""

    path: str
    rules: tuple[Finding, ...]
    counts: dict[str, int]
    """Messages, units, slots, entries; timers, and those that are pending, fired, …"""
    bytes_count: int
    by_broker: bool
    """RocketMQ wrote last."""
    was_open: bool
    """`abort` exists: the store is open, or was not closed."""
    unread: tuple[str, ...] = ()
    """Queues of RocketMQ that timerstore does not read; their messages are compared with none."""

    @classmethod
    def make(cls, scope: Scope, tally: Evidence, own: tuple[Finding, ...] = ()) -> Validation:
        """Make one of everything that was found; `own`: by rules of the user."""
        view = scope.view
        rules = [
            of_places(
                rule,
                tally.checked[rule.name],
                tally.failed[rule.name],
                tally.mended[rule.name],
                tally.failed.examples.get(rule.name, ()),
            )
            for rule in CONSISTENCY_RULES
        ]
        names = ("messages", "entries", "units", "slots", "timers", "pending", "in_levels")
        counts = {name: tally.counts[name] for name in (*names, "fired", "rolls", "deletes")}
        return cls(
            path=scope.cut.path,
            rules=(*rules, *own),
            counts=counts,
            bytes_count=bytes_read(scope),
            by_broker=view.checkpoint is not None and not view.ours,
            was_open=view.cut.is_open,
            unread=tuple(folder_name(*each) for each in view.batch_queues),
        )

    @property
    def ok(self) -> bool:
        """Whether no rule failed, except those that only warn."""
        return all(each.verdict != FAIL for each in self.rules)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The rules that failed, errors first."""
        return tuple(worst_first(self.rules))

    def __getitem__(self, name: str) -> Finding:
        """Return how a rule did, by its name."""
        return {each.name: each for each in self.rules}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "path": self.path,
            "ok": self.ok,
            "by_broker": self.by_broker,
            "was_open": self.was_open,
            "bytes_count": self.bytes_count,
            "unread": list(self.unread),
            "counts": self.counts,
            "rules": [each.to_dict() for each in self.rules],
        }

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each rule. Needs pandas."""
        import pandas as pd

        return pd.DataFrame([each.to_dict() for each in self.rules]).set_index("rule")

    @property
    def verdict(self) -> str:
        """One sentence."""
        errors = [each for each in self.rules if each.verdict == FAIL]
        own = [each for each in errors if each.rule.group == OWN]
        errors = [each for each in errors if each not in own]
        places = counted(sum(each.failed for each in errors), "place")
        damage = f"DAMAGED: {_rules_fail(errors)}, at {places}" if errors else "sound"
        return f"{damage}; of your own {_rules_fail(own)}" if own else damage

    def __str__(self) -> str:
        """Return the verdict, the first places of each failure, and the counts."""
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
            told = [f"{file} at {offset}: {reason}" for file, offset, reason in each.places[:5]]
            yield from (f"    {each}" for each in told or [each.says])
        yield from (
            f"  {each.name}: {counted(each.mended, 'place')} that the next opening mends"
            for each in self.rules
            if each.mended
        )
        yield f"  {', '.join(f'{count:,} {name}' for name, count in counts.items() if count)}"

    def _repr_html_(self) -> str:
        return html_text(str(self))


def _rules_fail(failed: list[Finding]) -> str:
    return f"{len(failed)} rule fails" if len(failed) == 1 else f"{len(failed)} rules fail"
