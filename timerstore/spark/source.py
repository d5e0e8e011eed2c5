"""The data source "timerstore"."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from timerstore.spark.options import ReadOptions, read_options
from timerstore.spark.reading import FilteringReader, PlainReader
from timerstore.spark.streaming import LogStreamReader
from timerstore.spark.types import spark_schema
from timerstore.spark.writing import AppendWriter, NewStoresWriter, write_options


class TimerStoreDataSource(DataSource):
    """Stores as tables: messages, queues, units, slots, timers, fired, checkpoint, problems.

    >>> spark.dataSource.register(TimerStoreDataSource)
    >>> spark.read.format("timerstore").option("table", "timers").load("timers/")
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take the options as Spark has them; they are checked when they are used."""
        super().__init__(options)
        self._options = {name.lower(): value for name, value in options.items()}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "timerstore"

    def _read_options(self) -> ReadOptions:
        return read_options(self._options)

    def schema(self) -> StructType:
        """Return the columns of the table, where the user gives no schema."""
        options = self._read_options()
        return spark_schema(options.table, options.column_names())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a table."""
        options = self._read_options()
        reads = FilteringReader if options.push_filters else PlainReader
        return reads(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a table as it grows."""
        return LogStreamReader(self._read_options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what schedules the rows of a DataFrame."""
        options = write_options(self._options)
        writes = AppendWriter if options.into == "store" else NewStoresWriter
        return writes(options, schema, overwrite)
