"""Where pending timers of an open store stood at an instant: messages, not yet read.

`wheel/judge.py` says what of them is pending. Each raises LapsedError if what is to be read is gone
because the instant's hold has lapsed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.record import Flags, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.instant import Instant, Snapshot
from timerstore.services.looking.level_timers import level_entries, read_held
from timerstore.services.looking.slot_units import slot_units
from timerstore.services.looking.unsaid_leads import say_leads
from timerstore.timelog.bytes.unit import NO_UNIT, Units

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
