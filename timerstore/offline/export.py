"""Exporting a closed store, or a copy, without opening it: JSON lines, Arrow or Parquet.

    pending     timers that have not fired: id, topic, due_ms, …, body
    fired       messages that timers became: id, topic, due_ms, fired_ms, lateness_ms, …, body
    messages    everything in the commit log, with all properties

In JSON a body that is UTF-8 stands in `body`; any other in `body_base64`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa

from timerstore.config import Config
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.kinds import check_choice, check_kind, check_path
from timerstore.offline.pending import find_pending, in_timer_topic, in_topic, read_message
from timerstore.timelog import scan
from timerstore.timelog.decode import Message, user_properties
from timerstore.timelog.format import LEVEL_TOPIC
from timerstore.timelog.message import REASONS
from timerstore.timelog.oserrors import telling, told_of
from timerstore.timelog.reader import StoreReader

Table = Literal["pending", "fired", "messages"]
Format = Literal["jsonl", "arrow", "parquet"]
BATCH_COUNT: Final = 65_536
"""Rows of one record batch, or of one row group."""

_PROPERTIES = pa.map_(pa.string(), pa.string())
_COMMON: Final = [("key", pa.string()), ("tag", pa.string()), ("properties", _PROPERTIES)]
_BODY: Final = ("body", pa.binary())
SCHEMAS: Final[dict[str, Any]] = {
    "pending": pa.schema(
        [
            ("id", pa.string()),
            ("topic", pa.string()),
            ("due_ms", pa.int64()),
            ("put_ms", pa.int64()),
            ("roll_count", pa.int32()),
            ("offset", pa.int64()),
            *_COMMON,
            _BODY,
        ]
    ),
    "fired": pa.schema(
        [
            ("id", pa.string()),
            ("topic", pa.string()),
            ("due_ms", pa.int64()),
            ("fired_ms", pa.int64()),
            ("lateness_ms", pa.int64()),
            ("put_ms", pa.int64()),
            ("roll_count", pa.int32()),
            ("offset", pa.int64()),
            *_COMMON,
            _BODY,
        ]
    ),
    "messages": pa.schema(
        [
            ("offset", pa.int64()),
            ("size", pa.int32()),
            ("topic", pa.string()),
            ("queue_id", pa.int32()),
            ("queue_offset", pa.int64()),
            ("born_ms", pa.int64()),
            ("stored_ms", pa.int64()),
            ("reconsume_times", pa.int32()),
            ("unique_key", pa.string()),
            *_COMMON,
            _BODY,
        ]
    ),
}


@telling
def export_messages(
    path: str | os.PathLike[str], kind: Table = "pending", *, config: Config | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, a dict each, with the columns of `SCHEMAS[kind]`.

    Reads a closed store, or a copy, without opening it; of a store that was killed it shows what
    recovery would find. Pending timers come in the order of due time, the others in that of the
    log. Raises NotAStoreError, CorruptStoreError.
    """
    check_choice(kind, "table", get_args(Table))
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    levels = np.array(config.delay_levels_ms(), np.int64)
    reader = StoreReader(check_path(path), levels)
    return _told(path, _pending(reader) if kind == "pending" else _scanned(reader, kind))


def _told(path: Any, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    with told_of(path):
        yield from rows


def _pending(reader: StoreReader) -> Iterator[dict[str, Any]]:
    found = find_pending(reader)
    for offset, due_ms in zip(found.message.tolist(), found.due_ms.tolist(), strict=True):
        message = read_message(reader, offset)
        yield {
            "id": message.properties.get("UNIQ_KEY", ""),
            "topic": message.properties.get("REAL_TOPIC", message.topic),
            "due_ms": due_ms,
            "put_ms": message.born_ms,
            "roll_count": int(message.properties.get("TIMER_ROLL_TIMES", "0")),
            "offset": offset,
            **_rest(message, user_properties(message.properties)),
        }


def _rest(message: Message, properties: dict[str, str]) -> dict[str, Any]:
    return {
        "key": message.properties.get("KEYS"),
        "tag": message.properties.get("TAGS"),
        "properties": properties,
        "body": message.body,
    }


def _scanned(reader: StoreReader, kind: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of what stands in the commit log, up to its end."""
    scanned = reader.scan(verify=reader.is_open)  # the last message may be half written
    for rows in scanned:
        chosen = np.ones(len(rows), np.bool_)
        if kind == "fired":
            waits = in_timer_topic(reader, rows) | in_topic(reader, rows, LEVEL_TOPIC)
            chosen = (rows[:, scan.ROW_DUE_MS] >= 0) & ~waits
        for row in rows[chosen].tolist():
            message = read_message(reader, row[scan.ROW_OFFSET])
            if kind == "fired":
                yield _fired_row(message, row[scan.ROW_EXACT_DUE_MS])
            else:
                yield _message_row(message)
    checkpoint = reader.checkpoint
    flushed = 0
    if checkpoint is not None and not checkpoint.by_broker:
        flushed = min(checkpoint.commitlog_flushed, reader.commitlog.files_end)
    if scanned.end < flushed:
        reason = REASONS[scanned.bad] if scanned.bad else "this is no message"
        raise CorruptStoreError("commitlog", scanned.end, reason)


def _fired_row(message: Message, due_ms: int) -> dict[str, Any]:
    return {
        "id": message.properties.get("UNIQ_KEY", ""),
        "topic": message.topic,
        "due_ms": due_ms,
        "fired_ms": message.stored_ms,
        "lateness_ms": message.stored_ms - due_ms,
        "put_ms": message.born_ms,
        "roll_count": int(message.properties.get("TIMER_ROLL_TIMES", "0")),
        "offset": message.offset,
        **_rest(message, user_properties(message.properties)),
    }


def _message_row(message: Message) -> dict[str, Any]:
    return {
        "offset": message.offset,
        "size": message.size,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_index,
        "born_ms": message.born_ms,
        "stored_ms": message.stored_ms,
        "reconsume_times": message.reconsume_times,
        "unique_key": message.properties.get("UNIQ_KEY"),
        **_rest(message, message.properties),
    }


# --- writing


def export(
    path: str | os.PathLike[str],
    table: Table,
    out: str | os.PathLike[str] | IO[bytes],
    format: Format = "jsonl",
    *,
    config: Config | None = None,
) -> int:
    """Write a table to a file, or to an open binary stream; return how many rows.

    `format`: "jsonl", one JSON object a line; "arrow", an IPC stream; "parquet". O(rows), with
    BATCH_COUNT of them in memory.
    """
    check_choice(format, "format", get_args(Format))
    rows = export_messages(path, table, config=config)
    if isinstance(out, str | os.PathLike):
        with told_of(out), check_path(out).open("wb") as file:
            return _write(rows, table, file, format)
    if not callable(getattr(out, "write", None)):
        raise InvalidArgumentError(f"out is {out!r}. Pass a path, or an open binary stream.")
    return _write(rows, table, out, format)


def _write(rows: Iterator[dict[str, Any]], table: Table, out: IO[bytes], format: Format) -> int:
    count = 0
    if format == "jsonl":
        for row in rows:
            out.write(json.dumps(_as_json(row), ensure_ascii=False).encode() + b"\n")
            count += 1
        return count
    with _batch_writer(out, SCHEMAS[table], format) as writer:
        for batch in to_batches(rows, table):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _batch_writer(out: IO[bytes], schema: Any, format: Format) -> Any:
    if format == "arrow":
        return pa.ipc.new_stream(out, schema)
    import pyarrow.parquet as pq

    return pq.ParquetWriter(out, schema)


def to_batches(rows: Iterable[dict[str, Any]], table: Table) -> Iterator[Any]:
    """Yield Arrow record batches of up to BATCH_COUNT rows."""
    iterator = iter(rows)
    while part := list(islice(iterator, BATCH_COUNT)):
        columns = {
            field.name: pa.array([_as_text(row[field.name]) for row in part], field.type)
            for field in SCHEMAS[table]
        }
        yield pa.record_batch(columns, schema=SCHEMAS[table])


def to_arrow(
    path: str | os.PathLike[str], table: Table = "pending", *, config: Config | None = None
) -> Any:
    """Return a table as an Arrow table."""
    rows = export_messages(path, table, config=config)
    return pa.Table.from_batches(list(to_batches(rows, table)), SCHEMAS[table])


def _as_text(value: Any) -> Any:
    """Replace what is no UTF-8 in texts, which Arrow refuses."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return [(_as_text(name), _as_text(each)) for name, each in value.items()]
    return value


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    body: bytes = row.pop("body")
    for name, value in row.items():
        if name == "properties":
            row[name] = dict(_as_text(value))
        else:
            row[name] = _as_text(value)
    try:
        row["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    return row
