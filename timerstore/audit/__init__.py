"""Rules that are queries: a file of SQL each, run by DuckDB or by Spark.

rules/       a rule of distribution each: what it asks, of which tables, what to do if it fails
tables/      tables that several of them read, as queries over others
integrity/   a rule of consistency each: the places in a store at which it fails
joins/       tables that these read, made of what the parts of a store say
results/     the pipeline's result tables: their columns, and the queries that make them
rule.py      all rules, out of their files; what a rule says of one store, in its sentences
engines.py   DuckDB and Spark, which run the same text
asking.py    what a rule finds, one of yours too; the queries over one store's facts
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
