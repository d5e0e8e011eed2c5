"""Findings: what a rule says of one store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from timerstore.audit.rule import CONSISTENCY, Limits, Rule, Severity, filled
from timerstore.values.amounts import counted

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
VERDICTS: Final = (OK, WARN, FAIL)
_SEVERITIES: Final[dict[str, Severity]] = {WARN: "warning", FAIL: "error"}
_DIGITS: Final = 9
"""Of a value that are kept: the last ones depend on the order in which an engine adds."""


class Example(NamedTuple):
    """One place where a rule fails; `offset` counts bytes over all segments of `file`."""

    file: str
    offset: int
    reason: str


@dataclass(frozen=True)
class Finding:
    """What one rule says of one store: a verdict, a sentence with numbers, places."""

    rule: Rule
    """With the limits that it was asked with."""
    verdict: str
    """ok, warn or fail."""
    says: str
    value: float = 0.0
    """What was measured; of consistency how many places failed."""
    checked: int = 0
    failed: int = 0
    """Places at which it fails; if it fails nowhere, at which it warns."""
    mended: int = 0
    """Other places, which a crash left: the next opening mends them."""
    places: tuple[Example, ...] = ()
    """The first places at which it fails or warns."""

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    @property
    def severity(self) -> Severity:
        """What a failure means: "error", or "warning" for what opening corrects."""
        return _SEVERITIES.get(self.verdict, self.rule.severity)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict == OK

    @property
    def advice(self) -> str:
        """What is so, and what to do, if the verdict is not ok."""
        return "" if self.ok else f"{self.rule.means} {self.rule.do}".strip()

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON; the table `findings` has most of them."""
        limits = self.rule.limits if self.rule.kind != CONSISTENCY else None
        return {
            "rule": self.name,
            "kind": self.rule.kind,
            "group": self.rule.group,
            "severity": self.severity,
            "verdict": self.verdict,
            "value": self.value,
            "warn": limits and limits.warn,
            "fail": limits and limits.fail_or_none,
            "checked": self.checked,
            "failed": self.failed,
            "mended": self.mended,
            "says": self.says,
            "advice": self.advice,
            "places": [each._asdict() for each in self.places],
        }


def of_places(
    rule: Rule, checked: int, failed: int, mended: int, places: Iterable[Example]
) -> Finding:
    """Return what a rule of consistency says, which fails at some places."""
    verdict = OK if not failed else WARN if rule.severity == "warning" else FAIL
    says = f"{rule.measures}: {rule.says}"
    if failed:
        says += f" This fails at {failed:,} of {counted(checked, 'place')}."
    return Finding(rule, verdict, says, float(failed), checked, failed, mended, tuple(places))


def of_rows(rule: Rule, limits: Limits, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Return what another rule says, which returned these rows; without one nothing is judged."""
    rule = replace(rule, limits=limits)
    if not rows:
        return Finding(rule, OK, filled(rule.none, limits._asdict()))
    first = rows[0]
    value = float(f"{first['value']:.{_DIGITS}g}")
    places = tuple(
        Example(row["file"], int(row["offset"]), filled(rule.place, row))
        for row in rows
        if row["value"] > limits.warn and row.get("file") is not None
    )
    return Finding(
        rule,
        verdict_of(value, limits),
        filled(rule.says, limits._asdict() | dict(first)),
        value,
        int(first["checked"]),
        int(first["rows_failed"] or first["rows_warned"]),
        places=places,
    )


def verdict_of(value: float, limits: Limits) -> str:
    """Return what a value means.

    >>> verdict_of(3, Limits(warn=1, fail=2)), verdict_of(1, Limits(warn=1))
    ('fail', 'ok')
    """
    return FAIL if value > limits.fail else WARN if value > limits.warn else OK


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return those that are not ok: what fails, then what warns."""
    bad = [each for each in findings if not each.ok]
    return sorted(bad, key=lambda each: each.verdict)


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of some verdicts; ok if there is none.

    >>> worst(["ok", "warn", "ok"])
    'warn'
    """
    return VERDICTS[max(map(VERDICTS.index, verdicts), default=0)]
