"""Reading: a table's splits as Spark's partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from timerstore.copies.destination import is_copy
from timerstore.copies.lookat import look_at
from timerstore.spark.options import ReadOptions, arrow_schema, check_schema
from timerstore.spark.short_errors import plainly, plainly_each
from timerstore.tables.reading import read_split, read_store
from timerstore.tables.splits import Split, plan


class SplitPartition(InputPartition):
    """One split; None if the table has no row at all."""

    def __init__(self, split: Split | None) -> None:
        super().__init__(split)
        self.split = split


class CopyPartition(InputPartition):
    """All of a backup or a standby: one task lays it down, and reads it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@plainly_each
def read_partition(
    partition: InputPartition,
    options: ReadOptions,
    schema: StructType,
) -> Iterator[Any]:
    """Yield the record batches of a partition."""
    if isinstance(partition, CopyPartition):
        yield from read_store(
            partition.path,
            options.table,
            schema.fieldNames(),
            options.bounds,
            failfast=options.failfast,
            schema=arrow_schema(schema),
            upto=options.upto,
            delay_levels=options.delay_levels,
            look=look_at,
        )
        return
    assert isinstance(partition, SplitPartition)
    if partition.split is None:
        return
    yield from read_split(
        partition.split,
        schema.fieldNames(),
        options.bounds,
        failfast=options.failfast,
        schema=arrow_schema(schema),
    )


class TableReader(DataSourceReader):
    """Reads what of a table the options ask for; Spark filters what it gave.

    Spark could push filters down, but PySpark 4.3 keeps what was pushed last for the whole
    DataFrame, so its other uses would miss rows. The option `where` is part of what a frame is.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Check `schema`: the columns that are wanted, and no others are decoded."""
        self.options, self.schema = options, schema
        check_schema(options.table, schema)

    @plainly
    def partitions(self) -> list[InputPartition]:
        """Plan the splits; runs on the driver, at the moment at which the stores are looked at."""
        options = self.options
        paths = options.stores().paths
        copies = [each for each in paths if is_copy(each) and options.bounds.may_be("store", each)]
        splits = plan(
            [each for each in paths if each not in copies],
            options.table,
            options.bounds,
            upto=options.upto,
            delay_levels=options.delay_levels,
            partitions=options.partitions,
            split_bytes=options.split_bytes,
            clock_slack_ms=options.clock_slack_ms,
            failfast=options.failfast,
        )
        # Spark makes up a partition of its own if it gets none.
        partitions = [*map(SplitPartition, splits), *map(CopyPartition, copies)]
        return partitions or [SplitPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a partition; runs in a task."""
        return read_partition(partition, self.options, self.schema)
