"""Rules that are queries: a file of SQL each, run by DuckDB or by Spark.

rules/       a rule of distribution each: what it asks, of which tables, what to do if it fails
tables/      tables that several of them read, as queries over others
integrity/   a rule of consistency each: the places in a store at which it fails
meetings/    tables that these read, made of what the parts of a store say
measures/    what a store holds, as the pipeline's result tables have it
rule.py      all rules, out of their files
own.py       rules of your own, in a folder
sentences.py what a rule says, filled with numbers
engines.py   DuckDB and Spark, which run the same text
asking.py    what a rule of distribution finds
meeting.py   all queries over one store's facts
"""

from __future__ import annotations

from timerstore.audit.asking import ask
from timerstore.audit.engines import DuckDB, OnSpark, open_on
from timerstore.audit.rule import CONSISTENCY_RULES, DISTRIBUTION_RULES, NEVER, Limits, Rule

__all__ = [
    "CONSISTENCY_RULES",
    "DISTRIBUTION_RULES",
    "NEVER",
    "DuckDB",
    "Limits",
    "OnSpark",
    "Rule",
    "ask",
    "open_on",
]
