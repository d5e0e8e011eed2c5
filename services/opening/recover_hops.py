"""Which unit of each message counts: the last one, by what an earlier life's hops linked."""

from __future__ import annotations

import numpy as np

from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import all_units
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import Checkpoint
from timerstore.timelog.jit.record import Words
from timerstore.wheel.sets import map_put_all, new_table


def learn_hops(engine: Engine, checkpoint: Checkpoint) -> None:
    """Read what hops linked from the checkpoint's T on, so that units before it are passed by.

    O(units from T on). Slots before R need not be known: nobody reads their units. If T is lost,
    or a broker wrote since, all units are read.
    """
    start, until = checkpoint.hops_from, checkpoint.claimed_slot
    if checkpoint.by_broker:
        start = until = 0
    nothing = np.zeros(0, np.int64)
    messages, offsets = [nothing], [nothing]
    start = max(start, engine.timerlog.start)
    for units in all_units(engine, start, engine.timerlog.end, engine.read_slot):
        hops = units[units.magic & fmt.UNIT_HOP != 0]
        messages.append(hops.message)
        offsets.append(hops.offset)
        if checkpoint.by_broker and len(hops):  # each hopped from a slot before that
            until = max(until, int(hops.ms.max()) // engine.precision_ms)
    engine.hopped_from, engine.hopped_until = start, until
    use_last_units(engine, np.concatenate(messages), np.concatenate(offsets))


def use_last_units(engine: Engine, messages: Words, offsets: Words) -> None:
    """Let units of messages count only from these on; offsets ascend. No service runs. O(n)."""
    last, first_behind = np.unique(messages[::-1], return_index=True)
    table = new_table(len(last))
    map_put_all(table, last, offsets[::-1][first_behind].copy())
    engine.use_hopped(table, len(last))
