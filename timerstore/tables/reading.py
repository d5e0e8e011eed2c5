"""A split read into Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from timerstore.errors import CorruptStoreError
from timerstore.tables import arrays, commitlog, problems, queues, timerlog, wheel
from timerstore.tables import cursortable as cursors
from timerstore.tables import timertable as timers
from timerstore.tables.bounds import Bounds
from timerstore.tables.schema import STORE, arrow_schema, default_columns
from timerstore.tables.splits import Range, Split, plan_views
from timerstore.tables.stores import find_stores
from timerstore.tables.view import StoreView, look_at, open_view
from timerstore.timelog.files.oserrors import told_of
from timerstore.timelog.reading.reader import Fault
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_names

Look = Callable[..., StoreView]
"""Looks at a store, as `look_at` does."""


def read_split(
    split: Split,
    columns: Sequence[str],
    bounds: Bounds | None = None,
    *,
    failfast: bool = False,
    schema: Any = None,
    view: StoreView | None = None,
) -> Iterator[Any]:
    """Yield the record batches of a split.

    `failfast`: damage is a CorruptStoreError, else rows that cannot be read are left out; the table
    `problems` names them. `schema`: that of the batches, if not `arrow_schema(columns)`. `view`:
    of whom planned the split, if that is at hand.
    """
    schema = arrow_schema(split.table, columns) if schema is None else schema
    bounds = Bounds() if bounds is None else bounds
    wanted = tuple(name for name in columns if name != STORE)
    if view is None:
        with told_of(split.cut.path):
            view = open_view(split.cut)
    for part in split.ranges:
        for item in _told(view.cut.path, _read(view, split, part, wanted, bounds, failfast)):
            if isinstance(item, Fault):
                if failfast:
                    raise CorruptStoreError(*item)
                continue
            count = len(item[0]) if item else 0
            made = iter(item)
            yield pa.RecordBatch.from_arrays(
                [
                    arrays.repeated(view.cut.path, count) if name == STORE else next(made)
                    for name in columns
                ],
                schema=schema,
            )


def _told(path: str, items: Iterator[list[Any] | Fault]) -> Iterator[list[Any] | Fault]:
    with told_of(path):
        yield from items


def _read(
    view: StoreView,
    split: Split,
    part: Range,
    columns: tuple[str, ...],
    bounds: Bounds,
    failfast: bool,
) -> Iterator[list[Any] | Fault]:
    """Yield lists of columns, with what is wrong."""
    # A batch knows its length from a column, also if none but the store's path is asked for.
    table, (name, start, stop) = split.table, part
    columns = columns or (_ANY_COLUMN[table],)
    if table in ("messages", "fired"):
        return commitlog.read(view, table, start, stop, columns, bounds)
    if table == "units":
        return timerlog.read(view, start, stop, columns, bounds)
    if table == "slots":
        return wheel.read(view, start, stop, columns, bounds)
    if table == "queues":
        return queues.read(view, name, start, stop, columns, bounds)
    if table == "timers":
        return timers.read(view, name, start, stop, columns, bounds, failfast=failfast)
    if table == "checkpoint":
        return cursors.read(view, columns)
    return problems.read(view, part, columns)


_ANY_COLUMN = {
    "messages": "offset",
    "fired": "offset",
    "units": "offset",
    "slots": "index",
    "queues": "index",
    "timers": "message_offset",
    "checkpoint": "value",
    "problems": "offset",
}


def read_store(
    path: str,
    table: str,
    columns: Sequence[str],
    bounds: Bounds,
    *,
    failfast: bool = False,
    schema: Any = None,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    look: Look = look_at,
    **options: Any,
) -> Iterator[Any]:
    """Yield the record batches of a whole table of one store; see `read_split`, `plan`."""
    with told_of(path):
        view = look(path, upto=upto, delay_levels=delay_levels)
        splits = plan_views([view], table, bounds, failfast=failfast, **options)
    for split in splits:
        yield from read_split(split, columns, bounds, failfast=failfast, schema=schema, view=view)


def read_table(
    path: Any,
    table: str,
    columns: Sequence[str] | None = None,
    bounds: Bounds | None = None,
    *,
    body: bool = False,
    failfast: bool = False,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    look: Look = look_at,
    **options: Any,
) -> Any:
    """Return a whole table of one store, or of several, as an Arrow table; `options`: of `plan`.

    `look`: how a store is looked at.

    One store after the other; nothing of them stays mapped.
    """
    bounds = Bounds() if bounds is None else bounds
    stores = find_stores(path)
    if columns is None:
        columns = default_columns(table, several=stores.several, body=body)
    schema = arrow_schema(table, check_names(columns, "columns"))
    batches: list[Any] = []
    for store in stores.paths:
        if bounds.may_be("store", store):
            batches += read_store(
                store,
                table,
                schema.names,
                bounds,
                failfast=failfast,
                upto=upto,
                delay_levels=delay_levels,
                look=look,
                **options,
            )
    return pa.Table.from_batches(batches, schema)
