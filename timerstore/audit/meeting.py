"""What the parts of a store say of each other, as queries over their facts.

    meetings/    tables that are made of what the parts say, in the order of their names
    integrity/   a rule each: the places at which it fails
    measures/    what the store holds

Units meet their slot by one window, messages their timer's by another. A rule's query returns
`file`, `place` (bytes), `reason`, and `is_torn`: the next opening mends it. Its head says
what it `counts`: one row is one thing that was checked.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from timerstore.audit.rule import OURS, read_head, sql_files

MEETINGS: Final = {
    name.lstrip("0123456789_"): text for name, text in sql_files(OURS / "meetings").items()
}
INTEGRITY: Final = sql_files(OURS / "integrity")
MEASURES: Final = sql_files(OURS / "measures")


def places_query(named_max: int) -> str:
    """Return the query for the places at which rules fail: the first, and how many there are."""
    every = " UNION ALL ".join(
        f"SELECT '{name}' AS rule, file, place, reason, is_torn FROM (\n{text}) AS found"
        for name, text in INTEGRITY.items()
    )
    return (
        "SELECT * FROM (SELECT *, count(*) OVER (PARTITION BY rule, is_torn) AS places, "
        "row_number() OVER (PARTITION BY rule, is_torn ORDER BY file, place, reason) AS nth "
        f"FROM ({every}) AS failing) AS ranked WHERE nth <= {named_max}"
    )


def checked_queries() -> list[str]:
    """Return the queries for how much each rule looked at: a column each, one pass over a table."""
    columns: dict[str, list[str]] = defaultdict(list)
    for name, text in INTEGRITY.items():
        head, _ = read_head(f"{name}.sql", text, ("counts",))
        if head:
            table, _, where = head["counts"].partition(" WHERE ")
            columns[table].append(f"count(CASE WHEN {where or 'TRUE'} THEN 1 END) AS {name}")
    return [f"SELECT {', '.join(each)} FROM {table}" for table, each in columns.items()]
