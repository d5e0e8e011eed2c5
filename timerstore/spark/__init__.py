"""A store as Spark tables.

    source.py      the data source "timerstore": its options, its schema
    options.py     how a DataFrame is read
    reading.py     partitions, filters that are pushed down
    filters.py     what Spark filters ask for, as bounds
    types.py       the tables' schemas as Spark types
    streaming.py   a stream of what is appended
    writing.py     scheduling the rows of a DataFrame
    validating.py  do the parts of a store agree with each other?
    session.py     a Spark session that works anywhere
    java.py        a Java to run it

What a table holds, and how it is read, is in `timerstore.tables`. This package needs the extra
`spark`; `import timerstore` does not import it.
"""

from __future__ import annotations

try:
    import pyspark  # noqa: F401
except ImportError as e:
    raise ImportError("timerstore.spark needs PySpark. Run pip install 'timerstore[spark]'.") from e

from timerstore.spark.session import session
from timerstore.spark.source import TimerStoreDataSource
from timerstore.spark.validating import validate
from timerstore.validation.result import Validation

__all__ = ["TimerStoreDataSource", "Validation", "session", "validate"]
