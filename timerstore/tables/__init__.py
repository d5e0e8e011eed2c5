"""A store as tables of Arrow batches, read without opening it.

    schema.py     the tables: each column with its type, unit, meaning
    stores.py     which stores a path names
    view.py       one store as one query sees it: its checkpoint, where its logs end, its delay
                  levels
    bounds.py     what a filter asks for, also as a condition in words
    splits.py     a table cut into splits, at exact record boundaries
    reading.py    a split read into batches; checkpoint, problems
    arrays.py     NumPy arrays and texts of the log as Arrow arrays
    rows.py       what was read, as columns, within bounds
    commitlog.py  messages and fired
    records.py    units, slots, queues
    timers.py     timers: where pending ones stand, and what settles that some are not pending

Nothing here knows Spark: `timerstore.spark` hands these splits to its tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timerstore.values.lazy_names import loader as _loader

if TYPE_CHECKING:
    from timerstore.tables.bounds import Bounds
    from timerstore.tables.reading import read_split, read_table
    from timerstore.tables.schema import TABLES, arrow_schema
    from timerstore.tables.stores import find_stores

_HOMES = {
    "Bounds": "bounds",
    "read_split": "reading",
    "read_table": "reading",
    "TABLES": "schema",
    "arrow_schema": "schema",
    "find_stores": "stores",
}
"""Where each name lives, loaded when it is asked for: some of the processes that Spark starts for a
DataFrame need only the columns, and no kernel."""

if not TYPE_CHECKING:
    __getattr__ = _loader(__name__, _HOMES)

__all__ = [
    "TABLES",
    "Bounds",
    "arrow_schema",
    "find_stores",
    "read_split",
    "read_table",
]
