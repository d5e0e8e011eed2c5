"""Validation: the rules that a sound store keeps, from its bytes to the fate of its timers.

    plan.py         a store cut into ranges
    messages.py     a range of the commit log is looked at
    loggedunits.py  … of the timer log
    usedslots.py    … of the wheel
    entries.py      … of a consume queue
    files.py        … what lies beside the logs, and the whole
    smallfiles.py   … the bytes of the small files
    cursorchecks.py the numbers in them
    lost.py         what of the commit log is damaged, or covered by a salvage
    facts.py        what these say that is to meet what others say
    work.py         the two rounds: ranges, then queries over their facts
    plain.py        both rounds in one process; a validation
    onspark.py      … on Spark
    behind.py       … how far each group is behind
    measured.py     lateness and hops, as they are counted
    ownrules.py     what the user's own rules find
    findings.py     where the parts put what they find
    evidence.py     findings that can be merged
    result.py       what the caller gets

The rules are declared in `timerstore/audit/integrity`, and most are asked here. `verify`
(`timerstore/offline/`) runs only those about bytes.
"""

from __future__ import annotations

from timerstore.audit.rule import CONSISTENCY_RULES as RULES
from timerstore.audit.rule import Rule
from timerstore.validation.evidence import Example
from timerstore.validation.plain import validate
from timerstore.validation.result import RuleResult, Validation

__all__ = [
    "RULES",
    "Example",
    "Rule",
    "RuleResult",
    "Validation",
    "validate",
]
