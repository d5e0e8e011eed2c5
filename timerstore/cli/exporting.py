"""Export: all pending timers as one file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from timerstore.cli.output import body_field
from timerstore.errors import InvalidArgumentError
from timerstore.reading import Timer
from timerstore.store import TimerStore

ROWS_AT_ONCE = 16_384
"""Timers that are in memory at once."""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("due_ms", pa.int64(), nullable=False),
        pa.field("put_ms", pa.int64(), nullable=False),
        pa.field("roll_count", pa.int32(), nullable=False),
        pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)


class ExportFormat(StrEnum):
    """What an export is written as."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"

    @classmethod
    def of(cls, target: Path) -> ExportFormat:
        """Return the format that a file's ending names; JSON for standard output."""
        endings = {".jsonl": cls.JSONL, ".parquet": cls.PARQUET, ".arrow": cls.ARROW}
        if str(target) == "-":
            return cls.JSONL
        if target.suffix not in endings:
            raise InvalidArgumentError(
                f"{target} ends in none of {', '.join(endings)}. Rename it, or pass --format."
            )
        return endings[target.suffix]


def export_pending(
    store: TimerStore,
    target: Path,
    form: ExportFormat,
    topic: str | None,
    update: Callable[[int], None],
) -> int:
    """Write pending timers, in the order of due time; return how many.

    The file appears under its name once it is whole.
    """
    timers = store.pending(topic=topic)
    if str(target) == "-":
        return _write(sys.stdout.buffer, timers, form, update)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            count = _write(file, timers, form, update)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return count


def _write(
    file: BinaryIO, timers: Iterator[Timer], form: ExportFormat, update: Callable[[int], None]
) -> int:
    count = 0
    with _writer(file, form) as writer:
        while rows := [_row(timer) for timer in islice(timers, ROWS_AT_ONCE)]:
            writer.write(rows)
            count += len(rows)
            update(count)
    return count


def _row(timer: Timer) -> dict[str, Any]:
    return {name: getattr(timer, name) for name in SCHEMA.names}


class _Lines:
    """JSON, one timer a line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.flush()

    def write(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            fields = row | body_field(row.pop("body"))
            self._file.write(json.dumps(fields).encode() + b"\n")


class _Columns:
    """Parquet, or Arrow's file format."""

    def __init__(self, file: BinaryIO, form: ExportFormat) -> None:
        parquet = form is ExportFormat.PARQUET
        self._writer: Any = (
            pq.ParquetWriter(file, SCHEMA, compression="zstd")
            if parquet
            else pa.ipc.new_file(file, SCHEMA)
        )

    def __enter__(self) -> _Columns:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def write(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for name in ("id", "topic", "key", "tag"):  # bytes that are no UTF-8
                if row[name] is not None:
                    row[name] = (
                        row[name].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                    )
            row["properties"] = list(row["properties"].items())
        self._writer.write_table(pa.Table.from_pylist(rows, SCHEMA))


def _writer(file: BinaryIO, form: ExportFormat) -> _Lines | _Columns:
    return _Lines(file) if form is ExportFormat.JSONL else _Columns(file, form)
