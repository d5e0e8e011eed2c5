"""JSON configuration files that a broker reads or writes.

RocketMQ's own writer leaves integer keys unquoted (`{"offsetTable":{3:1200}}`); both forms are
read, the strict one is written, which RocketMQ reads too.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import INT64_MAX
from timerstore.timelog.files.reader_end import Read, read_file

# A string, to be left alone, or a bare integer key.
_CHECKSUM = "checksum"
_WRONG = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<key>-?\d+)(?=\s*:)')


def parse_json(text: str) -> Any:
    """Parse JSON whose integer keys may be unquoted; raises ValueError, RecursionError."""

    def quote(match: re.Match[str]) -> str:
        return f'"{match["key"]}"' if match["key"] is not None else match[0]

    value = json.loads(_TOKEN.sub(quote, text))
    if _SURROGATE.search(text):  # of a name that is no UTF-8; others nothing can be called
        json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
    return value


def read_json(path: Path, read: Read = read_file) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or empty. `read`: reads a file.

    The `.bak` beside a damaged file is tried next, as RocketMQ does. Raises CorruptStoreError, also
    if the object has a checksum of ours that does not match.
    """
    reason = ""
    for candidate in (path, path.with_name(path.name + ".bak")):
        data = read(candidate)
        if data is None:
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as e:
            reason = str(e)
            continue
        if not text.strip():
            continue
        try:
            value = parse_json(text)
        except (ValueError, RecursionError) as e:
            reason = str(e)
            continue
        if isinstance(value, dict):
            if _CHECKSUM in value and value[_CHECKSUM] != _checksum(value):
                raise CorruptStoreError(path.name, 0, "the checksum does not match")
            return value
        reason = "it is no JSON object"
    if reason:
        raise CorruptStoreError(str(path.name), 0, reason)
    return None


@contextmanager
def understood(file: str) -> Iterator[None]:
    """Raise CorruptStoreError if the block finds that a file says something else than it should.

    What JSON holds may be of any type: a list instead of an object, no such key, a number that
    nothing has room for.
    """
    try:
        yield
    except TimerStoreError:
        raise
    except _WRONG as e:
        raise CorruptStoreError(file, 0, f"it does not say what it should: {e!r}") from e


def whole(value: object, least: int = 0, most: int = INT64_MAX) -> int:
    """Return a whole number that a file says; raises ValueError for anything else."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.80} is no whole number from {least} to {most}")
    return value


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object with a checksum of ours, which a broker that rewrites it leaves out."""
    return value | {_CHECKSUM: _checksum(value)}


def _checksum(value: dict[str, Any]) -> int:
    content = {name: value[name] for name in value if name != _CHECKSUM}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def write_json(disk: Disk, path: Path, value: dict[str, Any]) -> None:
    """Write strict JSON, atomically; durable on return."""
    disk.make_folder(path.parent)
    text = json.dumps(value, ensure_ascii=False, indent=1)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a broker's topic that is no UTF-8: as an escape it is JSON
        data = json.dumps(value, indent=1).encode()
    disk.replace(path, data)
