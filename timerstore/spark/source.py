"""The data source "timerstore".

Spark imports it in a process of its own for each step: to find it, to ask for its columns, to plan,
to read. So it loads what a step needs when that is called; only the last two need the kernels.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from timerstore.spark.short_errors import plainly

if TYPE_CHECKING:
    from timerstore.spark.options import ReadOptions


_OF_STREAMS: Final = frozenset(("checkpointlocation", "queryname"))
"""Options that Spark takes itself, and passes on."""
_OPTION: Final = "option."
_OPTIONS: Final = "timerstore"
"""Where the first column of a catalog's table keeps the options that the table was made with."""


class TimerStoreDataSource(DataSource):
    """Stores as tables: messages, queues, units, slots, timers, fired, checkpoint, problems.

    >>> spark.read.format("timerstore").option("table", "timers").load("timers/")
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take the options as Spark has them; they are checked when they are used."""
        super().__init__(options)
        self._options = {name.lower(): value for name, value in options.items()}
        self._is_catalog_table = "provider" in self._options
        if self._is_catalog_table:
            # Spark adds properties of its own, such as owner; OPTIONS stand behind this word.
            asked = {
                name.removeprefix(_OPTION): value
                for name, value in self._options.items()
                if name.startswith(_OPTION)
            }
            self._options = {"path": self._options.get("path", ""), **asked}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "timerstore"

    def _read_options(self) -> ReadOptions:
        from timerstore.spark.options import read_options

        return read_options(self._options)

    @plainly
    def schema(self) -> StructType:
        """Return the columns of the table if the user gives no schema."""
        from timerstore.spark.options import spark_schema

        options = self._read_options()
        schema = spark_schema(options.table, options.column_names())
        if self._is_catalog_table:
            schema.fields[0].metadata[_OPTIONS] = self._options
        return schema

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a table."""
        from timerstore.spark.partitions import TableReader

        # Spark hands the reader of a catalog's table no options, but the columns as they were.
        self._options = self._options or schema.fields[0].metadata.get(_OPTIONS, {})
        return TableReader(self._read_options(), schema)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a table as it grows."""
        from timerstore.spark.streaming import LogStreamReader

        return LogStreamReader(self._read_options(), schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what schedules the rows of a DataFrame."""
        from timerstore.spark.writing import AppendWriter, NewStoresWriter, write_options

        options = write_options(self._options)
        writes = AppendWriter if options.into == "store" else NewStoresWriter
        return writes(options, schema, overwrite)

    @plainly
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return what schedules the rows of a stream."""
        from timerstore.spark.writing import StreamWriter, write_options

        ours = {name: each for name, each in self._options.items() if name not in _OF_STREAMS}
        return StreamWriter(write_options(ours), schema, overwrite)
