"""Exporting a store without opening it: JSON lines, CSV, Arrow or Parquet.

    pending     timers that have not fired: id, topic, due_ms, …, body
    fired       messages that timers became: id, topic, due_ms, fired_ms, lateness_ms, …, body
    messages    everything in the commit log, with all properties

In JSON and CSV a body that is UTF-8 stands in `body`; any other in `body_base64`. In CSV properties
are a JSON object; a field without quotes that is empty is none.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import IO, Any, Final, Literal, get_args

import pyarrow as pa

from timerstore.copies.lookat import look_at
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.tables.commitlog import (
    BATCH_BYTES,
    EXPORT_SCHEMAS,
    EXPORTED,
    ExportTable,
    MessageRows,
    pieces,
    read_log,
)
from timerstore.tables.timers import find_pending, read_timers, settled
from timerstore.tables.view import StoreView, UpTo, view_whole
from timerstore.timelog.files.oserrors import told_of
from timerstore.timelog.reading.reader import Fault
from timerstore.values.config import Config
from timerstore.values.kinds import check_choice, check_kind, check_path

Format = Literal["jsonl", "csv", "arrow", "parquet"]
Progress = Callable[[int, int | None], None]
BATCH_COUNT: Final = 65_536
"""Rows of one row group."""
_CHUNK_COUNT: Final = 4_096
"""Pending timers that are read together: what was read of them stays in the processor's cache."""


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        row["properties"] = dict(row["properties"])
        yield row


def _batches(
    path: str | os.PathLike[str],
    kind: ExportTable,
    config: Config | None,
    upto: UpTo | None,
    progress: Progress | None,
) -> Iterator[Any]:
    check_choice(kind, "table", get_args(ExportTable))
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    with told_of(path):
        place, levels = os.fspath(check_path(path)), config.delay_levels
        view = look_at(place, upto=upto or "end", delay_levels=levels)
        if upto is None:
            view = view_whole(view)
    return _told(path, _read(view, kind, progress))


def _told(path: Any, batches: Iterator[Any]) -> Iterator[Any]:
    with told_of(path):
        yield from batches


def _read(view: StoreView, kind: ExportTable, progress: Progress | None) -> Iterator[Any]:
    log = view.reader.timerlog if kind == "pending" else view.reader.commitlog
    for before, after in pairwise(log.numbers):
        if after != before + 1:
            offset = (before + 1) * log.segment_bytes
            raise CorruptStoreError(log.name, offset, "segments are missing from this offset on")
    total, done = None, 0
    if kind == "pending":
        found = find_pending(view)
        total = len(found.places.message)
        rows = read_timers(view, found.places, settled(view), _CHUNK_COUNT)  # by due time
        items: Iterator[MessageRows | Fault] = chain(found.faults, rows)
    else:
        items = _scanned(view, kind)
    for item in items:
        if isinstance(item, Fault):
            raise CorruptStoreError(*item)
        done += len(item.rows)
        if progress is not None:
            progress(done, total)
        for piece in pieces(item, EXPORTED[kind]):
            made = piece.columns(EXPORTED[kind])
            yield pa.RecordBatch.from_arrays(made, schema=EXPORT_SCHEMAS[kind])


def _scanned(view: StoreView, kind: ExportTable) -> Iterator[MessageRows | Fault]:
    """Yield what stands in the commit log, up to its end."""
    log = view.reader.commitlog
    for rows in read_log(view, log.start, view.log_stop):
        if isinstance(rows, Fault):
            yield rows
            continue
        messages = MessageRows(log, rows)
        yield messages.only(messages.is_fired) if kind == "fired" else messages


# --- writing


def export(
    path: str | os.PathLike[str],
    table: ExportTable,
    out: str | os.PathLike[str] | IO[bytes],
    format: Format = "jsonl",
    *,
    config: Config | None = None,
    upto: UpTo | None = None,
    progress: Progress | None = None,
) -> int:
    """Write a table to a file, or to an open binary stream; return how many rows.

    `format`: "jsonl", one JSON object a line; "csv"; "arrow", an IPC stream; "parquet". `upto`:
    "checkpoint" for a store that a process has open; else what recovery would find. `progress`: is
    told how many rows are read, of how many if that is known. O(rows), with BATCH_COUNT of them
    in memory.
    """
    check_choice(format, "format", get_args(Format))
    batches = _batches(path, table, config, upto, progress)
    if isinstance(out, str | os.PathLike):
        with told_of(out), check_path(out).open("wb") as file:
            return _write(batches, table, file, format)
    if not callable(getattr(out, "write", None)):
        raise InvalidArgumentError(f"out is {out!r}. Pass a path, or an open binary stream.")
    return _write(batches, table, out, format)


def _write(batches: Iterator[Any], table: ExportTable, out: IO[bytes], format: Format) -> int:
    count = 0
    if format == "jsonl":
        for batch in batches:
            for row in _rows(batch):
                out.write(json.dumps(_as_json(row), ensure_ascii=False).encode() + b"\n")
            count += batch.num_rows
        return count
    schema = _csv_schema(EXPORT_SCHEMAS[table]) if format == "csv" else EXPORT_SCHEMAS[table]
    with _table_writer(out, schema, format) as writer:
        for part in _grouped(batches):
            writer.write_table(_as_csv(part, schema) if format == "csv" else part)
            count += part.num_rows
    return count


def _table_writer(out: IO[bytes], schema: Any, format: Format) -> Any:
    if format == "arrow":
        return pa.ipc.new_stream(out, schema)
    if format == "csv":
        import pyarrow.csv as csv

        return csv.CSVWriter(out, schema)
    import pyarrow.parquet as pq

    # A dictionary helps if values come again; ids and bodies would fill one in vain.
    return pq.ParquetWriter(out, schema, use_dictionary=["topic", "tag"])


def _grouped(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield tables of about BATCH_COUNT rows, or of BATCH_BYTES."""
    group: list[Any] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_COUNT or size >= BATCH_BYTES:
            yield pa.Table.from_batches(group)
            group, rows, size = [], 0, 0
    if group:
        yield pa.Table.from_batches(group)


def _csv_schema(schema: Any) -> Any:
    """Return a table's columns as they stand in CSV: all that is no number is text."""
    fields = [
        field if pa.types.is_integer(field.type) else pa.field(field.name, pa.string())
        for field in schema
    ]
    return pa.schema([*fields, pa.field("body_base64", pa.string())])


def _as_csv(part: Any, schema: Any) -> Any:
    """Return rows with their bodies as text, or else in base64, with properties as JSON."""
    columns = {name: part[name] for name in part.column_names}
    texts = [_as_json({"body": body}) for body in columns["body"].to_pylist()]
    for name in ("body", "body_base64"):
        columns[name] = pa.array([each.get(name) for each in texts], pa.string())
    columns["properties"] = pa.array(
        [
            json.dumps(dict(each), ensure_ascii=False) if each else None
            for each in columns["properties"].to_pylist()
        ],
        pa.string(),
    )
    return pa.table(columns, schema)


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    body: bytes = row.pop("body")
    try:
        row["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    return row
