"""Messages that a broker's own clean-up has removed, while its indexes still point to them.

A broker removes commit log segments by their age, also if timers in them wait; when such a timer
is due, it drops it. So do we: that is no damage. What is gone is passed by, counted, told once.
"""

from __future__ import annotations

import numpy as np

from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import Units


def first_kept_index(engine: Engine, queue_index: int) -> tuple[int, int]:
    """Move the queue cursor over entries whose messages are gone; return it and their count."""
    kept = engine.queues.first_kept(0, engine.commitlog.start)
    return max(queue_index, kept), max(0, kept - queue_index)


def count_removed(engine: Engine, units: Units) -> int:
    """Return how many units of timers point to messages that are gone."""
    gone = units.message < engine.commitlog.start
    gone &= units.magic & fmt.UNIT_DELETE == 0
    return int(np.count_nonzero(gone))
