"""What runs queries: DuckDB in this process, or Spark. Both run the same text."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import pyarrow as pa

from timerstore.copies.lookat import look_at
from timerstore.tables.bounds import Bounds
from timerstore.tables.reading import read_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MEMORY: Final = "1GB"


class Engine(Protocol):
    """Runs queries over the tables that it was given, and over those that queries made."""

    errors: type[Exception]
    """What it raises if a query cannot be run."""

    def open(self, query: str) -> Any:
        """Check a query, and return it; `columns` are the names of what it will return."""

    def add(self, name: str, rows: Any) -> None:
        """Add rows, an Arrow table, to a table, which they make if it is not there."""

    def make(self, name: str, query: str) -> None:
        """Make a table of what a query returns."""

    def ask(self, query: str, found: Any = None) -> Any:
        """Return what a query returns, as an Arrow table.

        `found`: a query that was opened, whose rows it reads as the table `found`.
        """

    def add_stores(
        self, table: str, schema: Any, paths: Mapping[str, str], upto: str | None, levels: str
    ) -> None:
        """Take in a table of stores, given by their names; `schema` begins with `store`."""


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table; an engine may add up ints to what no int64 holds."""
    return [
        {name: int(each) if isinstance(each, Decimal) else each for name, each in row.items()}
        for row in table.to_pylist()
    ]


def import_duckdb() -> Any:
    """Return the module. Raises ImportError."""
    try:
        import duckdb
    except ImportError as e:
        raise ImportError(
            "Rules that are queries need DuckDB. Install the extra: "
            "pip install 'timerstore[audit]'. Or run them on Spark. `timerstore verify` has none."
        ) from e
    return duckdb


class DuckDB:
    """Runs queries in this process, over Arrow tables, data sets, and rows that it takes itself.

    What does not fit in memory goes to a folder below TMPDIR. Needs the extra `audit`.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        """`tables`: by name. Raises ImportError."""
        duckdb = import_duckdb()
        self.errors: type[Exception] = duckdb.Error
        self._folder = tempfile.TemporaryDirectory(prefix="timerstore-")
        self._connection = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "memory_limit": _MEMORY,
                "temp_directory": self._folder.name,
                "preserve_insertion_order": "false",
                "python_enable_replacements": "false",  # no variable of ours is a table
            }
        )
        for name, table in tables.items():
            self._connection.register(name, table)

    def add(self, name: str, rows: Any) -> None:
        """Copy rows, an Arrow table, into a table, which they make if it is not there."""
        self._connection.register("rows_to_add", rows)
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM rows_to_add LIMIT 0"
        )
        self._connection.execute(f"INSERT INTO {name} SELECT * FROM rows_to_add")
        self._connection.unregister("rows_to_add")

    def add_stores(
        self, table: str, schema: Any, paths: Mapping[str, str], upto: str | None, levels: str
    ) -> None:
        """Copy a table of stores, given by their names, batch by batch."""
        self.add(table, schema.empty_table())
        options: dict[str, Any] = {"upto": upto, "delay_levels": levels, "look": look_at}
        for store, path in paths.items():
            for batch in read_store(path, table, schema.names, Bounds(), schema=schema, **options):
                names = pa.repeat(pa.scalar(store, pa.string()), batch.num_rows)
                rows = pa.Table.from_batches([batch])
                self.add(table, rows.set_column(0, schema.field(0), names))

    def open(self, query: str) -> Any:
        """Check a query, and return it."""
        return self._connection.sql(query)

    def make(self, name: str, query: str) -> None:
        """Make a table of what a query returns."""
        self._connection.execute(f"CREATE TABLE {name} AS {query}")

    def ask(self, query: str, found: Any = None) -> Any:
        """Return what a query returns, as an Arrow table."""
        asked = self._connection.sql(query) if found is None else found.query("found", query)
        return asked.to_arrow_table()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._folder.cleanup()


class OnSpark:
    """Runs queries over DataFrames, on Spark. Their views have names that nobody else uses."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, DataFrame]) -> None:
        """`tables`: DataFrames by name."""
        from pyspark.errors import PySparkException

        self.errors: type[Exception] = PySparkException
        self._spark, self._prefix = spark, f"timerstore_{uuid.uuid4().hex}_"
        self._names: list[str] = []
        self._views = set[str]()
        for name, frame in tables.items():
            self._enter(name, frame)

    def add(self, name: str, rows: Any) -> None:
        """Make a table of rows, an Arrow table."""
        self._enter(name, self._spark.createDataFrame(rows))

    def _enter(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(self._prefix + name)
        self._names.append(name)
        self._views.add(self._prefix + name)

    def add_stores(
        self, table: str, schema: Any, paths: Mapping[str, str], upto: str | None, levels: str
    ) -> None:
        """Read a table of stores, given by their names, when a query asks for it."""
        columns, given = schema.names[1:], list(dict.fromkeys(paths.values()))
        options = {"table": table, "columns": ",".join(schema.names), "delay_levels": levels}
        options |= {} if upto is None else {"upto": upto}
        read = self._spark.read.format("timerstore").options(**options).load(given)
        names = {"path": list(paths.values()), "name": list(paths)}
        named = self._spark.createDataFrame(pa.table(names))
        rows = read.join(named, read["store"] == named["path"])
        self._enter(table, rows.selectExpr("name AS store", *(f"`{each}`" for each in columns)))

    def open(self, query: str) -> DataFrame:
        """Check a query, and return it."""
        return self._run(query)

    def make(self, name: str, query: str) -> None:
        """Make a table of what a query returns; no plan of another query holds its plan."""
        self._enter(name, self._run(query).localCheckpoint())

    def ask(self, query: str, found: DataFrame | None = None) -> Any:
        """Return what a query returns, as an Arrow table."""
        if found is None:
            return self._run(query).toArrow()
        name = f"{self._prefix}found"
        found.createOrReplaceTempView(name)
        self._views.add(name)
        return self._spark.sql(f"WITH found AS (SELECT * FROM {name}) {query}").toArrow()

    def _run(self, query: str) -> DataFrame:
        views = ", ".join(f"{each} AS (SELECT * FROM {self._prefix}{each})" for each in self._names)
        return self._spark.sql(f"WITH {views} SELECT * FROM (\n{query}\n) AS asked")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._views:
            self._spark.catalog.dropTempView(name)


def open_on(spark: SparkSession | None) -> Callable[[Mapping[str, Any]], DuckDB | OnSpark]:
    """Return what opens an engine on Arrow tables: Spark, or DuckDB if there is no session."""
    if spark is None:
        return DuckDB

    def on_spark(tables: Mapping[str, Any]) -> OnSpark:
        return OnSpark(spark, {name: spark.createDataFrame(each) for name, each in tables.items()})

    return on_spark
