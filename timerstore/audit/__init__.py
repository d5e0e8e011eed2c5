"""Rules that are queries: a file of SQL each, run by DuckDB or by Spark.

rules/       a rule each: what it asks, of which tables, what to do if it fails
tables/      tables that several rules read, as queries over others
rule.py      a rule, out of its file
engines.py   DuckDB and Spark, which run the same text
asking.py    what a rule finds
"""

from __future__ import annotations

from timerstore.audit.asking import ask
from timerstore.audit.engines import DuckDB, OnSpark
from timerstore.audit.rule import DISTRIBUTION_RULES, NEVER, Limits, Rule

__all__ = ["DISTRIBUTION_RULES", "NEVER", "DuckDB", "Limits", "OnSpark", "Rule", "ask"]
