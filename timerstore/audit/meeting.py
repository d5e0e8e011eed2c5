"""What the parts of a store say of each other, as queries over their facts.

    meetings/    tables that are made of what the parts say, in the order of their names
    integrity/   a rule each: the places at which it fails
    measures/    what the store holds

Units meet their slot by one window, messages their timer's by another. A rule's query returns
`file`, `place` (bytes), `reason`, and `is_torn`: the next opening mends it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from timerstore.audit.rule import CONSISTENCY_RULES, OURS, sql_files

MEETINGS: Final = {
    name.lstrip("0123456789_"): text for name, text in sql_files(OURS / "meetings").items()
}
MEASURES: Final = sql_files(OURS / "measures")
COUNTS: Final = MEASURES.pop("counts")


def places_query(named_max: int) -> str:
    """Return the query for the places at which rules fail: the first, and how many there are."""
    every = " UNION ALL ".join(
        f"SELECT '{rule.name}' AS rule, file, place, reason, is_torn FROM (\n{rule.text}) AS found"
        for rule in CONSISTENCY_RULES
        if rule.text
    )
    return (
        "SELECT * FROM (SELECT *, count(*) OVER (PARTITION BY rule, is_torn) AS places, "
        "row_number() OVER (PARTITION BY rule, is_torn ORDER BY file, place, reason) AS nth "
        f"FROM ({every}) AS failing) AS ranked WHERE nth <= {named_max}"
    )


def checked_queries() -> list[str]:
    """Return the queries for how much each rule looked at: a column each, one pass over a table."""
    columns: dict[str, list[str]] = defaultdict(list)
    for rule in CONSISTENCY_RULES:
        for looks_at in rule.looks_at:
            table, _, where = looks_at.partition(" WHERE ")
            columns[table].append(f"count(CASE WHEN {where or 'TRUE'} THEN 1 END) AS {rule.name}")
    return [f"SELECT {', '.join(each)} FROM {table}" for table, each in columns.items()]
