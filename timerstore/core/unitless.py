"""The copies of timers that have no unit yet, as far as they were looked at: columns, no rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from timerstore.values.ids import Int64s

_NONE = np.zeros(0, np.int64)


class Copies(NamedTuple):
    """Copies of this store's own timers, in the order of the timer topic's queue."""

    start: int = 0  # all from this index of the queue on was read
    stop: int = 0  # and all before this one
    queue_index: Int64s = _NONE
    message: Int64s = _NONE
    low: Int64s = _NONE  # offset of the timer's first put
