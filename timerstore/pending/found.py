"""Where pending timers wait: their messages, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from timerstore.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.services.floor import read_floor
from timerstore.services.instant import Instant, Snapshot, capture_instant
from timerstore.services.level_timers import find_waiting, read_kept
from timerstore.services.read_pending import read_pending
from timerstore.services.slot_units import slot_units
from timerstore.timelog.message import FOUND_WORDS
from timerstore.wheel import chain
from timerstore.wheel.cancelled import in_table
from timerstore.wheel.slots import NO_UNIT

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Found(NamedTuple):
    """Pending timers, one row each, in no order."""

    message: Int64s  # commit log offset of the latest copy
    due_ms: Int64s
    high: Int64s  # identity
    low: Int64s
    rolls: Int64s
    row: Int64s  # queue of the real topic


def read_timers(core: Core, instant: Instant, messages: Int64s) -> Found:
    """Read messages into a `Found`, without the timers that were cancelled by that instant."""
    found = read_messages(core, messages)
    if not len(instant.cancelled):
        return found
    cancelled = in_table(instant.cancelled, found.high, found.low)
    return Found(*(column[~cancelled] for column in found))


def read_messages(core: Core, messages: Int64s) -> Found:
    """Read messages into a `Found`, segment by segment; sources that are done are left out."""
    engine = core.engine
    messages = np.sort(messages)
    segment_bytes = engine.commitlog.segment_bytes
    parts, found = [], np.zeros(FOUND_WORDS, np.int64)
    edges = np.flatnonzero(np.diff(messages // segment_bytes)) + 1
    for part in np.split(messages, edges) if len(messages) else []:
        try:
            pins = engine.commitlog.pin(int(part[0]), int(part[-1]) + 1)
        except CorruptStoreError:
            if int(part[-1]) >= engine.commitlog.start:
                raise
            continue  # fired and removed since
        columns = np.empty((6, len(part)), np.int64)
        count = read_pending(
            engine.commitlog.table,
            engine.queues.table,
            part,
            engine.store_tag,
            engine.precision_ms,
            engine.done,
            engine.world.done.count,
            found,
            columns,
        )
        del pins
        parts.append(columns[:, :count])
    columns = np.concatenate(parts, axis=1) if parts else np.empty((6, 0), np.int64)
    return Found(*(column.copy() for column in columns))


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
        read_floor(world.cleaning),
    )


def unlinked_messages(core: Core, snapshot: Snapshot) -> Int64s:
    """Return the timer messages that had no unit yet."""
    if snapshot.queue_end <= snapshot.queue_start:
        return np.zeros(0, np.int64)
    entries = read_kept(core.engine, 0, snapshot.queue_start, snapshot.queue_end)
    return entries["offset"].astype(np.int64)


def half_claimed(core: Core, snapshot: Snapshot) -> Int64s:
    """Return the messages of the units that are still to be claimed of slots that were begun."""
    parts = [np.zeros(0, np.int64)]
    for claimed, offset in (
        (snapshot.claimed, snapshot.claim_offset),
        (snapshot.aside_claimed, snapshot.aside_offset),
    ):
        if offset != NO_UNIT:
            parts.append(slot_messages(core, snapshot, claimed - 1, offset))
    return np.concatenate(parts)


def slot_messages(core: Core, snapshot: Snapshot, slot: int, start: int = NO_UNIT) -> Int64s:
    """Return the messages of a slot's units, as the snapshot saw them, from `start` back.

    Without those that were superseded.
    """
    parts = [np.zeros(0, np.int64)]
    for units in slot_units(core.engine, slot, start):
        seen = units[:, chain.WALK_OFFSET] < snapshot.timerlog_end
        seen &= ~snapshot.floor.superseded(units[:, chain.WALK_MESSAGE], slot)
        parts.append(units[seen, chain.WALK_MESSAGE])
    return np.concatenate(parts)


def find_pending(core: Core, instant: Instant | None = None) -> Found:
    """Return all timers that were pending at an instant, or now. O(pending).

    What was fired since is among them, as long as retention has not removed it.
    """
    with core.gate:
        core.check_open()
        return _find_pending(core, instant)


def _find_pending(core: Core, instant: Instant | None) -> Found:
    if instant is None:
        instant = capture_instant(core.engine.world)
    snapshot = instant.snapshot
    parts = [
        instant.messages,
        unlinked_messages(core, snapshot),
        half_claimed(core, snapshot),
    ]
    for slot, last in instant.slots.tolist():
        parts.append(slot_messages(core, snapshot, slot, last))
    timers = read_timers(core, instant, np.concatenate(parts))
    levels = find_waiting(core.engine, instant)
    rolls = np.zeros(len(levels.message), np.int64)
    in_levels = Found(*(levels.message, levels.due_ms, levels.high, levels.low, rolls, levels.row))
    return Found(*map(np.concatenate, zip(timers, in_levels, strict=True)))
