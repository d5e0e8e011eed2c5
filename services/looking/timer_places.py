"""Where pending timers of an open store stood at an instant: messages, not yet read.

`wheel/judge.py` says what of them is pending. Each raises LapsedError if what is to be read is gone
because the instant's hold has lapsed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Flags, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.services.looking.instant import Instant, Snapshot
from timerstore.services.looking.level_timers import level_entries, read_held
from timerstore.services.looking.slot_units import slot_units
from timerstore.timelog.bytes.message import GOOD, MessageParts, read_message
from timerstore.timelog.bytes.unit import NO_UNIT, NOT_SAID, Units
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at

_NOTHING: Final = np.zeros(0, np.int64)


def unlinked_messages(engine: Engine, at: Snapshot) -> Words:
    """Return the timer messages that had no unit yet."""
    if at.queue_end <= at.queue_start:
        return _NOTHING
    entries = read_held(engine, 0, at.queue_start, at.queue_end, at.hold)
    return entries["offset"].astype(np.int64)


def slot_messages(engine: Engine, at: Snapshot, slot: int) -> Words:
    """Return the messages of a slot's units that were not claimed, as the snapshot saw them."""
    start = NO_UNIT
    if slot < at.claimed:
        owed = at.owed[at.owed[:, 0] == slot, 1]
        if not len(owed):
            return _NOTHING
        start = int(owed[0])
    units_of = slot_units(engine, slot, start, hold=at.hold)
    parts = [units.message[seen_units(engine, units, at)] for units in units_of]
    return np.concatenate([_NOTHING, *parts])


def seen_units(engine: Engine, units: Units, at: Snapshot) -> Flags:
    """Tell which units the snapshot saw, if they were not superseded."""
    if len(at.floor.passes):
        say_leads(engine, units, at.hold)
    seen: Flags = units.offset < at.timerlog_end
    return seen & ~at.floor.superseded(units)


def level_messages(engine: Engine, instant: Instant) -> tuple[Words, Words]:
    """Return the messages that waited in the delay levels, with their due times. O(waiting)."""
    messages, due_ms = [_NOTHING], [_NOTHING]
    for entries in level_entries(engine, instant):
        messages.append(entries["offset"].astype(np.int64))
        due_ms.append(entries["tags_code"].astype(np.int64))
    return np.concatenate(messages), np.concatenate(due_ms)


@kernel_ahead
def _say_leads(
    commitlog: SegmentTable, units: Units, precision_ms: int, found: MessageParts, start: int
) -> int:
    """Write the slots of units from `start` on that do not say them; return how far it came.

    `found`: scratch. It stops at a message whose segment is not mapped. O(n).
    """
    for i in range(start, len(units.offset)):
        message = units.message[i]
        if units.leads_to[i] != NOT_SAID or message < 0 or message >= commitlog.end:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        good = read_message(buf, message % commitlog.segment_bytes, found, False) == GOOD
        if good and found.due_ms >= 0:
            units.leads_to[i] = found.due_ms // precision_ms
    return len(units.offset)


def say_leads(engine: Engine, units: Units, hold: Hold | None = None) -> None:
    """Write the slots of units that do not say them; what cannot be read stays NOT_SAID.

    O(units), and a message read for each of those: a broker's rolls, above all.
    """
    if not (units.leads_to == NOT_SAID).any():
        return
    log, found, at = engine.commitlog, MessageParts(), 0
    while at < len(units):
        with log.reading() as table:
            at = int(_say_leads(table, units, engine.precision_ms, found, at))
        if at < len(units):
            try:
                log.existing(int(units.message[at]) // log.segment_bytes)
            except CorruptStoreError:  # removed just now, or lost
                if hold is not None and units.message[at] >= hold.commitlog:
                    hold.check()
                at += 1
