"""All rules of distribution, over the tables of one store.

They need only the tables. So they judge in the place that makes the tables, a task of Spark or one
process, and again when somebody reads the tables.
"""

from __future__ import annotations

from typing import Final

from timerstore.pipeline import loadrules, slotrules, timerules
from timerstore.pipeline.finding import DistributionRule, Finding
from timerstore.pipeline.storetables import StoreTables
from timerstore.pipeline.thresholds import Thresholds

DISTRIBUTION_RULES: Final[tuple[DistributionRule, ...]] = (
    loadrules.LOAD_SECOND,
    loadrules.LOAD_MINUTE,
    loadrules.LOAD_HOUR,
    loadrules.SKEW_NEIGHBOURS,
    loadrules.SKEW_GINI,
    loadrules.SKEW_HEAVIEST,
    slotrules.SLOTS_MAPPED,
    slotrules.SLOTS_RING,
    slotrules.CHAINS_DEPTH,
    slotrules.CHAINS_SCATTER,
    slotrules.CHAINS_DEAD,
    slotrules.ROLLS_COST,
    timerules.DRIFT_DUE,
    timerules.DRIFT_LATENESS,
    timerules.DRIFT_LOAD,
    timerules.DRIFT_PENDING,
    timerules.AGE_OVERDUE,
    timerules.AGE_UNREAD,
    timerules.AGE_DEAD,
)
"""In the order in which they are shown."""


def judge(seen: StoreTables, thresholds: Thresholds) -> list[Finding]:
    """Return what each rule of distribution finds, in their order. O(rows)."""
    return [
        *loadrules.load_findings(seen, thresholds),
        *slotrules.slot_findings(seen, thresholds),
        *timerules.time_findings(seen, thresholds),
    ]
