"""Looks for timers where a kernel does not: in chains that were not walked, and among copies.

A kernel tells under the locks whether a message waits, see `services/calls/waiting.py`. Most that
are asked for when they may have been taken were fired, and there is nothing to look for. What is
looked for here is looked for without a lock, and judged again with what was found:

- A message may be in a chain that was not walked yet, because the clock went back or the store was
  just opened. Units do not change, so its unit is found beside the services. If its slot is claimed
  meanwhile, the kernel finds the message in the near wheel.
- Cleaning, or a broker, may have copied the message. Then the latest copy waits, or none.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.core.core import Core
from timerstore.ground.ids import Int64s
from timerstore.pending.found import read_messages
from timerstore.pending.unlinked import unlinked_copies
from timerstore.services.calls.first_puts import GONE, NOT_SOUGHT, FirstPuts
from timerstore.services.calls.waiting import (
    COPIED,
    IN_CHAINS,
    NOT_JUDGED,
    OVER,
    judge_timers,
)
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import LapsedError, while_held
from timerstore.services.looking.instant import Snapshot, capture_instant
from timerstore.services.looking.read_pending import look_held
from timerstore.services.looking.slot_units import slot_units
from timerstore.services.looking.timer_places import half_claimed, slot_messages
from timerstore.services.world.floor import Floor
from timerstore.services.world.state import PASS_COLUMNS
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.jit.record import Flags, Int8s
from timerstore.wheel.slots import NO_UNIT

_NO_PASSES: Final = np.zeros((0, PASS_COLUMNS), np.int64)


def settle(core: Core, puts: FirstPuts) -> Int8s:
    """Tell of this store's timers which wait: int8[n], WAITS, WAS_CANCELLED or OVER.

    `puts`: written, so that a copy that waits stands in the place of the first put. O(bucket) for
    each; of what may be in a chain, or was copied, O(units of the slots that can hold one of them);
    of copies also O(bytes of what has no unit and came since the last call), and O(pending) if a
    broker rolled one.
    """
    became = np.zeros(len(puts.offset), np.int8)
    while True:
        trusts = not core.engine.uncounted
        judge_timers(core.engine.world, puts, IDENTITY_OURS, puts.offset, trusts, became)
        in_chains, copied = np.flatnonzero(became == IN_CHAINS), np.flatnonzero(became == COPIED)
        if len(in_chains) + len(copied) == 0:
            return became
        became[in_chains] = became[copied] = NOT_JUDGED
        if len(in_chains):
            while_held(lambda: find_units(core, puts, in_chains))  # noqa: B023
        if len(copied):
            is_found = while_held(lambda: _find_copies(core, puts, copied))  # noqa: B023
            became[copied[~is_found]] = OVER


def settle_theirs(core: Core, puts: FirstPuts, high: int, low: int) -> int:
    """Tell of one timer of a broker: WAITS, WAS_CANCELLED, OVER or COPIED.

    Its rolls are on no grid, so any slot up to its own can hold it: O(their units).
    """
    while True:
        became, trusts = np.zeros(1, np.int8), not core.engine.uncounted
        judge_timers(core.engine.world, puts, high, np.array([low]), trusts, became)
        if became[0] != IN_CHAINS:
            return int(became[0])
        while_held(lambda: find_units(core, puts, np.zeros(1, np.int64), ours=False))


def find_units(core: Core, puts: FirstPuts, which: Int64s, *, ours: bool = True) -> None:
    """Note the units of messages in chains that were not walked, and which have none there.

    Raises LapsedError.
    """
    engine, hold = core.engine, core.engine.holds.take()
    linked = engine.world.enqueue_put.linked_index  # before a chain: what has no unit is in none
    times, due_slots = engine.wheel.slots["time"], puts.due_ms[which] // engine.precision_ms
    if ours:
        slots = _grid_slots(engine, due_slots, engine.read_slot)
    else:
        last = max(int(due_slots.max()), engine.world.dequeue_get.claimed_slot)
        slots = np.sort(times[(times >= engine.read_slot) & (times <= last)])
    order = np.argsort(puts.message[which], kind="stable")
    messages = puts.message[which][order]
    units, found_in = np.full(len(which), NO_UNIT, np.int64), np.zeros(len(which), np.int64)
    latest = Floor(0, _NO_PASSES, engine.world.hopped)
    for slot in slots[_is_unwalked(engine, slots)].tolist():  # a hop leads to a later one
        for each in slot_units(engine, slot, hold=hold):
            at = np.minimum(np.searchsorted(messages, each.message), len(messages) - 1)
            hits = np.flatnonzero((messages[at] == each.message) & ~latest.superseded(each))
            units[at[hits]], found_in[at[hits]] = each.offset[hits], slot
    same = np.searchsorted(messages, messages)  # one may be asked for twice
    is_sure = puts.entry[which] < linked
    puts.unit[which[order]] = units[same]
    puts.slot[which[order]] = found_in[same]
    puts.unit[which[~is_sure]] = NOT_SOUGHT


def _is_unwalked(engine: Engine, slots: Int64s) -> Flags:
    """Tell of which slots some units may not be claimed."""
    world = engine.world
    if engine.read_slot >= world.dequeue_put.aside_stop:
        return slots >= world.dequeue_get.walked_slot
    is_aside = slots < world.dequeue_put.aside_stop
    walked = np.where(is_aside, world.aside.walked_slot, world.dequeue_get.walked_slot)
    return slots >= walked


def _grid_slots(engine: Engine, own: Int64s, read_slot: int) -> Int64s:
    """Return the slots in which timers can wait whose own slots are given, in order.

    They are the used ones on a grid of one of these, and R's, which stands in for those before it.
    """
    hop, wheel = engine.world.settings.hop_slots, engine.wheel.slots["time"]
    found = [np.array([read_slot])]
    top = engine.world.flush.checkpointed_slot + 2 * engine.world.settings.slot_count
    slots = own - np.maximum(0, -(-(own - top + 1) // hop)) * hop
    while len(slots := np.unique(slots[slots >= read_slot])):
        found.append(slots)
        slots = slots - hop
    slots = np.unique(np.concatenate(found))
    used: Int64s = slots[wheel[slots % len(wheel)] == slots]
    return used


def _find_copies(core: Core, puts: FirstPuts, which: Int64s) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Find the latest copy of each timer, and note it in the first put's place: bool[n].

    Raises LapsedError.
    """
    engine, due_ms, offsets = core.engine, puts.due_ms[which], puts.offset[which]
    read_slot = engine.read_slot  # before the capture: what it passes meanwhile hops further
    instant = capture_instant(engine, whole=False)
    at = instant.snapshot
    is_near = (instant.due_ms == 0) | np.isin(instant.due_ms, due_ms)
    parts = [
        instant.messages[is_near],
        half_claimed(engine, at),
        unlinked_copies(core, at, offsets),
    ]
    slots = _grid_slots(engine, due_ms // engine.precision_ms, read_slot)
    slots = slots[_is_unclaimed(at, slots)]
    parts += [slot_messages(engine, at, slot) for slot in slots.tolist()]
    found = _note_copies(core, puts, which, at, np.concatenate(parts))
    # Nobody took it, and it is on no slot of its grid: a broker rolled it.
    off_grid = ~found & (due_ms > max(engine.world.dequeue_put.frontier_ms, 0))
    if off_grid.any():
        own = int(due_ms[off_grid].max()) // engine.precision_ms
        times = engine.wheel.slots["time"]
        slots = np.sort(times[_is_unclaimed(at, times) & (times <= own)])
        waiting = [slot_messages(engine, at, slot) for slot in slots.tolist()]
        waiting.append(np.zeros(0, np.int64))
        found[off_grid] = _note_copies(core, puts, which[off_grid], at, np.concatenate(waiting))
    return found


def _note_copies(
    core: Core, puts: FirstPuts, which: Int64s, at: Snapshot, waiting: Int64s
) -> Flags:
    """Find the latest copy of each timer among messages that wait, and note it: bool[n]."""
    found = read_messages(core, np.unique(waiting), at.hold)
    ours = np.flatnonzero(found.high == IDENTITY_OURS)
    # In ascending order, so that the latest copy stays. A retry has its origin's key, and is due at
    # another time.
    copies = {(int(found.low[i]), int(found.due_ms[i])): i for i in ours.tolist()}
    is_found = np.zeros(len(which), np.bool_)
    log = core.engine.commitlog
    for n, i in enumerate(which.tolist()):
        place = copies.get((int(puts.offset[i]), int(puts.due_ms[i])))
        if place is None:
            continue
        copy, row = int(found.message[place]), int(found.row[place])
        message = look_held(log, copy, at.hold, lambda: decode_message(log.view(copy), copy))  # noqa: B023
        if message is None:
            raise LapsedError
        if row < 0:  # nothing was put to that topic, or fired, since opening
            row = core.engine.row_of_message(copy)
        if row < 0:
            continue
        if puts.row[i] == GONE:
            puts.row[i] = row
        puts.message[i], puts.entry[i], puts.unit[i] = copy, message.queue_index, NOT_SOUGHT
        puts.born_ms[i], puts.body_bytes[i] = message.born_ms, len(message.body)
        is_found[n] = True
    return is_found


def _is_unclaimed(snapshot: Snapshot, slots: Int64s) -> Flags:
    """Tell of which slots no unit was claimed, if they have any and are not passed."""
    aside = (snapshot.aside_claimed <= slots) & (slots < snapshot.aside_stop)
    return aside | (slots >= snapshot.claimed)
