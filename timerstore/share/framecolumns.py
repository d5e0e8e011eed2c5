"""Columns behind a frame's header, as Arrow writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from timerstore.errors import InvalidArgumentError
from timerstore.share.wire import Part
from timerstore.values.ids import TimerIds

COLUMN_BYTES: Final = 16 << 20
"""Of columns in one frame, if they can be divided."""
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def write_table(table: pa.Table) -> list[Part]:
    """Return a table as frames, each a stream of its own, none too long."""
    return [_write(batch) for batch in _divided(table)]


def _divided(table: pa.Table) -> Iterable[pa.RecordBatch]:
    for batch in table.to_batches() or [_no_rows(table.schema)]:
        yield from halved(batch)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without a row; an array made of a list would import pandas."""
    return pa.record_batch([pa.nulls(0, each.type) for each in schema], schema=schema)


def halved(rows: Rows) -> Iterable[Rows]:
    """Yield rows by pieces that one frame can take; one even if it has no row."""
    if rows.num_rows < 2 or rows.nbytes <= COLUMN_BYTES:
        yield rows
    else:
        middle = rows.num_rows // 2
        yield from halved(rows.slice(0, middle))
        yield from halved(rows.slice(middle))


def _write(batch: pa.RecordBatch) -> Part:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def read_table(parts: Sequence[Part]) -> pa.Table:
    """Return the table of some frames, every offset in it checked. O(bytes).

    Raises InvalidArgumentError for anything else.
    """
    try:
        table = pa.concat_tables([pa.ipc.open_stream(part).read_all() for part in parts])
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError) as e:
        raise InvalidArgumentError(f"The columns cannot be read: {e}. Send an Arrow stream.") from e
    return table


def write_ids(ids: TimerIds) -> list[Part]:
    """Return ids as they are sent: due times, then offsets."""
    return [np.concatenate((ids.due_ms, ids.offsets)).astype("<i8").tobytes()]


def read_ids(tag: int, part: Part) -> TimerIds:
    """Return ids that were sent."""
    due_ms, offsets = np.frombuffer(part, "<i8").reshape(2, -1)
    return TimerIds(due_ms, offsets, tag)
