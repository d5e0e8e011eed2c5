"""Rows of a file as timers to put: JSON lines, CSV, Parquet, an Arrow stream.

Columns are found by their usual names, those of `export` among them; others are passed over.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from timerstore.cli.times import parse_delay, parse_instant
from timerstore.errors import InvalidArgumentError

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


class _refusing:  # noqa: N801, a statement's word
    """Turns what Arrow refuses into an error that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pyarrow as pa

        if isinstance(error, pa.ArrowInvalid | UnicodeDecodeError):
            raise InvalidArgumentError(f"{self._path} cannot be read: {error}") from error


_VALUES: Final = {"jsonl": _json_lines, "csv": _csv, "parquet": _parquet, "arrow": _arrow}


# --- values


def _row(values: dict[str, Any], columns: Columns, topic: str, base_ms: int) -> Row:
    from timerstore.values.arguments import check_due_ms, check_topic, encode_properties

    def value(names: tuple[str, ...]) -> Any:
        return next((values[name] for name in names if values.get(name) is not None), None)

    given = value(columns.topic)
    row = Row(
        topic=topic if given is None else given,
        body=_body(value(columns.body), value(columns.body_base64)),
        due_ms=check_due_ms(_due_ms(value(columns.due), value(columns.delay), columns, base_ms)),
        key=_text(value(columns.key), "key"),
        tag=_text(value(columns.tag), "tag"),
        properties=_properties(value(columns.properties)),
    )
    check_topic(row.topic)
    encode_properties(row.key, row.tag, row.properties)
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
