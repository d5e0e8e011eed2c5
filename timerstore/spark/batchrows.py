"""The rows of a batch, put into a store: no object for each row but of its properties.

The columns have the names that the tables `timers` and `fired` have, so what was read can be put
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from timerstore.errors import InvalidArgumentError
from timerstore.tables.schema import MAP, STORE, TABLES
from timerstore.values.check_arguments import encode_properties
from timerstore.values.ids import TimerIds
from timerstore.values.kinds import meant
from timerstore.values.puts import Many

if TYPE_CHECKING:
    from timerstore.store.store import TimerStore

_KINDS: Final = {
    "body": ("binary", "string"),
    "at_ms": ("bigint", "int"),
    "at": ("timestamp",),
    "due_ms": ("bigint", "int"),
    "due": ("timestamp",),
    "topic": ("string",),
    "key": ("string",),
    "tag": ("string",),
    "properties": (MAP,),
}
_READ: Final = {STORE} | {
    column.name for name in ("timers", "fired") for column in TABLES[name].columns
}
"""What a row that was read says besides; a new timer has its own."""
_TIMES: Final = (("at_ms", "at"), ("due_ms", "due"))


def check_rows(schema: StructType) -> None:
    """Refuse columns that say nothing, or not when."""
    for field in schema.fields:
        kinds = _KINDS.get(field.name)
        if kinds is None and field.name in _READ:
            continue
        if kinds is None:
            raise InvalidArgumentError(
                f"A schedule has no column {field.name!r}. {meant(field.name, _KINDS)}"
            )
        if field.dataType.simpleString() not in kinds:
            raise InvalidArgumentError(
                f"{field.name} is {field.dataType.simpleString()}. Make it {' or '.join(kinds)}."
            )
    names = set(schema.fieldNames())
    if "body" not in names:
        raise InvalidArgumentError(
            "There is no column body. Add it, or read with option('body', 'true')."
        )
    times = [pair for pair in _TIMES if names & set(pair)]
    if not times:
        raise InvalidArgumentError(
            "No column says when the timers are due. Add at_ms or due_ms (ms since 1970), or at "
            "or due (timestamps)."
        )
    if len(times) == 2:
        raise InvalidArgumentError("at and due both say when the timers are due. Drop one of them.")


def used(batch: Any) -> Any:
    """Return a record batch with the columns that a timer is made of."""
    return batch.select([name for name in batch.schema.names if name in _KINDS])


def put_rows(store: TimerStore, batch: Any, topic: str) -> Iterator[TimerIds]:
    """Put the rows of a record batch; `topic`: if none is given."""
    table = pa.Table.from_batches([batch]).combine_chunks()
    names, count, due_ms = table.column_names, len(table), _times_ms(table)
    if table["body"].null_count:
        raise InvalidArgumentError("The column body contains nulls. Leave such rows out.")
    shared = {
        "topic": pc.fill_null(table["topic"], topic) if "topic" in names else [topic] * count,
        "tag": table["tag"] if "tag" in names else pa.nulls(count, pa.string()),
        "carried": _encoded(table["properties"]) if "properties" in names else [b""] * count,
        "keyed": pc.is_valid(table["key"]) if "key" in names else [False] * count,
    }
    alike = pa.table(shared | {"row": np.arange(count)}).group_by([*shared], use_threads=False)
    for each in alike.aggregate([("row", "list")]).to_pylist():
        rows = np.array(each["row_list"])
        keys = table["key"].take(rows).combine_chunks() if each["keyed"] else None
        many = Many(each["topic"], due_ms[rows], keys=keys, tag=each["tag"])
        bodies = table["body"].take(rows).combine_chunks()
        yield store.putting.put_many(bodies, many, carried=each["carried"])


def _encoded(column: Any) -> Any:
    """Return the properties of each row as they stand in messages."""
    rows = [tuple(row or ()) for row in column.to_pylist()]
    encoded = {row: encode_properties(None, None, dict(row)) for row in set(rows)}
    return pa.array([encoded[row] for row in rows], pa.binary())


def _times_ms(table: Any) -> Any:
    """Return when each row is due; fractions of a millisecond round up: never early."""
    name, in_ms = next((at, at_ms) for at_ms, at in _TIMES if {at_ms, at} & set(table.column_names))
    exact = rounded = None
    if in_ms in table.column_names:
        exact = table[in_ms].cast(pa.int64())
    if name in table.column_names:
        at_us = table[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        # Arrow divides towards zero, so what lies after 1970 is rounded up by this.
        rounded = pc.divide(pc.add(at_us, 999), 1_000)
    if exact is not None and rounded is not None:
        if pc.any(pc.not_equal(exact, rounded)).as_py():
            raise InvalidArgumentError(
                f"{name} and {in_ms} say different times. Drop the one that you did not change."
            )
    times = rounded if exact is None else exact
    assert times is not None
    if times.null_count:
        raise InvalidArgumentError(
            f"The column {name if exact is None else in_ms} contains nulls. Leave such rows out."
        )
    return times.to_numpy()
