"""What runs a rule: DuckDB in this process, or Spark. Both run the same text."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, Self

from timerstore.audit.rule import Rule, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Engine(Protocol):
    """Runs queries over the tables that it was given."""

    def columns(self, rule: Rule, query: str) -> list[str]:
        """Return the names of a query's columns."""

    def rows(self, rule: Rule, query: str) -> list[dict[str, Any]]:
        """Return its rows; what it counts is an int or a float."""


def import_duckdb() -> Any:
    """Return the module. Raises ImportError."""
    try:
        import duckdb
    except ImportError as e:
        raise ImportError(
            "The rules of distribution need DuckDB, or Spark. Install the extra: "
            "pip install 'timerstore[audit]'"
        ) from e
    return duckdb


class DuckDB:
    """Runs queries over Arrow tables and data sets, in this process; it spills to disk.

    Needs the extra `audit`.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        """`tables`: by name. Raises ImportError."""
        self._connection = import_duckdb().connect(config={"autoinstall_known_extensions": "false"})
        for name, table in tables.items():
            self._connection.register(name, table)

    def columns(self, rule: Rule, query: str) -> list[str]:
        """Return the names of a query's columns."""
        return list(self._connection.sql(query).columns)

    def rows(self, rule: Rule, query: str) -> list[dict[str, Any]]:
        """Return its rows."""
        found = self._connection.execute(query)
        names = [each[0] for each in found.description]
        return [_plain(zip(names, row, strict=True)) for row in found.fetchall()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class OnSpark:
    """Runs queries over DataFrames, on Spark. Their views have names that nobody else uses."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, Any]) -> None:
        """`tables`: DataFrames by name."""
        self._spark, self._prefix = spark, f"timerstore_{uuid.uuid4().hex}_"
        self._names = tuple(tables)
        for name, frame in tables.items():
            frame.createOrReplaceTempView(self._prefix + name)

    def columns(self, rule: Rule, query: str) -> list[str]:
        """Return the names of a query's columns."""
        return list(self._run(rule, query).columns)

    def rows(self, rule: Rule, query: str) -> list[dict[str, Any]]:
        """Return its rows."""
        return [_plain(row.asDict().items()) for row in self._run(rule, query).collect()]

    def _run(self, rule: Rule, query: str) -> Any:
        views = (f"{name} AS (SELECT * FROM {self._prefix}{name})" for name in tables_of(rule))
        return self._spark.sql(f"WITH {', '.join(views)}, {query.removeprefix('WITH ')}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self._spark.catalog.dropTempView(self._prefix + name)


def _plain(row: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a row whose sums are ints: an engine may add up to what no int64 holds."""
    return {name: int(each) if isinstance(each, Decimal) else each for name, each in row}
