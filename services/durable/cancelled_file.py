"""`config/cancelledset`: the cancelled set as of a clean close.

So that opening need not look for deletes among all units. It counts only if it is of the close that
wrote the checkpoint: the log ends where it says, and the set has as many entries.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes.message import IDENTITY_HELD
from timerstore.timelog.jit.record import Rows
from timerstore.wheel.sets import ENTRY_WORDS

CANCELLED_FILE: Final = "cancelledset"
_HEAD = np.dtype([("mark", "S4"), ("crc", ">u4"), ("log_end", ">i8"), ("set_count", ">i8")])
_MARK: Final = b"TMCS"
_CRC_FROM: Final = 8
_WORD: Final = ">i8"


def write_cancelled(engine: Engine) -> None:
    """Write the file; no service runs any more. Durable on return. O(set).

    Entries that are held are left out: their deletes lie at L or later, where opening finds them.
    """
    entries = engine.cancelled.table.reshape(-1, ENTRY_WORDS)
    is_used = (entries != 0).any(axis=1) & (entries[:, 0] != IDENTITY_HELD)
    head = np.zeros(1, _HEAD)
    head["mark"], head["log_end"] = _MARK, engine.commitlog.end
    head["set_count"] = engine.cancelled.set.count
    content = entries[is_used].astype(_WORD).tobytes()
    head["crc"] = zlib.crc32(content, zlib.crc32(head.tobytes()[_CRC_FROM:]))
    engine.disk.replace(engine.path / "config" / CANCELLED_FILE, head.tobytes() + content)


def read_cancelled(engine: Engine, log_end: int, set_count: int) -> Rows | None:
    """Return the identities in the set, int64[n, 2]; None if the file is not of that close."""
    path = engine.path / "config" / CANCELLED_FILE
    try:
        data = engine.disk.read(path) or b""
        if len(data) < _HEAD.itemsize or (len(data) - _HEAD.itemsize) % (8 * ENTRY_WORDS):
            return None
        head = np.frombuffer(data, _HEAD, 1)[0]
        if head["mark"] != _MARK or int(head["crc"]) != zlib.crc32(data[_CRC_FROM:]):
            raise CorruptStoreError(f"config/{CANCELLED_FILE}", 0, "the checksum does not match")
    except TimerStoreError as e:
        engine.damage.note(f"config/{CANCELLED_FILE}", 0, str(e))
        return None
    if (int(head["log_end"]), int(head["set_count"])) != (log_end, set_count):
        return None
    words: Rows = np.frombuffer(data, _WORD, offset=_HEAD.itemsize).astype(np.int64)
    return words.reshape(-1, ENTRY_WORDS)
