"""The copies that have no unit yet, found by their timers; each message is read once.

Once cleaning has removed a timer's first message, only its latest copy says that it is pending.
Without a unit that copy is in no slot, but anywhere in what has no unit: all that was put while a
manual clock stood still, for example. Each call would have to read all of that.
"""

from __future__ import annotations

import numpy as np

from timerstore.calls.pending.found import read_messages
from timerstore.core.core import Core
from timerstore.core.unitless import Copies
from timerstore.services.looking.instant import Snapshot
from timerstore.services.looking.timer_places import unlinked_messages
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.values.ids import Int64s


def unlinked_copies(core: Core, at: Snapshot, offsets: Int64s) -> Int64s:
    """Return the messages without a unit that are copies of the timers first put at `offsets`.

    O(bytes without a unit that came since the last call + copies without a unit). Raises
    LapsedError.
    """
    known = core.unlinked
    if known.start > at.queue_start or known.stop > at.queue_end:  # of a later instant than this
        known = Copies(at.queue_start, at.queue_start)
    new = unlinked_messages(core.engine, at._replace(queue_start=max(at.queue_start, known.stop)))
    found = read_messages(core, new, at.hold)
    is_copy = (found.high == IDENTITY_OURS) & (found.message != found.low)
    message, low = found.message[is_copy], found.low[is_copy]
    index = at.queue_end - len(new) + np.searchsorted(new, message)
    is_kept = known.queue_index >= at.queue_start
    if len(message) or not is_kept.all():
        known = Copies(
            at.queue_start,
            at.queue_end,
            np.concatenate([known.queue_index[is_kept], index]),
            np.concatenate([known.message[is_kept], message]),
            np.concatenate([known.low[is_kept], low]),
        )
    # In one go: a signal may end this anywhere, and another thread may do the same.
    core.unlinked = known._replace(start=at.queue_start, stop=at.queue_end)
    messages: Int64s = known.message[np.isin(known.low, offsets)]
    return messages
