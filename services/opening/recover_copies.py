"""Which sources of an earlier life's copies are ahead: the copies cursor waits for them."""

from __future__ import annotations

import numpy as np

from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Rows, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import live_units
from timerstore.services.world.world import World
from timerstore.timelog.bytes.unit import Units
from timerstore.wheel.sets import map_get


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
