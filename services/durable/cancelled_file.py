"""`config/cancelledset`: which timers still ahead were cancelled, as of a clean close.

So that opening need not look for deletes among all units.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Rows, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.instant import used_slots
from timerstore.services.looking.read_pending import map_alone, read_timers, reading_all
from timerstore.services.looking.slot_units import chain_units
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_HELD
from timerstore.timelog.files.checkpoint import TimerCheckpoint
from timerstore.timelog.files.derived import CANCELLED_FILE, Stamp, read_derived, write_derived
from timerstore.wheel import judge
from timerstore.wheel.cancelled import are_of_level
from timerstore.wheel.sets import SET_ENTRY_WORDS


def write_cancelled(engine: Engine, stamp: Stamp, checkpoint: TimerCheckpoint) -> None:
    """Write the file of a clean close; no service runs any more. Durable on return.

    O(set + units of slots that were claimed). What is held is left out: opening finds it behind the
    copies cursor.
    """
    if not checkpoint.cancelled_count:
        return
    entries = engine.cancelled.table.reshape(-1, SET_ENTRY_WORDS)
    is_kept = (entries != 0).any(axis=1) & (entries[:, 0] != IDENTITY_HELD)
    try:
        passed = list(_passed_targets(engine, checkpoint))
    except CorruptStoreError:  # opening names it when it reads all units
        return
    identities = np.concatenate([entries[is_kept], *passed])
    write_derived(engine.disk, engine.path / CANCELLED_FILE, stamp, identities)


def _passed_targets(engine: Engine, checkpoint: TimerCheckpoint) -> Iterator[Rows]:
    """Yield the targets of timers' deletes in slots that are claimed: int64[n, 2].

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


def read_cancelled(engine: Engine, stamp: Stamp) -> Rows | None:
    """Return the identities in it, int64[n, 2]; None if it does not hold."""
    arrays = read_derived(engine.disk, engine.path / CANCELLED_FILE, stamp, np.dtype("<i8"))
    if arrays is None or len(arrays[0]) % SET_ENTRY_WORDS:
        return None
    words: Rows = arrays[0].reshape(-1, SET_ENTRY_WORDS)
    return words
