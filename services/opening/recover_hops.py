"""Which unit of each message counts: the last one that a hop, or a killed broker, linked."""

from __future__ import annotations

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import all_units
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import TimerCheckpoint
from timerstore.wheel.sets import map_put_all, new_table


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
