"""The tables of stores as views of a session, for SQL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from timerstore.tables.schema import TABLES


def views(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str],
    *,
    prefix: str = "",
    **options: Any,
) -> list[str]:
    """Make a temporary view of each table of a store, or of several; return their names.

    `path`: as `load` takes it. `prefix`: of the names, to tell stores apart. `options`: those of
    reading (docs/spark.md), for all views that know what they name: `where="due < '2027-02-01'"`
    reads no other day. A view shows its store as of its first use; call this again to see what came
    since.

    >>> timerstore.spark.views(spark, "timers/")
    >>> spark.sql("SELECT topic, count(*) FROM timers GROUP BY topic").show()
    """
    paths = os.fspath(path) if isinstance(path, str | os.PathLike) else list(path)
    names = []
    for table in TABLES:
        read = spark.read.format("timerstore").option("table", table)
        read.options(**options).load(paths).createOrReplaceTempView(prefix + table)
        names.append(prefix + table)
    return names
