"""From stores to tables with a history, with a verdict on how their timers are distributed.

    runs.py          a run, from the stores that are meant to tables, here or on Spark's workers
    following.py     what fires, appended while the program runs
    resulttables.py  the result tables: each column with its type, its meaning
    tablefiles.py    where they lie, how a run replaces what it wrote, how old ones go
    publishing.py    the same in a catalog of Iceberg or Delta
    results.py       what a run returns; a rule in words, as SQL, with what it said last
    judging.py       one store as rows; asks the rules of distribution
    thresholds.py    from which value on they warn
    htmlreport.py    a page about a run, and what it shows
    charts.py        its charts
    firerate.py      what this machine fires, against which load is judged

A store is read by the two rounds of `timerstore.validation`, which count on their way what the
tables are made of. So each is read once, and what is there is judged by the same rules.
"""

from __future__ import annotations

from timerstore.audit import DISTRIBUTION_RULES
from timerstore.audit.rule import Finding
from timerstore.pipeline.firerate import measure_fire_rate
from timerstore.pipeline.following import follow
from timerstore.pipeline.htmlreport import write_report as report
from timerstore.pipeline.publishing import publish
from timerstore.pipeline.results import Explanation, RunResult, StoreResult, explain
from timerstore.pipeline.resulttables import TABLES, VERSION
from timerstore.pipeline.runs import run
from timerstore.pipeline.tablefiles import expire
from timerstore.pipeline.tablefiles import read_results as read
from timerstore.pipeline.thresholds import Thresholds

__all__ = [
    "DISTRIBUTION_RULES",
    "TABLES",
    "VERSION",
    "Explanation",
    "Finding",
    "RunResult",
    "StoreResult",
    "Thresholds",
    "expire",
    "explain",
    "follow",
    "measure_fire_rate",
    "publish",
    "read",
    "report",
    "run",
]
