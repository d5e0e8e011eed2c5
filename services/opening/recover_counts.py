"""Recovering the counters of topics: those that were written, with what the log says since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from timerstore.errors import TimerStoreError
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Flags, Words
from timerstore.timelog.files.nonzero import nonzero_places
from timerstore.timelog.reading.scan import LoggedMessages, QueueNames, destined_for
from timerstore.timelog.writing.tally import (
    CANCELLED_COUNT,
    FIRED_COUNT,
    LOST_COUNT,
    PUT_COUNT,
    TALLY_WORDS,
    Tally,
    count_fired,
    count_put,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from timerstore.services.engine.engine import Engine


@kernel_later
def _count(
    tally: Tally,
    rows: LoggedMessages,
    queue_rows: Words,
    until: Words,
    waits: Flags,
    in_level: Flags,
) -> None:
    """Count what scanned messages did, each if it stands behind what its row has counted.

    `queue_rows`: of each timer's real topic, −1 if a message is neither. `waits`: it is in the
    timer topic or, `in_level`, in a delay level.
    """
    for i in range(len(rows.offset)):
        row = queue_rows[i]
        if row < 0 or rows.offset[i] < until[row]:
            continue
        stored_ms = rows.stored_ms[i]
        due_ms = rows.exact_due_ms[i]
        if in_level[i]:
            due_ms = rows.tags_code[i]
        if not waits[i]:
            count_fired(tally, row, stored_ms - due_ms)
        elif rows.is_delete[i] != 0:
            tally.words[row * TALLY_WORDS + CANCELLED_COUNT] += 1
        else:
            count_put(tally, row, due_ms - stored_ms)


class Recount:
    """What was written of an engine's counters, and how recovery counts on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._all_until, self._until = engine.counters.read()

    def take(
        self,
        part: LoggedMessages,
        queue_rows: Words,
        level_rows: list[int],
        find: Callable[[Engine, QueueNames], Words],
    ) -> None:
        """Count what scanned messages did; `find` returns the rows of some queues."""
        behind = part.offset >= self._all_until
        part, queue_rows = part[behind], queue_rows[behind]
        in_level = np.isin(queue_rows, level_rows)
        waits = (queue_rows == 0) | in_level
        is_copy = part.origin >= 0
        is_first = waits & ~is_copy & (part.roll_times == 0)
        is_first &= part.real_topic_bytes > 0
        is_first &= in_level | (part.exact_due_ms >= 0)
        is_fired = ~waits & is_copy & (part.exact_due_ms >= 0)
        rows = np.where(is_fired, queue_rows, -1)
        if is_first.any():
            try:
                rows[is_first] = find(self._engine, destined_for(part[is_first]))
            except TimerStoreError:
                return  # a broker's message, whose topic has a name that cannot be
        tally = self._engine.queues.table.tally
        _count(tally, part, rows, self._until, waits, in_level)

    def settle(self, log_end: int, *, by_broker: bool) -> None:
        """Make put − fired − cancelled − lost what is pending, now that this is known.

        They differ by what a broker did, by what was lost to damage, and by what was put before
        anybody counted. No counter falls.
        """
        queues = self._engine.queues
        count = len(queues.files)
        if max(self._all_until, int(self._until.max())) > log_end:  # it was cut there since
            self._engine.counters.write_again(nonzero_places(self._until))
        words = queues.table.tally.words.reshape(-1, TALLY_WORDS)[:count]
        timers, levels = queues.table.pending.reshape(2, -1)
        missing = timers[:count] + levels[:count] - words[:, PUT_COUNT]
        missing += words[:, FIRED_COUNT] + words[:, CANCELLED_COUNT] + words[:, LOST_COUNT]
        for topic in {queues.topics[row] for row in nonzero_places(missing).tolist()}:
            rows = queues.rows(topic)
            change = int(missing[rows].sum())
            words[rows[0], PUT_COUNT] += max(0, change)
            words[rows[0], FIRED_COUNT if by_broker else LOST_COUNT] += max(0, -change)
