"""How many pending timers fall due by when, summed over the tallies of some topics."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Rows, Words
from timerstore.timelog.writing.tally import (
    AHEAD_BUCKETS,
    DUE_RING_COUNT,
    FAR_COUNT,
    KEPT_FROM,
    OVERDUE_COUNT,
    OVERDUE_FROM_MS,
    RING_BUCKETS,
    RING_SHIFT,
    RING_STEP,
    TALLY_WORDS,
    Tally,
)

NEVER_MS: Final = 1 << 62

# Columns of what is summed, before one for each time ahead.
OVERDUE: Final = 0
LATER: Final = 1  # not overdue: with those of all times
NEXT_MS: Final = 2  # NEVER_MS if there is none
OLDEST_MS: Final = 3  # of what is overdue
WITHIN: Final = 4


@kernel_ahead
def sum_ahead(
    tally: Tally, rows: Words, now_ms: int, fired_ms: int, within_ms: Words, sums: Rows
) -> None:
    """Sum what is pending for each row: `sums`, int64[n, WITHIN + len(within_ms)], written.

    A column for each of `within_ms`: due from now on until so long after now. What is due before
    `fired_ms` was fired, so all that a bucket still holds is due after it; of a bucket that holds
    `now_ms`, or the end of such a time, a share counts on either side. O(rows), 2 µs each.
    """
    for i in range(len(rows)):
        at, counts = rows[i] * TALLY_WORDS, sums[i]
        overdue = 1_024 * tally.words[at + OVERDUE_COUNT]
        later = 1_024 * tally.words[at + FAR_COUNT]
        next_ms, oldest_ms = NEVER_MS, NEVER_MS
        if overdue > 0:
            oldest_ms = tally.words[at + OVERDUE_FROM_MS]
        for k in range(len(within_ms)):
            counts[WITHIN + k] = 0
        for ring in range(DUE_RING_COUNT):
            kept, shift = tally.words[at + KEPT_FROM + ring], RING_SHIFT + RING_STEP * ring
            if kept == 0:
                continue  # nothing was ever counted there
            place = rows[i] * AHEAD_BUCKETS + ring * RING_BUCKETS
            for number in range(kept, kept + RING_BUCKETS):
                count = np.int64(tally.ahead[place + (number & (RING_BUCKETS - 1))])
                if count == 0:
                    continue
                begin_ms, stop_ms = number << shift, (number + 1) << shift
                start_ms = min(max(begin_ms, fired_ms), stop_ms - 1)
                each = 1_024.0 * count / (stop_ms - start_ms)
                passed = np.int64(0.5 + each * max(0, min(now_ms, stop_ms) - start_ms))
                overdue += passed
                later += 1_024 * count - passed
                if stop_ms <= now_ms:
                    oldest_ms = min(oldest_ms, begin_ms)
                else:
                    next_ms = min(next_ms, max(start_ms, now_ms))
                    if start_ms < now_ms:
                        oldest_ms = min(oldest_ms, start_ms)
                for k in range(len(within_ms)):
                    until_ms = min(now_ms + within_ms[k], stop_ms)
                    ahead_ms = max(0, until_ms - max(start_ms, now_ms))
                    counts[WITHIN + k] += np.int64(0.5 + each * ahead_ms)
        counts[OVERDUE] = (overdue + 512) >> 10
        counts[LATER] = ((overdue + later) >> 10) - counts[OVERDUE]
        counts[NEXT_MS] = next_ms
        counts[OLDEST_MS] = oldest_ms
        for k in range(len(within_ms)):
            counts[WITHIN + k] = min(counts[LATER], (counts[WITHIN + k] + 512) >> 10)
