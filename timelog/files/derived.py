"""Derived files: arrays that can be made anew, as a clean close left them.

Such a file holds only if it was written by the close that wrote the checkpoint, whose *stamp* it
bears. Otherwise it is as if it were not there, whatever it says: what it holds is made anew.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import TimerStoreError
from timerstore.timelog.files.disk import Disk

AHEAD_FILE: Final = "config/aheadcounts"
CANCELLED_FILE: Final = "config/cancelledset"
FIRST_FILE: Final = "config/firstpages"
KEYS_FILE: Final = "config/keyindex"
DERIVED_FILES: Final = frozenset((AHEAD_FILE, CANCELLED_FILE, FIRST_FILE, KEYS_FILE))

_ARRAYS_MAX: Final = 2
_HEAD: Final = np.dtype(
    [
        ("mark", "S8"),
        ("crc", "<u4"),  # of what follows
        ("version", "<u4"),
        ("stamp", "<i8", 3),
        ("bytes", "<i8", _ARRAYS_MAX),  # of each array
    ]
)
_MARK: Final = b"TMDERIVE"
_VERSION: Final = 1
_CRC_FROM: Final = 12


class Stamp(NamedTuple):
    """Which clean close of which store: the checkpoint's number, and the commit log's end."""

    store_tag: int
    sequence: int
    log_end: int


def write_derived(disk: Disk, path: Path, stamp: Stamp, *arrays: Any) -> None:
    """Write arrays, of little-endian numbers. Durable on return."""
    head = np.zeros(1, _HEAD)
    head["mark"], head["version"], head["stamp"] = _MARK, _VERSION, stamp
    head["bytes"][0, : len(arrays)] = [each.nbytes for each in arrays]
    content = b"".join(each.tobytes() for each in (head, *arrays))
    head["crc"] = zlib.crc32(memoryview(content)[_CRC_FROM:])
    disk.replace(path, head.tobytes() + content[_HEAD.itemsize :])


def read_derived(disk: Disk, path: Path, stamp: Stamp, *kinds: np.dtype[Any]) -> list[Any] | None:
    """Return the arrays, one of each kind; None if they are not those of that close."""
    try:
        data = disk.read(path) or b""
    except TimerStoreError:
        return None
    if len(data) < _HEAD.itemsize:
        return None
    head = np.frombuffer(data, _HEAD, 1)[0]
    if (head["mark"], head["version"]) != (_MARK, _VERSION):
        return None
    if int(head["crc"]) != zlib.crc32(memoryview(data)[_CRC_FROM:]):
        return None
    lengths = head["bytes"].tolist()
    is_whole = min(lengths) >= 0 and _HEAD.itemsize + sum(lengths) == len(data)
    if not is_whole or tuple(head["stamp"].tolist()) != stamp:
        return None
    arrays, at = list[Any](), _HEAD.itemsize
    for kind, length in zip(kinds, lengths, strict=False):
        if length % kind.itemsize:
            return None
        arrays.append(np.frombuffer(data, kind, length // kind.itemsize, at))
        at += length
    return arrays
