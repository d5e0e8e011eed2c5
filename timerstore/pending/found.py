"""Where pending timers wait: their messages, as arrays."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.core.core import Core
from timerstore.ground.ids import Int64s
from timerstore.services.engine.holds import Hold, while_held
from timerstore.services.looking.instant import Instant, Snapshot, capture_instant
from timerstore.services.looking.level_timers import find_waiting
from timerstore.services.looking.read_pending import reading_of
from timerstore.services.looking.timer_places import wheel_messages
from timerstore.services.mending.pass_lost import name_lost
from timerstore.services.world.floor import read_floor
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.wheel import judge as pending
from timerstore.wheel.slots import NO_UNIT

_NOTHING: Final = np.zeros(0, np.int64)


class Found(NamedTuple):
    """Pending timers, one row each, in no order."""

    message: Int64s  # commit log offset of the latest copy
    due_ms: Int64s
    high: Int64s  # identity
    low: Int64s
    rolls: Int64s
    row: Int64s  # queue of the real topic
    damaged: Int64s  # messages that cannot be read; they are in no row
    hold: Hold  # the messages are there while this lasts


def read_messages(core: Core, messages: Int64s, hold: Hold, cancelled: Int64s = _NOTHING) -> Found:
    """Read messages into a `Found`, segment by segment; sources that are done are left out.

    So is what cannot be read, because its checksum is compared; `find_pending` names it. O(bytes).
    `hold`: under which they were captured; raises LapsedError.

    `cancelled`: the table of what was cancelled, and is left out as well.
    """
    engine = core.engine
    messages = np.sort(messages)
    segment_bytes, log = engine.commitlog.segment_bytes, PinnedLog(engine.commitlog)
    reading = reading_of(engine, cancelled)
    parts, damaged = [np.empty((6, 0), np.int64)], [_NOTHING]
    found = MessageParts()
    edges = np.flatnonzero(np.diff(messages // segment_bytes)) + 1
    for part in np.split(messages, edges) if len(messages) else []:
        if not log.map_from(int(part[0]), part):
            hold.pass_missing(engine.commitlog, int(part[0]))
            continue
        columns = pending.places_to_read(part)
        pending.read_pending(log.table, engine.queues.table, False, reading, found, columns, 0)
        verdicts = columns.verdict
        kept = verdicts == pending.PENDING
        who = columns.due_ms, columns.high, columns.low, columns.rolls, columns.row
        parts.append(np.vstack((part, *who))[:, kept])
        damaged.append(part[verdicts < 0])
    return Found._make([*np.concatenate(parts, axis=1), np.concatenate(damaged), hold])


def capture_locked(core: Core) -> Snapshot:
    """Capture the cursors; under the locks of the services. O(1)."""
    engine, world = core.engine, core.engine.world
    aside_stop, aside = world.dequeue_put.aside_stop, (0, 0, NO_UNIT)
    if engine.read_slot < aside_stop:
        aside = world.aside.claimed_slot, aside_stop, world.aside.claim_offset
    return Snapshot(
        world.dequeue_get.claimed_slot,
        world.dequeue_get.claim_offset,
        *aside,
        world.flush.checkpointed_slot + 2 * world.settings.slot_count,  # see wheel/place.py
        engine.timerlog.end,
        world.enqueue_put.linked_index,
        engine.queues.next_index(0),
        read_floor(world),
        engine.holds.under_locks(),
    )


def find_pending(core: Core, instant: Instant | None = None) -> Found:
    """Return all timers that were pending at an instant, or now. O(bytes).

    What was fired since is among them. What cannot be read is left out, and named. Raises
    LapsedError if the hold of the instant that was given lapses.
    """
    with core.gate.guard():
        core.check_open()
        core.check_unlocked()
        if instant is not None:
            return _find_pending(core, instant)
        return while_held(lambda: _find_pending(core, capture_instant(core.engine)))


def _find_pending(core: Core, instant: Instant) -> Found:
    hold = instant.snapshot.hold
    timers = read_messages(core, wheel_messages(core.engine, instant), hold, instant.cancelled)
    levels = find_waiting(core.engine, instant)
    rolls = np.zeros(len(levels.message), np.int64)
    columns = levels.message, levels.due_ms, levels.high, levels.low, rolls, levels.row
    in_levels = Found(*columns, levels.damaged, hold)
    both = zip(timers[:-1], in_levels[:-1], strict=True)
    found = Found._make([*map(np.concatenate, both), hold])
    for message in found.damaged.tolist():
        name_lost(core.engine, message)
    return found
