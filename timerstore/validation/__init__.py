"""Validation: the rules that a sound store keeps, from its bytes to the fate of its timers.

    rules.py        the rules, each declared once
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
    plain.py        both rounds in one process
    onspark.py      … on Spark
    behind.py       … how far each group is behind
    measured.py     what a store holds, in numbers that can be added
    ownrules.py     what the user's own rules find
    findings.py     where the parts put what they find
    evidence.py     findings that can be merged
    result.py       what the caller gets

`timerstore.spark.validate` runs the same two rounds on Spark; `verify` (`timerstore/offline/`) runs
only the rules about bytes.
"""

from __future__ import annotations

from timerstore.validation.evidence import Example
from timerstore.validation.plain import validate
from timerstore.validation.result import RuleResult, Validation
from timerstore.validation.rules import RULES, Rule

__all__ = [
    "RULES",
    "Example",
    "Rule",
    "RuleResult",
    "Validation",
    "validate",
]
