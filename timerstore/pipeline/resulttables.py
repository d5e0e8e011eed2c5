"""The result tables. Each is declared in a file of SQL in `timerstore/audit/results`.

Its head says what a row is, and what each column means, with its type. Below that stands the query
over a store's facts that makes the rows, if one does. `VERSION` grows by one when a column goes, or
comes to mean something else; a new column does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from timerstore.audit.rule import RESULTS, read_head, readable
from timerstore.errors import InvalidArgumentError
from timerstore.tables.schema import ARROW_TYPES, BIGINT, BOOLEAN, STRING, TIMESTAMP, Column
from timerstore.values.amounts import LAST_MS
from timerstore.values.kinds import meant

VERSION: Final = 1
_ORDERED: Final = 3
"""Columns of a query by which its rows are sorted; together they differ."""
_PLACE: Final = (("file", pa.string()), ("offset", pa.int64()), ("reason", pa.string()))
_KINDS: Final[dict[str, Any]] = {kind: ARROW_TYPES[kind] for kind in (BIGINT, BOOLEAN, STRING)} | {
    TIMESTAMP: ARROW_TYPES[TIMESTAMP],
    "double": pa.float64(),
    "array<bigint>": pa.list_(pa.int64()),
    "array<struct<file:string,offset:bigint,reason:string>>": pa.list_(pa.struct(_PLACE)),
}
"""By their names in Spark."""
_OF_RUNS: Final = ("runs", "metrics")
_OF_STORES: Final = ("stores", "findings", "slot_load", "due", "lateness", "groups", "growth")
_MEANS: Final = "a row is"


class ResultTable(NamedTuple):
    """One table; a row is what `meaning` says."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    """Times are UTC; beside each timestamp stands the same in ms since 1970."""
    by_store: bool
    """Each store has files of its own; else a run has one."""

    @property
    def schema(self) -> Any:
        """The Arrow schema, without the columns `day` and `store`, which folders say."""
        return pa.schema([(each.name, _KINDS[each.kind]) for each in self.columns])

    def completed(self, rows: Any) -> Any:
        """Return what a query returned as this table has it: with timestamps, and in an order."""
        names = rows.column_names
        rows = rows.sort_by([(name, "ascending") for name in names[:_ORDERED]])
        none = pa.nulls(len(rows))
        made = [
            (rows.column(each.name) if each.name in names else none).cast(_KINDS[each.kind])
            for each in self.columns
        ]
        return self._timed(pa.table(made, schema=self.schema))

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return an Arrow table of dicts; timestamps whose ms they have are added."""
        plain = [_readable(row) for row in rows]
        return self._timed(pa.Table.from_pylist(plain, schema=self.schema))

    def _timed(self, rows: Any) -> Any:
        """Fill in the timestamps; what none can show is the last that is."""
        names = self.schema.names
        for at, each in enumerate(self.columns):
            if f"{each.name}_ms" in names:
                ms = pc.min_element_wise(rows.column(f"{each.name}_ms"), LAST_MS, skip_nulls=False)
                times = pc.multiply(ms, 1_000).cast(pa.timestamp("us")).cast(_KINDS[each.kind])
                rows = rows.set_column(at, self.schema.field(at), times)
        return rows


def _readable(value: Any) -> Any:
    """Return a value in which all texts are readable, however deep they stand."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, Mapping):
        return {name: _readable(each) for name, each in value.items()}
    return [_readable(each) for each in value] if isinstance(value, list | tuple) else value


def _read(name: str) -> ResultTable:
    head, _ = read_head(name, RESULTS[name])
    meaning = head.pop(_MEANS)
    run = {} if name == "runs" else {f"run {STRING}": "the run that wrote the row"}
    columns = [
        Column(column, kind, means)
        for (column, _, kind), means in ((k.partition(" "), m) for k, m in (run | head).items())
    ]
    return ResultTable(name, meaning, tuple(columns), name not in _OF_RUNS)


TABLES: Final = {name: _read(name) for name in (*_OF_RUNS, *_OF_STORES)}
"""By name, in the order in which they are shown."""
FIRED: Final = "fired"
FIRED_LATENESS: Final = ResultTable(
    "fired_lateness",
    "how many timers a topic fired within an hour with this lateness, in one batch of a stream; "
    "rows can be added",
    TABLES["lateness"].columns[1:],
    by_store=True,
)
"""Beside `fired`, which has the columns of that table in docs/spark.md."""


def find_result_table(name: Any) -> ResultTable:
    """Return a table by its name. Raises InvalidArgumentError."""
    if name not in TABLES:
        raise InvalidArgumentError(f"There is no result table {name!r}. {meant(name, TABLES)}")
    return TABLES[name]
