"""The tables' schemas as Spark types."""

from __future__ import annotations

from collections.abc import Sequence
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
    for field in wanted.fields:
        kind = schema.find_table(table).find(field.name).kind
        if field.dataType != _TYPES[kind]:
            raise InvalidArgumentError(
                f"{field.name} is {kind} in the table {table}, not "
                f"{field.dataType.simpleString()}. Change the schema."
            )


def arrow_schema(wanted: StructType) -> Any:
    """Return the Arrow schema that Spark expects of batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(wanted, timezone="UTC")
