"""Validation: do the parts of a store agree with each other?

    rules.py        the rules, each declared once
    plan.py         a store cut into ranges
    messages.py     a range of the commit log is looked at
    units.py        … of the timer log
    slots.py        … of the wheel
    entries.py      … of a consume queue
    salvaged.py     what a salvage has covered
    cursors.py      … the small files
    notes.py        what these tell each other
    meet_slots.py   slots meet their units
    meet_timers.py  a timer's messages, units, copies meet
    work.py         the two rounds: ranges, then meetings
    plain.py        both rounds in one process
    findings.py     where the parts put what they find
    tally.py        findings that can be merged
    words.py        numbers, durations as a person says them
    timeaxis.py     time in buckets that a plot can show
    spread.py       how timers are spread
    result.py       what the caller gets
    plots.py        pictures of it
    firerate.py     what this machine fires

`timerstore.spark.validate` runs the same two rounds on Spark.
"""

from __future__ import annotations

from timerstore.validation.firerate import measure_fire_rate
from timerstore.validation.plain import validate
from timerstore.validation.result import RuleResult, Validation
from timerstore.validation.rules import RULES, Rule
from timerstore.validation.spread import Spread
from timerstore.validation.tally import Example

__all__ = [
    "RULES",
    "Example",
    "Rule",
    "RuleResult",
    "Spread",
    "Validation",
    "measure_fire_rate",
    "validate",
]
