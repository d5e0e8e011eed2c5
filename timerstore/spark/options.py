"""The options that a DataFrame is read with, and the tables' schemas as Spark types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from timerstore.errors import InvalidArgumentError
from timerstore.tables import schema
from timerstore.tables.bounds import Bounds, parse_where
from timerstore.tables.schema import CLOCK_SLACK_MS, SPLIT_BYTES, STORE, default_columns, find_table
from timerstore.tables.stores import Stores, find_stores
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import meant

_KNOWN: Final = {
    *("path", "paths", "table", "columns", "body", "mode", "upto", "partitions", "split_bytes"),
    *("delay_levels", "clock_slack_ms", "starting", "max_bytes_per_trigger"),
    "where",
}
_YES: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class ReadOptions:
    """What was asked for; docs/spark.md tells of each."""

    paths: tuple[str, ...]
    table: str = "timers"
    columns: tuple[str, ...] | None = None
    body: bool = False
    failfast: bool = False
    upto: str | None = None
    partitions: int | None = None
    split_bytes: int = SPLIT_BYTES
    delay_levels: str = DELAY_LEVELS
    clock_slack_ms: int = CLOCK_SLACK_MS
    bounds: Bounds = field(default_factory=Bounds)
    starting: str = "earliest"
    max_bytes_per_trigger: int | None = None

    def stores(self) -> Stores:
        """Return the stores that the paths name now."""
        return find_stores(self.paths[0] if len(self.paths) == 1 else self.paths)

    def column_names(self) -> tuple[str, ...]:
        """Return the columns of the DataFrame if no schema is given."""
        if self.columns is not None:
            for name in self.columns:
                find_table(self.table).find(name)
            several = STORE not in self.columns and self.stores().several
            return (*self.columns, STORE) if several else self.columns
        return default_columns(self.table, several=self.stores().several, body=self.body)


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a DataFrameReader; names are in lower case."""
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise InvalidArgumentError(
            f"There is no option {unknown[0]!r}. {meant(unknown[0], sorted(_KNOWN - {'paths'}))}"
        )
    table = find_table(options.get("table", "timers")).name
    mode = options.get("mode", "permissive").lower()
    if mode not in ("permissive", "failfast"):
        raise InvalidArgumentError(f"mode is {mode!r}. Use permissive or failfast.")
    starting = options.get("starting", "earliest")
    if starting not in ("earliest", "latest"):
        raise InvalidArgumentError(f"starting is {starting!r}. Use earliest or latest.")
    columns = options.get("columns")
    names = None
    if columns is not None:
        names = tuple(name.strip() for name in columns.split(",") if name.strip())
    slack_ms = _number(options, "clock_slack_ms", least=0)
    return ReadOptions(
        paths=_paths(options),
        table=table,
        columns=names,
        body=_flag(options, "body", False),
        failfast=mode == "failfast",
        upto=options.get("upto"),
        partitions=_number(options, "partitions"),
        split_bytes=_number(options, "split_bytes") or SPLIT_BYTES,
        delay_levels=options.get("delay_levels", DELAY_LEVELS),
        clock_slack_ms=CLOCK_SLACK_MS if slack_ms is None else slack_ms,
        bounds=parse_where(options["where"], table) if "where" in options else Bounds(),
        starting=starting,
        max_bytes_per_trigger=_number(options, "max_bytes_per_trigger"),
    )


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """`load("a")` sets path, `load(["a", "b"])` sets paths, as JSON."""
    if "paths" in options:
        return tuple(json.loads(options["paths"]))
    if not options.get("path"):
        raise InvalidArgumentError(
            "No path was given. Pass the folder of a store to load(), or make the table of a "
            "catalog with LOCATION and without columns."
        )
    return (options["path"],)


def _flag(options: Mapping[str, str], name: str, otherwise: bool) -> bool:
    text = options.get(name)
    if text is None:
        return otherwise
    if text.lower() not in _YES:
        raise InvalidArgumentError(f"{name} is {text!r}. Use true or false.")
    return _YES[text.lower()]


def _number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise InvalidArgumentError(f"{name} is {text!r}. Use a whole number from {least} on.")
    return int(text)


_TYPES: Final[dict[str, DataType]] = {
    schema.BIGINT: LongType(),
    schema.INT: IntegerType(),
    schema.STRING: StringType(),
    schema.BOOLEAN: BooleanType(),
    schema.BINARY: BinaryType(),
    schema.TIMESTAMP: TimestampType(),
    schema.MAP: MapType(StringType(), StringType()),
}


def spark_schema(table: str, columns: Sequence[str]) -> StructType:
    """Return the Spark schema of some columns of a table."""
    found = [schema.find_table(table).find(name) for name in columns]
    return StructType(
        [
            StructField(each.name, _TYPES[each.kind], metadata={"comment": each.meaning})
            for each in found
        ]
    )


def check_schema(table: str, wanted: StructType) -> None:
    """Refuse a schema that a user gave, if it is not the table's or a part of it."""
    for each in wanted.fields:
        kind = schema.find_table(table).find(each.name).kind
        if each.dataType != _TYPES[kind]:
            raise InvalidArgumentError(
                f"{each.name} is {kind} in the table {table}, not "
                f"{each.dataType.simpleString()}. Change the schema."
            )


def arrow_schema(wanted: StructType) -> Any:
    """Return the Arrow schema that Spark expects of batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(wanted, timezone="UTC")
