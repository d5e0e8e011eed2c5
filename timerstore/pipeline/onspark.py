"""All stores of a run on Spark: small ones in one job, some a task; large ones by many tasks.

A small store is done in its task, from its bytes to its files; so workers need DuckDB. A large one
is cut into splits; queries of Spark join what its tasks say (`timerstore/validation/onspark.py`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from timerstore.audit.engines import import_duckdb
from timerstore.pipeline.fleet import Member, size_of
from timerstore.pipeline.judging import Looked
from timerstore.pipeline.onestore import do_store
from timerstore.pipeline.runoptions import RunOptions
from timerstore.validation.onspark import run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS: Final = "store int, data binary"
_TASKS_OF_A_CORE: Final = 4
_TASKS_UNKNOWN: Final = 32
"""Tasks for small stores if Spark does not say how many cores it has, as over Connect."""


def do_on_spark(spark: SparkSession, members: list[Member], options: RunOptions) -> list[Looked]:
    """Look at all stores; return what was seen of each, in their order."""
    sizes = [size_of(member.path) for member in members]
    order = sorted(range(len(members)), key=lambda number: -sizes[number])
    large = [number for number in order if sizes[number] > options.split_bytes]
    small = order[len(large) :]
    found = dict[int, Looked]()
    if small:
        # The largest come first, each to another task.
        count = min(len(small), _task_count(spark))
        tasks = [small[first::count] for first in range(count)]
        rows = spark.range(0, count, 1, count).mapInArrow(_doer(members, options, tasks), _ROWS)
        found = {row["store"]: pickle.loads(row["data"]) for row in rows.collect()}
    for number in large:
        found[number] = do_store(members[number], options, partial(run_on_spark, spark))
    return [found[number] for number in range(len(members))]


def _task_count(spark: SparkSession) -> int:
    try:
        return _TASKS_OF_A_CORE * spark.sparkContext.defaultParallelism
    except Exception:  # a session of Spark Connect has no context
        return _TASKS_UNKNOWN


def _doer(
    members: list[Member], options: RunOptions, tasks: list[list[int]]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return what does the stores of some tasks, given by their numbers."""

    def do(batches: Iterable[Any]) -> Iterator[Any]:
        import_duckdb()  # its lack is no fault of a store
        for batch in batches:
            numbers = [each for task in batch.column(0).to_pylist() for each in tasks[task]]
            for number in numbers:
                done = pickle.dumps(do_store(members[number], options))
                columns = [pa.array([number], pa.int32()), pa.array([done], pa.binary())]
                yield pa.record_batch(columns, ["store", "data"])

    return do
