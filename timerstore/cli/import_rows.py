"""Rows of a file as timers to put: JSON lines, CSV, Parquet, an Arrow stream.

Columns are found by their usual names, those of `export` among them; others are passed over.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    MissingFileError,
    StoreLockedError,
    TimerStoreError,
)
from timerstore.timelog.files.smallfile import read_small
from timerstore.values.times import parse_delay, parse_instant
from timerstore.values.write_file import write_durably

CHUNK_ROWS: Final = 10_000
CHUNK_BYTES: Final = 16 << 20
_READ_ROWS: Final = 4_096


class Row(NamedTuple):
    """A timer to put."""

    topic: str
    body: bytes
    due_ms: int
    key: str | None
    tag: str | None
    properties: dict[str, str]
    expires_ms: int | None = None


@dataclass(frozen=True)
class Columns:
    """Which columns say what: the first of each that is there and not empty."""

    topic: tuple[str, ...] = ("topic",)
    body: tuple[str, ...] = ("body",)
    body_base64: tuple[str, ...] = ("body_base64",)
    due: tuple[str, ...] = ("at_ms", "due_ms", "at", "due")
    delay: tuple[str, ...] = ("delay",)
    key: tuple[str, ...] = ("key",)
    tag: tuple[str, ...] = ("tag",)
    properties: tuple[str, ...] = ("properties",)


def read_chunks(
    path: Path, form: str, columns: Columns, topic: str, base_ms: int
) -> Iterator[list[Row]]:
    """Yield the rows of a file, some thousands at once; raise InvalidArgumentError for a bad one.

    The same file is always cut at the same rows. `topic`: of rows that name none. `base_ms`: what
    delays and relative times are counted from.
    """
    chunk: list[Row] = []
    size = 0
    for number, values in enumerate(_VALUES[form](path), 1):
        try:
            row = _row(values, columns, topic, base_ms)
        except InvalidArgumentError as e:
            raise InvalidArgumentError(f"{path}, row {number}: {e}") from e
        chunk.append(row)
        size += len(row.body)
        if len(chunk) == CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# --- files


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as e:
                raise InvalidArgumentError(
                    f"{path}, line {number} is no JSON: {e}. Correct the line."
                ) from e
            if not isinstance(values, dict):
                raise InvalidArgumentError(
                    f"{path}, line {number} is no JSON object. Write one object on each line."
                )
            yield values


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(newlines_in_values=True)
    with _refusing(path), csv.open_csv(path, parse_options=parse) as file:
        names = file.schema.names
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    with _refusing(path), csv.open_csv(path, parse_options=parse, convert_options=convert) as file:
        for batch in file:
            yield from batch.to_pylist()


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with _refusing(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_READ_ROWS):
            yield from batch.to_pylist()


def _arrow(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    with _refusing(path), pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            yield from batch.to_pylist()


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn what Arrow refuses into an error that names the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, UnicodeDecodeError) as e:
        raise InvalidArgumentError(f"{path} cannot be read: {e}") from e


_VALUES: Final = {"jsonl": _json_lines, "csv": _csv, "parquet": _parquet, "arrow": _arrow}


# --- values


def _row(values: dict[str, Any], columns: Columns, topic: str, base_ms: int) -> Row:
    from timerstore.timelog.bytes import format as fmt
    from timerstore.timelog.bytes.decode import told_expires_ms
    from timerstore.values.check_arguments import check_due_ms, check_topic, encode_properties
    from timerstore.values.puts import resolve_expires_ms

    def value(names: tuple[str, ...]) -> Any:
        return next((values[name] for name in names if values.get(name) is not None), None)

    given, properties = value(columns.topic), _properties(value(columns.properties))
    expires_ms = told_expires_ms(properties)
    if expires_ms is not None:  # as `export` wrote it
        del properties[fmt.PROPERTY_EXPIRES.decode()]
    row = Row(
        topic=topic if given is None else given,
        body=_body(value(columns.body), value(columns.body_base64)),
        due_ms=check_due_ms(_due_ms(value(columns.due), value(columns.delay), columns, base_ms)),
        key=_text(value(columns.key), "key"),
        tag=_text(value(columns.tag), "tag"),
        properties=properties,
        expires_ms=expires_ms,
    )
    topic_bytes = check_topic(row.topic)
    encode_properties(row.key, row.tag, row.properties)
    if topic_bytes.startswith(fmt.RETRY_PREFIX) and row.due_ms > (expires_ms or row.due_ms):
        return row._replace(expires_ms=None)  # only its retry made it that late
    resolve_expires_ms(expires_ms, base_ms, row.due_ms)
    return row


def _body(body: Any, coded: Any) -> bytes:
    if (body is None) == (coded is None):
        which = "no body" if body is None else "both body and body_base64"
        raise InvalidArgumentError(f"It has {which}. Write one of them.")
    if body is None:
        try:
            body = base64.b64decode(coded, validate=True)
        except (binascii.Error, TypeError, ValueError) as e:
            raise InvalidArgumentError(f"Its body_base64 is no base64: {e}. Correct it.") from e
    elif isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError as e:
            raise InvalidArgumentError(f"Its body is no valid Unicode: {e}. Correct it.") from e
    if not isinstance(body, bytes) or not body:
        raise InvalidArgumentError("Its body is empty, or is not a text. Write a text.")
    return body


def _text(value: Any, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is {value!r}. Write a text.")
    return value


def _due_ms(due: Any, delay: Any, columns: Columns, base_ms: int) -> Any:
    if (due is None) == (delay is None):
        which = "neither a time nor a delay" if due is None else "both a time and a delay"
        names = ", ".join([*columns.due, *columns.delay])
        raise InvalidArgumentError(f"It has {which}. Write one of {names}.")
    if isinstance(delay, str):
        us = round(parse_delay(delay).total_seconds() * 1_000_000)
        return base_ms - (-us // 1_000)
    if delay is not None:
        raise InvalidArgumentError(f"The delay is {delay!r}. Write a text such as 1h30m.")
    if isinstance(due, datetime):
        due = due.isoformat(timespec="microseconds")
    if isinstance(due, str):
        return parse_instant(due, from_ms=base_ms).ms
    return due


def _properties(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as e:
            raise InvalidArgumentError(f"properties are no JSON: {e}. Correct them.") from e
    if isinstance(value, list) and all(isinstance(each, tuple) for each in value):
        value = dict(value)  # an Arrow map
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise InvalidArgumentError(f"properties are {value!r}. Write an object of texts.")
    return value


# --- how far an import has come
#
# Before each chunk of rows it is written, durably, with where the store's log ended then. An import
# that was killed may have put a part of its last chunk: its first rows, in their order; that is how
# a store puts. The log behind that place tells which part: a put has an id that says where in the
# log it is, and it has its row's content. So a second run puts the rest, nothing twice.


_PIECE_BYTES = 1 << 20


@dataclass
class Progress:
    """What is known of an import; `done_count` rows are in the store for certain."""

    sha256: str
    options: dict[str, Any]
    base_ms: int
    byte_count: int
    row_count: int = 0
    done_count: int = 0
    log_end: int = -1
    """Where the store's log ended before the chunk behind `done_count`; −1: none was begun."""
    is_whole: bool = False


def progress_path(file: Path, store_tag: int) -> Path:
    """Return where the progress of importing a file into a store is kept."""
    return file.with_name(f"{file.name}.{store_tag & 0xFFFFFFFF:08X}.import")


def read_progress(path: Path, new: Progress, file: Path, *, again: bool = False) -> Progress:
    """Return how far an import has come: `new` if there was none, or all is to be put `again`.

    Raises InvalidArgumentError if the file, or what was said of it, is another one now.
    """
    try:
        from timerstore.timelog.files.jsonfile import understood

        with understood(path.name):
            old = _parse(json.loads(read_small(path)))
    except MissingFileError:
        return new
    except CorruptStoreError as e:
        raise InvalidArgumentError(
            f"{path} cannot be read: {e.reason}. This file says how much of {file} was imported. "
            "Put back a copy that is whole."
        ) from e
    if old.sha256 != new.sha256 and not old.is_whole:
        raise InvalidArgumentError(
            f"{file} was changed after at least {old.done_count:,} of its rows had been "
            f"imported. Put the old file back, and the import continues; or remove {path}, and "
            "all rows are put."
        )
    if again and old.is_whole:
        return new
    if old.sha256 != new.sha256:
        if digest_of(file, old.byte_count) != old.sha256:
            return new  # another file of that name
        raise InvalidArgumentError(
            f"{file} was imported before, when it had {old.row_count:,} rows, and has grown "
            "since. Pass a file with only the new rows, or pass --again to put all rows."
        )
    if old.options != new.options and not old.is_whole:
        raise InvalidArgumentError(
            f"The import of {file} was begun with other options: {old.options}. Use the same."
        )
    return old


def _parse(values: dict[str, Any]) -> Progress:
    """Return what a file says; raises what `understood` takes for a file that says something else.

    Files of other versions may lack what has a default.
    """
    from timerstore.timelog.files.jsonfile import whole  # arrays with it: not for --help

    found = Progress(**values)
    counts = (found.base_ms, found.byte_count, found.row_count, found.done_count)
    for each in counts:
        whole(each)
    whole(found.log_end, -1)
    kinds = (found.sha256, str), (found.options, dict), (found.is_whole, bool)
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise TypeError("a value is of another type")
    return found


def write_progress(path: Path, progress: Progress) -> None:
    """Write how far an import has come; durable on return."""
    write_durably(path, json.dumps(asdict(progress)))


@contextmanager
def held(file: Path) -> Iterator[str]:
    """Yield the SHA-256 of an input that nobody else imports meanwhile."""
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise StoreLockedError(
                f"Another process is importing {file}. Wait until it has ended."
            ) from e
        yield digest_of(file)


def digest_of(file: Path, byte_count: int = sys.maxsize) -> str:
    """Return the SHA-256 of a file, or of its first bytes."""
    digest, left = hashlib.sha256(), byte_count
    with file.open("rb") as opened:
        while left > 0 and (piece := opened.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


# --- what a chunk that was begun has put


def count_put(path: Path, log_end: int, rows: list[Row]) -> int:
    """Return how many of `rows`, from the first on, were put behind `log_end` of a store's log."""
    count = 0
    for row in puts_behind(path, log_end, {row.due_ms for row in rows}):
        if count < len(rows) and is_same(rows[count], *row):
            count += 1
    return count


def is_same(row: Row, put: Row, put_ms: int) -> bool:
    """Tell whether a row was put as `put`, at `put_ms`; what was overdue is due when it was put."""
    due_ms = max(row.due_ms, min(put.due_ms, put_ms))
    return row._replace(due_ms=due_ms) == put


def puts_behind(path: Path, log_end: int, due_ms: set[int]) -> Iterator[tuple[Row, int]]:
    """Yield the timers that were put behind an offset of a store's log, with when; in order.

    Only those that are due at one of some times, or were when they were put: others may have put
    very many since.
    """
    import numpy as np

    from timerstore.timelog.bytes.decode import decode_message, told_expires_ms, user_properties
    from timerstore.timelog.reading.reader import StoreReader
    from timerstore.values.ids import parse_id

    reader = StoreReader(path, np.zeros(0, np.int64))
    if log_end < reader.commitlog.start:
        raise TimerStoreError(
            f"{path} has removed the part of its log behind offset {log_end}, so nobody can tell "
            "which rows of the last chunk were put. Look for them in the store, and import the "
            "other rows as a file of their own."
        )
    wanted = np.array(sorted(due_ms), np.int64)
    for rows in reader.scan(log_end):
        due = rows.exact_due_ms
        overdue = (due >= 0) & (due <= rows.stored_ms)
        fitting = np.isin(due, wanted) | overdue
        for offset in rows.offset[fitting].tolist():
            message = decode_message(reader.commitlog.view(offset), offset)
            id = parse_id(message.properties.get("UNIQ_KEY", ""))
            if id is None or id.offset != offset or id.tag != reader.store_tag & 0xFFFFFFFF:
                continue  # a copy, say: it was put before, or is none of this store's
            properties = message.properties
            yield (
                Row(
                    topic=properties.get("REAL_TOPIC", message.topic),
                    body=message.body,
                    due_ms=id.due_ms,
                    key=properties.get("KEYS"),
                    tag=properties.get("TAGS"),
                    properties=user_properties(properties),
                    expires_ms=told_expires_ms(properties),
                ),
                message.born_ms,
            )
