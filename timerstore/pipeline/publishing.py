"""What runs have written, as tables of a session's catalog: Iceberg's, Delta's."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from timerstore.errors import InvalidArgumentError
from timerstore.pipeline.resulttables import TABLES, ResultTable
from timerstore.pipeline.tablefiles import RUNS, TableFiles, check_run, finished_runs, frame
from timerstore.values.kinds import check_kind, check_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLACE: Final = re.compile(r"\w+(\.\w+)*")
_FORMS: Final = ("iceberg", "delta")
_NO_CATALOG: Final = ("DATA_SOURCE_NOT_FOUND", "UNSUPPORTED_FEATURE")
"""What Spark says if a session lacks the jars, or has them but not their catalog."""


def publish(
    spark: SparkSession,
    out: str | os.PathLike[str],
    into: str,
    *,
    form: str,
    run: str | None = None,
) -> list[str]:
    """Have a catalog's tables hold what runs have written below `out`; return which runs.

    `into`: a namespace of the session's catalog, as "lake.timers". It is made if needed, as its
    tables are, which have the names of the result tables and their columns, with `day` and `store`,
    by which they are partitioned. `form`: "iceberg" or "delta"; the session must have its jars.
    `run`: that one; None: all that came to their end and are not in the catalog's table `runs`,
    the oldest first. Each table takes a run's rows, or replaces them, in one commit; `runs` comes
    last. So what was interrupted is done again, and then nothing is missing or doubled. Workers
    must see `out`. Raises InvalidArgumentError if a run has not ended, or if the catalog cannot
    replace rows. O(bytes).

    >>> timerstore.pipeline.publish(spark, "tables/", "lake.timers", form="iceberg")
    ['nightly-1', 'nightly-2']
    """
    place = check_place(out)
    check_kind(into, str, "into")
    if not _PLACE.fullmatch(into):
        raise InvalidArgumentError(f"into is {into!r}. Pass a namespace, such as lake.timers.")
    if form not in _FORMS:
        raise InvalidArgumentError(f"form is {form!r}. Use iceberg or delta.")
    days = finished_runs(place)
    if run is None:
        there = _names_there(spark, f"{into}.{RUNS}")
        wanted = sorted((day, name) for name, day in days.items() if name not in there)
    elif check_run(run) in days:
        wanted = [(days[run], run)]
    else:
        raise InvalidArgumentError(
            f"{place} has no finished run {run!r}. Pass the name of a run that has ended."
        )
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {into}")
    for day, name in wanted:
        for table in (*(each for each in TABLES.values() if each.name != RUNS), TABLES[RUNS]):
            _replace(spark, TableFiles(place, name, day), f"{into}.{table.name}", table, form)
    return [name for _, name in wanted]


def _names_there(spark: SparkSession, table: str) -> set[str]:
    if not spark.catalog.tableExists(table):
        return set()
    return {row["run"] for row in spark.table(table).select("run").distinct().collect()}


def _replace(
    spark: SparkSession, files: TableFiles, name: str, table: ResultTable, form: str
) -> None:
    """Put a run's rows in the place of those that it had before, in one commit."""
    from pyspark.sql.functions import col

    parts = ["day", "store"] if table.by_store else ["day"]
    rows = frame(spark, files, table)
    try:
        if not spark.catalog.tableExists(name):
            first, *others = (col(each) for each in parts)
            rows.limit(0).writeTo(name).using(form).partitionedBy(first, *others).create()
        rows.writeTo(name).overwrite(col("run") == files.run)
    except Exception as e:  # PySpark's own class, Py4J's or Spark Connect's
        if not any(each in str(e) for each in _NO_CATALOG):
            raise
        raise InvalidArgumentError(
            f"{name} is in a catalog that cannot replace rows. Give the Spark session a catalog "
            "of Iceberg or Delta."
        ) from e
