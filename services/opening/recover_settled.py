"""What an earlier life has settled: sources of copies, what hopped, what was cancelled.

The copies cursor waits for sources of its copies that are still ahead.
"""

from __future__ import annotations

import numpy as np

from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Rows, Words
from timerstore.services.durable.flush import read_cancelled
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.read_units import all_units, live_units, read_timers, reading_all
from timerstore.services.looking.timer_places import still_wait
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.checkpoint import Stamp, TimerCheckpoint
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.wheel import judge as pending
from timerstore.wheel.cancelled import are_of_level, map_get, map_put_all, new_table


def drop_before(
    floor: int, ours: list[Words], brokers: Words, copies: list[Words]
) -> tuple[list[Words], Words, list[Words]]:
    """Leave out copies whose source lies before the floor: all units there are superseded.

    `ours`, `brokers`: the sources of copies that we made, and that a broker made; `copies`: theirs,
    in that order.
    """
    nothing = np.zeros(0, np.int64)
    mine = np.concatenate([nothing, *ours])
    kept = np.concatenate([mine, brokers]) >= floor
    left = np.concatenate([nothing, *copies])[kept]
    mine = mine[mine >= floor]
    return [mine] * bool(len(mine)), brokers[brokers >= floor], [left] * bool(len(left))


def learn_sources(engine: Engine) -> None:
    """Find the slots in which sources wait that are done.

    The copies cursor stays until the read cursor is past them. They may be deletes, whose copies
    rolled: it stays at these as well. O(units) if there are any.
    """
    if not engine.world.done.count:
        return
    parts = [np.zeros((0, 2), np.int64)]
    for units in live_units(engine):
        found = np.empty((len(units), 2), np.int64)
        parts.append(found[: _find_done(engine.world, units, engine.done, found)].copy())
    engine.recovered_sources = np.concatenate(parts)


def assume_sources(engine: Engine, origins: Words, waiting: Words, claimed_slot: int) -> None:
    """Take each source to wait in the last slot in which its unit can be, without reading that.

    What was fired was claimed. What waits again is in the slot in which it is due, or in one before
    it, to which it rolled: after a clean close that is enough. `waiting`: int64[2, n], the
    sources of these, with their TIMER_OUT_MS. O(n log n) in the copies.
    """
    slots = np.full(len(origins), claimed_slot)
    sources, first = np.unique(waiting[0], return_index=True)
    again = np.isin(origins, sources)
    due_slots = waiting[1, first[np.searchsorted(sources, origins[again])]] // engine.precision_ms
    top = claimed_slot + len(engine.wheel.slots)  # no unit is behind that
    slots[again] = np.clip(due_slots, claimed_slot, top)
    engine.recovered_sources = np.stack([origins, slots], axis=1)


@kernel_later
def _find_done(world: World, units: Units, done: Words, found: Rows) -> int:
    """Write message and slot of each unit whose source is done; return how many."""
    count = 0
    for i in range(len(units.offset)):
        if map_get(done, units.message[i]) >= 0:
            found[count, 0] = units.message[i]
            found[count, 1] = units.ms[i] // world.settings.precision_ms
            count += 1
    return count


# --- Which unit of each message counts: the last one that a hop, or a killed broker, linked.


def learn_hops(engine: Engine, checkpoint: TimerCheckpoint) -> None:
    """Read which units count from the hops cursor on, so that units before them are passed by.

    A hop's unit counts, and of several plain ones of one message the last: a broker that was
    killed links some timers again. O(units from the hops cursor on). Slots before the read cursor
    need not be known: nobody reads their units. If the hops cursor is lost, or a broker wrote
    since, all units are read.
    """
    start, until = checkpoint.hops_from, checkpoint.claimed_slot
    if checkpoint.by_broker:
        start = until = 0
    start = max(start, engine.timerlog.start)
    parts = [np.zeros((4, 0), np.int64)]
    for units in all_units(engine, start, engine.timerlog.end, engine.read_slot):
        is_hop = units.magic & fmt.UNIT_HOP
        # A handover links one delete into many slots.
        timers = (is_hop != 0) | (units.magic & fmt.UNIT_DELETE == 0)
        parts.append(np.stack([units.message, units.offset, units.ms, is_hop])[:, timers])
    messages, offsets, ms, is_hop = np.concatenate(parts, axis=1)
    _, place, counts = np.unique(messages, return_inverse=True, return_counts=True)
    counts_here = (counts[place] > 1) | (is_hop != 0)
    if checkpoint.by_broker and counts_here.any():  # each of their slots must be passed
        until = int(ms[counts_here].max()) // engine.precision_ms + 1
    engine.hopped_from, engine.hopped_until = start, until
    use_last_units(engine, messages[counts_here], offsets[counts_here])


def use_last_units(engine: Engine, messages: Words, offsets: Words) -> None:
    """Let units of messages count only from these on; offsets ascend. No service runs. O(n)."""
    last, first_behind = np.unique(messages[::-1], return_index=True)
    table = new_table(len(last))
    map_put_all(table, last, offsets[::-1][first_behind].copy())
    engine.use_hopped(table, len(last))


# --- Recovering the cancelled set: the targets of all deletes that still count.


def find_cancelled(engine: Engine, level_deletes: list[Words]) -> None:
    """Put the targets of all live deletes into the cancelled set; before any service fires.

    `level_deletes`: what `level_deletes` found from the copies cursor on. Of a delay level's
    targets only those are put in that their loops have not passed, because only these take their
    entries out again.
    """
    reading = reading_all(engine)
    for units in live_units(engine):
        deletes = units[units.magic & fmt.UNIT_DELETE != 0]
        if not len(deletes):
            continue
        messages = deletes.message
        found = read_timers(engine, messages, reading)
        high, low = found.high, found.low
        known = found.verdict == pending.DELETE
        levels = np.flatnonzero(are_of_level(high, low))
        known[levels] = still_wait(engine, low[levels] & ~fmt.LEVEL_MARK)
        engine.cancelled.add(high[known], low[known])
    _hold(engine, level_deletes)


def take_cancelled(engine: Engine, stamp: Stamp, level_deletes: list[Words]) -> None:
    """Take the set that a clean close stored, else find it. O(set)."""
    stored = read_cancelled(engine, stamp)
    if stored is None:
        find_cancelled(engine, level_deletes)
        return
    engine.cancelled.add(*stored.T.copy())
    _hold(engine, level_deletes)


def level_deletes(rows: LoggedMessages) -> Words:
    """Return (target, offset) of each delete of a level's message among scanned rows."""
    of_level = are_of_level(rows.identity_high, rows.identity_low)
    found = rows[(rows.is_delete == 1) & of_level]
    return np.stack((found.identity_low, found.offset), axis=1)


def _hold(engine: Engine, level_deletes: list[Words]) -> None:
    """Put in the targets of deletes that were passed; the copies cursor stays at these deletes."""
    found = np.concatenate([np.zeros((0, 2), np.int64), *level_deletes])
    found = found[still_wait(engine, found[:, 0] & ~fmt.LEVEL_MARK)]
    engine.cancelled.add_held(found[:, 0].copy(), found[:, 1].copy())


def find_timer(engine: Engine, high: int, low: int) -> int:
    """Return the message of the timer with this identity that has a live unit, or −1. O(units)."""
    latest, reading = -1, reading_all(engine)
    for units in live_units(engine):
        messages = units.message[units.magic & fmt.UNIT_DELETE == 0]
        found = read_timers(engine, messages, reading)
        same = found.verdict == pending.PENDING
        same &= (found.high == high) & (found.low == low)
        latest = max(latest, int(messages[same].max(initial=-1)))
    return latest
