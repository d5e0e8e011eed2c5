"""Looks for timers wherever they can still wait, if they are overdue or cleaning has passed them.

A timer that is due after the frontier was certainly not taken. Of the others most were fired, but
one may wait still: not linked yet, in the near wheel or a queue beside it, or in a slot of its
grid that was not claimed, because the clock went back or the store was just opened.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from timerstore.calls.pending.found import read_messages
from timerstore.calls.pending.unlinked import unlinked_copies
from timerstore.core.core import Core
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.instant import Instant, Snapshot
from timerstore.services.looking.timer_places import slot_messages, unlinked_messages
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.values.ids import Int64s


def find_overdue(
    core: Core, instant: Instant, due_ms: Int64s, offsets: Int64s, rows: Int64s
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell which timers waited at an instant that was captured for them: bool[n].

    `offsets`: of the first puts; `rows`: the queues of their real topics. O(n + what is due at
    these times + bytes without a unit), and the chains of the slots that can hold one of them.
    Raises LapsedError.
    """
    engine, snapshot = core.engine, instant.snapshot
    unlinked = unlinked_messages(engine, snapshot)
    messages = np.concatenate([_linked_messages(core, instant, due_ms), unlinked])
    if not engine.world.done.count:
        waiting = np.isin(offsets, messages)
        if waiting.all():
            return waiting
    # The rest may have rolled: then a later copy waits. A retry has its origin's key, but goes to
    # another topic.
    messages = np.unique(messages[messages >= offsets.min()])
    found = read_messages(core, messages, snapshot.hold)
    ours = found.high == IDENTITY_OURS
    copies = set(zip(found.low[ours].tolist(), found.row[ours].tolist(), strict=True))
    wanted = zip(offsets.tolist(), rows.tolist(), strict=True)
    return np.fromiter((each in copies for each in wanted), np.bool_, len(offsets))


def find_moved(
    core: Core, instant: Instant, due_ms: Int64s, offsets: Int64s
) -> tuple[Int64s, Int64s]:
    """Find timers whose first message retention has removed: only a rolled copy can wait.

    Return the commit log offset of each one's latest copy, −1 if none waits, and the queue of
    its real topic. Costs as `find_overdue`, but `unlinked_copies`
    reads what has no unit; O(pending) if a timer that nobody can have taken is on no slot of its
    grid, because a broker rolled it. Raises LapsedError.
    """
    snapshot = instant.snapshot
    unlinked = unlinked_copies(core, snapshot, offsets)
    waiting = np.concatenate([_linked_messages(core, instant, due_ms), unlinked])
    messages, rows = _find_copies(core, snapshot, due_ms, offsets, waiting)
    off_grid = (messages < 0) & (due_ms > core.engine.world.dequeue_put.frontier_ms)
    if off_grid.any():
        own = int(due_ms[off_grid].max()) // core.engine.precision_ms
        waiting = _messages_until(core.engine, snapshot, own)
        found = _find_copies(core, snapshot, due_ms[off_grid], offsets[off_grid], waiting)
        messages[off_grid], rows[off_grid] = found
    return messages, rows


def _find_copies(
    core: Core, snapshot: Snapshot, due_ms: Int64s, offsets: Int64s, waiting: Int64s
) -> tuple[Int64s, Int64s]:
    """Find the latest copy of each timer among messages that wait: its offset, its queue; or −1."""
    found = read_messages(core, np.unique(waiting), snapshot.hold)
    ours = np.flatnonzero(found.high == IDENTITY_OURS)
    # In ascending order, so that the latest copy stays. A retry has its origin's key, and is due at
    # another time.
    copies = {
        (int(found.low[i]), int(found.due_ms[i])): (int(found.message[i]), int(found.row[i]))
        for i in ours.tolist()
    }
    messages, rows = np.full(len(offsets), -1, np.int64), np.full(len(offsets), -1, np.int64)
    for i, who in enumerate(zip(offsets.tolist(), due_ms.tolist(), strict=True)):
        if who in copies:
            messages[i], rows[i] = copies[who]
            if rows[i] < 0:  # nothing was put to that topic, or fired, since opening
                rows[i] = core.engine.row_of_message(int(messages[i]))
    return messages, rows


def _messages_until(engine: Engine, snapshot: Snapshot, last: int) -> Int64s:
    """Return the messages of all units of slots up to one that were not claimed."""
    times = engine.wheel.slots["time"]
    slots = np.sort(times[_are_to_be_walked(snapshot, times) & (times <= last)]).tolist()
    parts = [slot_messages(engine, snapshot, slot) for slot in slots]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _linked_messages(core: Core, instant: Instant, due_ms: Int64s) -> Int64s:
    """Return the messages that have a unit, and wait where timers that are due then can wait."""
    engine, snapshot = core.engine, instant.snapshot
    own = due_ms // engine.precision_ms
    parts = [_near_messages(engine, instant, due_ms), _handed_on_messages(instant)]
    for slot in _slots_to_walk(engine, snapshot, own):
        parts.append(slot_messages(engine, snapshot, slot))
    return np.concatenate(parts)


def _handed_on_messages(instant: Instant) -> Int64s:
    """Return the messages in the queues before and behind the near wheel."""
    return instant.messages[instant.near_count :]


def _near_messages(engine: Engine, instant: Instant, due_ms: Int64s) -> Int64s:
    """Return the messages of near wheel nodes that wait for one of these times, or may roll."""
    count, at = instant.near_count, instant.snapshot
    starts = np.arange(at.read, at.claimed) * engine.precision_ms
    is_wanted = np.isin(instant.due_ms[:count], np.concatenate([due_ms, starts]))
    return instant.messages[:count][is_wanted]


def _are_to_be_walked(snapshot: Snapshot, slots: Int64s) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell of which slots there are units that were not claimed, if any are and not passed."""
    return (slots >= snapshot.claimed) | np.isin(slots, snapshot.owed[:, 0])


def _slots_to_walk(engine: Engine, snapshot: Snapshot, own: Int64s) -> list[int]:
    """Return the used slots with units not claimed that are on the grid of one of these."""
    hop = engine.world.settings.hop_slots
    wheel = engine.wheel.slots["time"]
    # The latest slot of each grid that lies in the ring.
    slots = own - np.maximum(0, -(-(own - snapshot.top + 1) // hop)) * hop
    found: set[int] = set()
    if _are_to_be_walked(snapshot, np.array([snapshot.read]))[0]:  # stands for those before it
        found.add(snapshot.read)
    while len(slots := slots[slots >= snapshot.read]):
        found.update(np.unique(slots[_are_to_be_walked(snapshot, slots)]).tolist())
        slots = slots - hop
    return sorted(slot for slot in found if int(wheel[slot % len(wheel)]) == slot)
