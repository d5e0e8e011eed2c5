"""A split read into Arrow batches; the tables `checkpoint` and `problems`.

`problems` names what the other tables pass over. Whether the parts of a store agree with each other
is what validating tells.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.errors import CorruptStoreError
from timerstore.tables import arrays, commitlog, records
from timerstore.tables import timers as timers
from timerstore.tables.bounds import Bounds
from timerstore.tables.schema import (
    ARROW_TYPES,
    STORE,
    Column,
    arrow_schema,
    default_columns,
    find_table,
)
from timerstore.tables.splits import FILES, LOG, UNITS, WHEEL, Range, Split, file_faults, plan_views
from timerstore.tables.stores import find_stores
from timerstore.tables.view import StoreView, look_at, open_view
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.oserrors import told_of
from timerstore.timelog.files.smallfile import is_there, read_head
from timerstore.timelog.reading.reader import Fault
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_names

_BATCH_COUNT: Final = 65_536
"""Rows of `checkpoint` and `problems` in a batch."""
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
    # A batch knows its length from a column, also if none but the store's path is asked for.
    table, (name, start, stop) = split.table, part
    chosen = find_table(table).choose(columns or (_ANY_COLUMN.get(table, "offset"),))
    if table in ("messages", "fired"):
        return commitlog.message_batches(view, table, start, stop, chosen, bounds)
    if table == "units":
        return records.unit_batches(view, start, stop, chosen, bounds)
    if table == "slots":
        return records.slot_batches(view, start, stop, chosen, bounds)
    if table == "queues":
        return records.entry_batches(view, name, start, stop, chosen, bounds)
    if table == "timers":
        return timers.timer_batches(view, name, start, stop, chosen, bounds, failfast=failfast)
    if table == "checkpoint":
        return _batches(table, chosen, iter(cursors(view).items()))
    return _batches(table, chosen, _faults(view, part))


_ANY_COLUMN: Final = {"slots": "index", "queues": "index", "timers": "message_offset"}
_ANY_COLUMN["checkpoint"] = "value"


def _batches(
    table: str, columns: Sequence[Column], rows: Iterator[tuple[Any, ...]]
) -> Iterator[list[Any]]:
    """Yield the columns of each batch of rows that are tuples, as the table has its columns."""
    whole = find_table(table).columns
    while part := list(islice(rows, _BATCH_COUNT)):
        made = dict(zip(whole, zip(*part, strict=True), strict=True))
        yield [pa.array(made[each], ARROW_TYPES[each.kind]) for each in columns]


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


_OF_RIP_43: Final = (
    *("read_ms", "timerlog_flushed", "queue_index"),
    *("state_version", "state_timestamp", "state_counter"),
)
_OURS: Final = (
    *("sequence", "scan_from", "commitlog_flushed", "claimed_slot", "frontier_ms", "clean"),
    *("cancelled_count", "store_tag", "floor"),
)


def cursors(view: StoreView) -> dict[str, int]:
    """Return all cursors of the last checkpoint by their names."""
    found: dict[str, int] = {}
    checkpoint = view.checkpoint
    if checkpoint is not None:
        found = {name: int(getattr(checkpoint, name)) for name in _OF_RIP_43}
        found["by_broker"] = int(checkpoint.by_broker)
        if not checkpoint.by_broker:
            found |= {name: int(getattr(checkpoint, name)) for name in _OURS}
            levels = checkpoint.level_offsets[: len(view.reader.level_ms)]
            found |= {f"level_{i}_offset": offset for i, offset in enumerate(levels, 1)}
    path, at = view.reader.path / "checkpoint", view.reader.at
    if is_there(path, at, stat.S_ISREG):
        size = fmt.STORE_CHECKPOINT.itemsize
        data = read_head(path, size, at).ljust(size, b"\0")
        values = np.frombuffer(data, fmt.STORE_CHECKPOINT)[0]
        found |= {f"store_{name}": int(values[name]) for name in fmt.STORE_CHECKPOINT.names or ()}
    return found


def _faults(view: StoreView, part: Range) -> Iterator[Fault]:
    name, start, stop = part
    if name == FILES:
        yield from file_faults(view)
    elif name == LOG:
        yield from _of(commitlog.read_log(view, start, stop))
    elif name == UNITS:
        yield from _of(records.unit_batches(view, start, stop, (), Bounds()))
    elif name == WHEEL:
        yield from _of(records.slot_batches(view, start, stop, (), Bounds()))
    else:
        yield from _of(records.entry_batches(view, name, start, stop, (), Bounds()))


def _of(items: Iterator[Any]) -> Iterator[Fault]:
    return (item for item in items if isinstance(item, Fault))
