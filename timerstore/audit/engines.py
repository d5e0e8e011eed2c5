"""What runs queries: DuckDB in this process, or Spark. Both run the same text."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa

from timerstore.copies.lookat import look_at
from timerstore.services.world.background import Flag
from timerstore.tables.bounds import Bounds
from timerstore.tables.reading import read_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
_MEMORY: Final = "1GB"
_AT_ONCE: Final = 4
"""Queries that Spark has at once: it plans one on one core, while another one is executed."""
_INTERRUPT_S: Final = 0.5
"""How long after an interrupt the next one comes: a query may have begun its next job since."""
_WORD: Final = re.compile(r"\w+")
_FEW_ROWS: Final = 10_000
_FILE_FACTOR: Final = "spark.sql.sources.fileCompressionFactor", "100"
"""Our files hold numbers as differences; by their size Spark would send millions of rows to all."""


def _rows(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[dict[str, Any]]:
    """Return rows by their columns' names; an engine may add up ints to what no int64 holds."""
    columns = list(names)
    return [dict(zip(columns, map(_int_or, row), strict=True)) for row in rows]


def _int_or(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) else value


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


def write_rows(rows: Any, path: str, unfinished: str) -> None:
    """Write a Parquet file, all at once or not at all; `unfinished`: the folder where it begins.

    Numbers are written as differences, other columns by a dictionary: most numbers here hardly
    repeat, so that a dictionary of them costs time and bytes.
    """
    import pyarrow.parquet as pq

    for folder in (os.path.dirname(path), unfinished):
        os.makedirs(folder, exist_ok=True)
    made = os.path.join(unfinished, uuid.uuid4().hex)

    numbers = [each.name for each in rows.schema if pa.types.is_int64(each.type)]
    others = [each.name for each in rows.schema if each.name not in numbers]
    delta = dict.fromkeys(numbers, "DELTA_BINARY_PACKED")
    options: dict[str, Any] = {"use_dictionary": others, "column_encoding": delta}
    try:
        with open(made, "wb") as file:  # Arrow takes no name that is not UTF-8
            pq.write_table(rows, file, compression="zstd", **options)
        os.replace(made, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(made)


def files_in(folder: str) -> list[str]:
    """Return the paths of the files in a folder, none if it is not there."""
    return [each.path for each in os.scandir(folder)] if os.path.isdir(folder) else []


class DuckDB:
    """Runs queries in this process, over Arrow tables, data sets, and rows that it takes itself.

    What does not fit in memory goes to a folder below TMPDIR. Needs the extra `audit`.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        """`tables`: by name. Raises ImportError."""
        duckdb = import_duckdb()
        self.errors: type[Exception] = duckdb.Error
        """What it raises if a query cannot be run."""
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
        """Copy a table of stores, given by their names; `schema` begins with `store`."""
        self.add(table, schema.empty_table())
        options: dict[str, Any] = {"upto": upto, "delay_levels": levels, "look": look_at}
        for store, path in paths.items():
            for batch in read_store(path, table, schema.names, Bounds(), schema=schema, **options):
                names = pa.repeat(pa.scalar(store, pa.string()), batch.num_rows)
                rows = pa.Table.from_batches([batch])
                self.add(table, rows.set_column(0, schema.field(0), names))

    def read(self, name: str, schema: Any, folder: str) -> None:
        """Make a table of the Parquet files in a folder, of which there may be none."""
        files = files_in(folder)
        if files:
            self._connection.read_parquet(files).create_view(name)
        else:
            self._connection.register(name, schema.empty_table())

    def columns(self, query: str) -> list[str]:
        """Check a query; return the names of the columns of what it would return."""
        return list(self._connection.sql(query).columns)

    def make(self, name: str, query: str) -> None:
        """Make a table of what a query returns."""
        self._connection.execute(f"CREATE TABLE {name} AS {query}")

    def each(self, queries: Mapping[str, str], act: Callable[[str], _T]) -> dict[str, _T]:
        """Call a function with the name of each query, in order; return what it returned, by name.

        A query may name those before it: their calls have returned.
        """
        return {name: act(name) for name in queries}

    def ask(self, query: str) -> Any:
        """Return what a query returns, as an Arrow table."""
        return self._connection.sql(query).to_arrow_table()

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows that a query returns. It is planned once, which `ask` does twice."""
        asked = self._connection.execute(query)
        return _rows((each[0] for each in asked.description or ()), asked.fetchall())

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
        name, factor = _FILE_FACTOR
        self._factor_before = str(spark.conf.get(name))
        spark.conf.set(name, factor)
        self._names: list[str] = []
        self._views = set[str]()
        for name, frame in tables.items():
            self._enter(name, frame)

    def add(self, name: str, rows: Any) -> None:
        """Make a table of rows, an Arrow table."""
        self._enter(name, frame_of(self._spark, rows))

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
        named = frame_of(self._spark, pa.table(names))
        rows = read.join(named, read["store"] == named["path"])
        self._enter(table, rows.selectExpr("name AS store", *(f"`{each}`" for each in columns)))

    def read(self, name: str, schema: Any, folder: str) -> None:
        """Make a table of the Parquet files in a folder, of which there may be none."""
        import pyarrow.dataset as ds

        rows = ds.dataset(files_in(folder), schema=schema, format="parquet")
        if rows.count_rows() <= _FEW_ROWS:
            self.add(name, rows.to_table())
            return
        kinds = {pa.int64(): "bigint", pa.bool_(): "boolean"}
        columns = ", ".join(f"{each.name} {kinds[each.type]}" for each in schema)
        self._enter(name, self._spark.read.schema(columns).parquet(folder))

    def columns(self, query: str) -> list[str]:
        """Check a query; return the names of the columns of what it would return."""
        return list(self._run(query).columns)

    def make(self, name: str, query: str) -> None:
        """Make a table of what a query returns; no plan of another query holds its plan.

        Few rows stand in the plans themselves: Spark then knows how few, and leaves out what reads
        none, as most of a sound store does.
        """
        made = kept(self._run(query))
        few = made.limit(_FEW_ROWS + 1).toArrow()
        if few.num_rows > _FEW_ROWS:
            self._enter(name, made)
        else:
            self.add(name, few)

    def each(self, queries: Mapping[str, str], act: Callable[[str], _T]) -> dict[str, _T]:
        """Do what `DuckDB.each` does, in several threads.

        What these ask of Spark is in the caller's job group, pool and tags. When a call raises, no
        other begins, those that run are interrupted, and this raises the same.
        """
        begun: dict[str, Future[_T]] = {}
        failed, tag = Flag(), f"timerstore-{uuid.uuid4().hex}"

        def do(name: str, awaited: list[Future[_T]]) -> _T:
            for each in awaited:
                each.result()
            if failed.is_set():  # nobody waits for it any more
                raise CancelledError
            try:
                return act(name)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                for name, query in queries.items():
                    awaited = [begun[word] for word in _WORD.findall(query) if word in begun]
                    # It begins what it got first, so nothing waits for ever.
                    begun[name] = pool.submit(_as_here(self._spark, tag, do), name, awaited)
                for done in as_completed(begun.values()):
                    with suppress(CancelledError):  # another one has failed
                        done.result()
            except BaseException:
                failed.set()
                while wait(begun.values(), _INTERRUPT_S).not_done:
                    with suppress(Exception):  # what failed is told, a lost connection say
                        _interrupt(self._spark, tag)
                raise
        return {name: each.result() for name, each in begun.items()}

    def ask(self, query: str) -> Any:
        """Return what a query returns, as an Arrow table."""
        return self._run(query).toArrow()

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows that a query returns."""
        asked = self.ask(query)
        return _rows(asked.column_names, (each.values() for each in asked.to_pylist()))

    def _run(self, query: str) -> DataFrame:
        words = set(_WORD.findall(query.lower()))
        # Spark plans each table that stands before a query, also one of which it reads nothing.
        views = [
            f"{each} AS (SELECT * FROM {self._prefix}{each})"
            for each in self._names
            if each in words
        ]
        head = f"WITH {', '.join(views)} " if views else ""
        return self._spark.sql(f"{head}SELECT * FROM (\n{query}\n) AS asked")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._views:
            self._spark.catalog.dropTempView(name)
        self._spark.conf.set(_FILE_FACTOR[0], self._factor_before)


Engine = DuckDB | OnSpark
"""Runs queries over the tables that it was given, and over those that queries made."""


def frame_of(spark: SparkSession, rows: Any) -> DataFrame:
    """Return the rows of an Arrow table as a DataFrame.

    Of a table in chunks, PySpark loses the rows that come after an empty one; of one without rows,
    Spark Connect does not read the schema.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if not len(rows):
        return spark.createDataFrame([], from_arrow_schema(rows.schema))
    return spark.createDataFrame(rows.combine_chunks())


def kept(frame: DataFrame) -> DataFrame:
    """Return a DataFrame whose rows were made, and wait on the workers' disks.

    In Java's memory they would leave it none to work in.
    """
    from pyspark import StorageLevel

    return frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def _as_here(spark: Any, tag: str, act: Callable[..., _T]) -> Callable[..., _T]:
    """Return a function for another thread, as if it ran in this one; its jobs also have a tag."""
    from pyspark.util import inheritable_thread_target

    is_classic = _is_classic(spark)
    add = spark.sparkContext.addJobTag if is_classic else spark.addTag
    tags = [tag] if is_classic else [tag, *spark.getTags()]  # over Connect there is nothing else

    def tagged(*args: Any) -> _T:
        for each in tags:
            add(each)
        return act(*args)

    if not is_classic:
        return tagged
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        return act  # no thread of Java belongs to one of Python
    inherited: Callable[..., _T] = inheritable_thread_target(spark)(tagged)
    return inherited


def _interrupt(spark: Any, tag: str) -> None:
    """Cancel the jobs that have a tag; Spark 4.3's `interruptTag` finds none of other threads."""
    if _is_classic(spark):
        spark.sparkContext.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)


def _is_classic(spark: Any) -> bool:
    """Tell whether a session has a Java beside it; else it is one of Spark Connect."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)


def open_on(spark: SparkSession | None) -> Callable[[Mapping[str, Any]], Engine]:
    """Return what opens an engine on Arrow tables: Spark, or DuckDB if there is no session."""
    if spark is None:
        return DuckDB

    def on_spark(tables: Mapping[str, Any]) -> OnSpark:
        return OnSpark(spark, {name: frame_of(spark, each) for name, each in tables.items()})

    return on_spark


def on_workers(spark: SparkSession, count: int, act: Callable[[int], Any]) -> list[Any]:
    """Call a function with each number below `count`, in a task each; return its results.

    Raises what it raises.
    """

    def do(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    done = act(number)
                except Exception as e:
                    done = e
                columns = [pa.array([number]), pa.array([pickle.dumps(done)], pa.binary())]
                yield pa.record_batch(columns, ["number", "done"])

    rows = spark.range(0, count, 1, count).mapInArrow(do, "number bigint, done binary").collect()
    found = {row["number"]: pickle.loads(row["done"]) for row in rows}
    for each in found.values():
        if isinstance(each, Exception):
            raise each
    return [found[number] for number in range(count)]
