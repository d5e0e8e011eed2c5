"""A finding: what one rule says of one store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from timerstore.audit import Limits
from timerstore.audit.rule import CONSISTENCY
from timerstore.validation.evidence import Example
from timerstore.validation.result import RuleResult, Validation
from timerstore.values.amounts import counted

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
VERDICTS: Final = (OK, WARN, FAIL)


@dataclass(frozen=True)
class Finding:
    """A rule's verdict: `value` against the limits, a sentence with numbers, what to do."""

    rule: str
    kind: str
    verdict: str
    value: float
    says: str
    advice: str = ""
    warn: float | None = None
    fail: float | None = None
    checked: int = 0
    mended: int = 0
    places: tuple[Example, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the row of the table `findings`, without its run."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return row | {"places": [each._asdict() for each in self.places]}


def verdict_of(value: float, limits: Limits) -> str:
    """Return what a value means.

    >>> verdict_of(3, Limits(warn=1, fail=2)), verdict_of(1, Limits(warn=1))
    ('fail', 'ok')
    """
    return FAIL if value > limits.fail else WARN if value > limits.warn else OK


def of_validation(found: Validation) -> list[Finding]:
    """Return what the rules of validation found, a finding each."""
    return [_of_rule(each) for each in found.rules]


def _of_rule(result: RuleResult) -> Finding:
    verdict = OK if result.ok else WARN if result.severity == "warning" else FAIL
    rule = f"{result.rule.measures}: {result.rule.says}"
    says = f"This fails at {result.failed:,} of {counted(result.checked, 'place')}."
    return Finding(
        rule=result.name,
        kind=CONSISTENCY,
        verdict=verdict,
        value=float(result.failed),
        says=rule if verdict == OK else f"{rule} {says}",
        advice="" if verdict == OK else result.rule.means,
        checked=result.checked,
        mended=result.mended,
        places=result.examples,
    )


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of some verdicts; ok if there is none.

    >>> worst(["ok", "warn", "ok"])
    'warn'
    """
    return VERDICTS[max(map(VERDICTS.index, verdicts), default=0)]


def first_failing(findings: Sequence[Finding]) -> Finding | None:
    """Return the worst finding, the first of them; None if all is well."""
    bad = [each for each in findings if each.verdict != OK]
    return max(bad, key=lambda each: VERDICTS.index(each.verdict), default=None)
