"""A store as Spark tables.

    source.py       the data source "timerstore": its options, its schema
    options.py      how a DataFrame is read; the tables' schemas as Spark types
    partitions.py   a table's splits, read
    streaming.py    a stream of what is appended
    writing.py      scheduling the rows of a DataFrame, or of a stream
    batchrows.py    the rows of a batch, put into a store
    short_errors.py errors of ours, as short as Spark can show them
    sessions.py     a Spark session that works anywhere; the tables as its views
    java.py         a Java to run it, and its classes, loaded once for each machine

What a table holds, and how it is read, is in `timerstore.tables`; `found/` is where PySpark finds
the data source by itself. This package needs the extra `spark`; `import timerstore` does not import
it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import pyspark  # noqa: F401
except ImportError as e:
    raise ImportError(
        "timerstore.spark needs PySpark 4. Install the extra: pip install 'timerstore[spark]'"
    ) from e

if TYPE_CHECKING:
    from timerstore.spark.sessions import register, session, views
    from timerstore.spark.source import TimerStoreDataSource

_HOMES = {
    "TimerStoreDataSource": "timerstore.spark.source",
    "register": "timerstore.spark.sessions",
    "session": "timerstore.spark.sessions",
    "views": "timerstore.spark.sessions",
}
"""Where each name lives, loaded when it is asked for: Spark starts a process for each step of a
query, and each imports this package."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Load a public name."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


__all__ = ["TimerStoreDataSource", "register", "session", "views"]
