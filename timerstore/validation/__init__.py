"""Validation: the rules that a sound store keeps, from its bytes to the fate of its timers.

    plan.py         a store cut into ranges
    messages.py     a range of the commit log is looked at
    units.py        … of the timer log, or of the wheel
    entries.py      … of a consume queue; what of the commit log is damaged, or covered by a salvage
    files.py        … what lies beside the logs, and the whole; how far each group is behind
    smallfiles.py   … the bytes of the small files, and the numbers in them
    facts.py        where they put what they find, and what is to meet what others say
    rounds.py       the two rounds: ranges, then queries over their facts; a validation
    result.py       what the caller gets

The rules are declared in `timerstore/audit/integrity`, and most are asked here. `verify`
(`timerstore/offline/`) runs only those about bytes.
"""

from __future__ import annotations

from timerstore.audit.rule import CONSISTENCY_RULES as RULES
from timerstore.audit.rule import Example, Finding, Rule
from timerstore.validation.result import Validation
from timerstore.validation.rounds import validate

__all__ = [
    "RULES",
    "Example",
    "Finding",
    "Rule",
    "Validation",
    "validate",
]
