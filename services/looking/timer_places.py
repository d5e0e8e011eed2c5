"""Where pending timers of an open store stood at an instant: messages, not yet read.

`wheel/judge.py` says what of them is pending. Each raises LapsedError if what is to be read is gone
because the instant's hold has lapsed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.services.engine.engine import Engine
from timerstore.services.looking.instant import Instant, Snapshot
from timerstore.services.looking.level_timers import level_entries, read_held
from timerstore.services.looking.slot_units import chain_units, slot_units
from timerstore.services.looking.unsaid_leads import say_leads
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.jit.record import Words
from timerstore.wheel.judge import IN_MESSAGE
from timerstore.wheel.slots import NO_UNIT

_NOTHING: Final = np.zeros(0, np.int64)


def find_places(engine: Engine, instant: Instant) -> tuple[Words, Words]:
    """Return the messages of timers that may be pending, in the order of the log. O(units).

    Beside each, what its delay level's entry says of its due time, else IN_MESSAGE. Some may be
    done, or cancelled.
    """
    in_wheel, (in_levels, due_ms) = wheel_messages(engine, instant), level_messages(engine, instant)
    messages = np.concatenate([in_wheel, in_levels])
    due_ms = np.concatenate([np.full(len(in_wheel), IN_MESSAGE, np.int64), due_ms])
    if not len(in_levels):
        messages.sort()
        return messages, due_ms
    order = np.argsort(messages)
    return messages[order], due_ms[order]


def wheel_messages(engine: Engine, instant: Instant) -> Words:
    """Return the messages of the timer topic that may be pending, in no order. O(units)."""
    at = instant.snapshot
    begun = [(at.claimed - 1, at.claim_offset), (at.aside_claimed - 1, at.aside_offset)]
    chains = np.array([each for each in begun if each[1] != NO_UNIT], np.int64).reshape(-1, 2)
    parts = [instant.messages, unlinked_messages(engine, at)]
    chains = np.concatenate([chains, instant.slots])
    for units in chain_units(engine, chains, hold=at.hold):
        parts.append(_seen(engine, units, at))
    return np.concatenate(parts)


def unlinked_messages(engine: Engine, at: Snapshot) -> Words:
    """Return the timer messages that had no unit yet."""
    if at.queue_end <= at.queue_start:
        return _NOTHING
    entries = read_held(engine, 0, at.queue_start, at.queue_end, at.hold)
    return entries["offset"].astype(np.int64)


def half_claimed(engine: Engine, at: Snapshot) -> Words:
    """Return the messages of the units that are still to be claimed of slots that were begun."""
    begun = (at.claimed, at.claim_offset), (at.aside_claimed, at.aside_offset)
    parts = [
        slot_messages(engine, at, claimed - 1, offset)
        for claimed, offset in begun
        if offset != NO_UNIT
    ]
    return np.concatenate([_NOTHING, *parts])


def slot_messages(engine: Engine, at: Snapshot, slot: int, start: int = NO_UNIT) -> Words:
    """Return the messages of a slot's units, as the snapshot saw them, from `start` back."""
    parts = [_seen(engine, units, at) for units in slot_units(engine, slot, start, hold=at.hold)]
    return np.concatenate([_NOTHING, *parts])


def _seen(engine: Engine, units: Units, at: Snapshot) -> Words:
    """Return the messages of the units that the snapshot saw, and that were not superseded."""
    if len(at.floor.passes):
        say_leads(engine, units, at.hold)
    seen = units.offset < at.timerlog_end
    seen &= ~at.floor.superseded(units)
    messages: Words = units.message[seen]
    return messages


def level_messages(engine: Engine, instant: Instant) -> tuple[Words, Words]:
    """Return the messages that waited in the delay levels, with their due times. O(waiting)."""
    messages, due_ms = [_NOTHING], [_NOTHING]
    for entries in level_entries(engine, instant):
        messages.append(entries["offset"].astype(np.int64))
        due_ms.append(entries["tags_code"].astype(np.int64))
    return np.concatenate(messages), np.concatenate(due_ms)
