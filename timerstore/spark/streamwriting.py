"""A stream into stores: each batch that has rows is a load of its own.

    PATH/load-QUERY-0000000017/part-00000/

The load's name is that of the query, as Spark's checkpoint has it, and of the batch. So a batch
that Spark does again, because it was killed before it noted the first time, finds its load there,
and nothing is scheduled twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from timerstore.errors import InvalidArgumentError
from timerstore.spark.batchrows import check_rows, used
from timerstore.spark.plainly import plainly
from timerstore.spark.writing import (
    HIDDEN,
    LOAD,
    WriteOptions,
    check_loads,
    make_store,
    remove,
    show_load,
)

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class Part(WriterCommitMessage):
    """What one task wrote: its load, the name of its store in it; no name if it had no rows."""

    def __init__(self, load: str, part: int, name: str) -> None:
        self.load, self.part, self.name = load, part, name


class StreamWriter(DataSourceStreamArrowWriter):
    """Makes a load of each batch."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Refuse what a stream cannot do once and only once."""
        check_rows(schema)
        if options.into == "store":
            raise InvalidArgumentError(
                "A stream makes new stores. Leave out the option into; to put the rows into one "
                "store, call put_table in foreachBatch."
            )
        if overwrite:
            raise InvalidArgumentError("A stream only appends. Use outputMode append.")
        check_loads(options.path)
        self.options, self.path = options, options.path.absolute()

    @plainly
    def write(self, iterator: Iterator[Any]) -> Part:
        """Write one partition of a batch; may be run again, or twice at once."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        load = f"{query}-{int(batch or 0):010d}"
        part, attempt = context.partitionId(), context.taskAttemptId()
        name = f"part-{part:05d}-{attempt}"
        rows = (used(each) for each in iterator if each.num_rows)
        target = self.path / f"{HIDDEN}{load}" / name
        count = make_store(rows, target, self.options)
        return Part(load, part, name if count else "")

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Let the batch's stores appear, all at once: with one rename."""
        parts = [each for each in messages if isinstance(each, Part) and each.name]
        if not parts:
            return
        staging = self.path / f"{HIDDEN}{parts[0].load}"
        target = self.path / f"{LOAD}{parts[0].load}"
        if target.exists():  # this batch is there: it is done again
            remove(staging)
            return
        show_load(staging, [(each.part, each.name) for each in parts], target)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks wrote."""
        for each in messages:
            if isinstance(each, Part):
                remove(self.path / f"{HIDDEN}{each.load}")
