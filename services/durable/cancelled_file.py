"""`config/cancelledset`: which timers still ahead were cancelled, as of a clean close.

So that opening need not look for deletes among all units. It counts only if it is of the close that
wrote the checkpoint: the log ends where it says, and the set has as many entries.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.jit.record import Rows, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.instant import used_slots
from timerstore.services.looking.read_pending import map_alone, read_timers, reading_all
from timerstore.services.looking.slot_units import chain_units
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_HELD
from timerstore.timelog.files.checkpoint import TimerCheckpoint
from timerstore.wheel import judge
from timerstore.wheel.cancelled import are_of_level
from timerstore.wheel.sets import SET_ENTRY_WORDS

CANCELLED_FILE: Final = "cancelledset"
_HEAD = np.dtype([("mark", "S4"), ("crc", ">u4"), ("log_end", ">i8"), ("set_count", ">i8")])
_MARK: Final = b"TMCS"
_CRC_FROM: Final = 8
_WORD: Final = ">i8"


def write_cancelled(engine: Engine, checkpoint: TimerCheckpoint) -> None:
    """Write the file of a clean close; no service runs any more. Durable on return.

    O(set + units of slots that were claimed). What is held is left out: opening finds it behind L.
    """
    if not checkpoint.cancelled_count:
        return
    entries = engine.cancelled.table.reshape(-1, SET_ENTRY_WORDS)
    is_kept = (entries != 0).any(axis=1) & (entries[:, 0] != IDENTITY_HELD)
    try:
        passed = list(_passed_targets(engine, checkpoint))
    except CorruptStoreError:  # opening names it when it reads all units
        return
    head = np.zeros(1, _HEAD)
    head["mark"], head["log_end"] = _MARK, engine.commitlog.end
    head["set_count"] = checkpoint.cancelled_count
    content = np.concatenate([entries[is_kept], *passed]).astype(_WORD).tobytes()
    head["crc"] = zlib.crc32(content, zlib.crc32(head.tobytes()[_CRC_FROM:]))
    engine.disk.replace(engine.path / "config" / CANCELLED_FILE, head.tobytes() + content)


def _passed_targets(engine: Engine, checkpoint: TimerCheckpoint) -> Iterator[Rows]:
    """Yield the targets of timers' deletes in slots from R on that were claimed: int64[n, 2].

    Some have left the set, because they were passed. The next life reads these slots again, and in
    them what was cancelled. A level's loop does not read its messages again.
    """
    reading = reading_all(engine)
    read_slot = checkpoint.read_ms // engine.precision_ms
    for units in chain_units(engine, used_slots(engine.world, read_slot, checkpoint.claimed_slot)):
        messages: Words = units.message[units.magic & fmt.UNIT_DELETE != 0]
        found = read_timers(engine, messages, reading, locate=map_alone)
        known = found.verdict == judge.DELETE
        known &= ~are_of_level(found.high, found.low)
        yield np.stack((found.high[known], found.low[known]), axis=1)


def read_cancelled(engine: Engine, log_end: int, set_count: int) -> Rows | None:
    """Return the identities in it, int64[n, 2]; None if the file is not of that close."""
    path = engine.path / "config" / CANCELLED_FILE
    try:
        data = engine.disk.read(path) or b""
        if len(data) < _HEAD.itemsize or (len(data) - _HEAD.itemsize) % (8 * SET_ENTRY_WORDS):
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
    return words.reshape(-1, SET_ENTRY_WORDS)
