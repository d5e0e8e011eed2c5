"""Counts of timers by topic: what was put, fired, cancelled; what falls due when.

All of it is a function of the commit log, counted by `append` under its lock, a row for each queue.

Histograms of delay and lateness have two buckets for each doubling. When pending timers fall due
stands in eight *rings* of 512 buckets for each row. A bucket of the first is 1,024 ms long, one of
each further ring eight times as long. A timer's ring follows from how long before its due time it
was born, and every copy keeps both. So the code that takes the timer off finds the bucket again,
which is no longer than a 56th of that delay. A ring holds the last 62 buckets that have passed as
well: what is left in one that passed long ago is moved to OVERDUE_COUNT, before its place is used
again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import bit_length
from timerstore.jit.kernel import inlined, inlined_always, kernel_ahead
from timerstore.jit.mapping import lazy_zeros
from timerstore.jit.record import Int32s, Rows, Words, record

HISTOGRAM_BUCKETS: Final = 96
DUE_RING_COUNT: Final = 8
RING_BUCKETS: Final = 512
RING_AHEAD: Final = 448
"""Buckets of a ring that lie ahead of a timer's birth, at most."""
RING_PASSED: Final = RING_BUCKETS - RING_AHEAD - 2
RING_SHIFT: Final = 10
RING_STEP: Final = 3
AHEAD_BUCKETS: Final = DUE_RING_COUNT * RING_BUCKETS
TOO_FAR: Final = DUE_RING_COUNT
"""In the place of a ring: due more than thirty years after its birth."""

# Words of a row. Counters, which are kept over a restart, come first.
PUT_COUNT: Final = 0
FIRED_COUNT: Final = 1
CANCELLED_COUNT: Final = 2
LOST_COUNT: Final = 3  # their messages could not be read
DELAY_SUM_S: Final = 4  # whole seconds of each delay
DELAY_REST_MS: Final = 5  # and what they leave
LATENESS_SUM_MS: Final = 6
LATENESS_MAX_MS: Final = 7
DELAYS: Final = 8
LATENESSES: Final = DELAYS + HISTOGRAM_BUCKETS
COUNTERS: Final = LATENESSES + HISTOGRAM_BUCKETS
PENDING_BYTES: Final = COUNTERS  # bodies of what is pending
OVERDUE_COUNT: Final = COUNTERS + 1  # pending, of buckets that passed long ago
OVERDUE_FROM_MS: Final = COUNTERS + 2  # none of these is due before it
FAR_COUNT: Final = COUNTERS + 3  # pending, TOO_FAR
KEPT_FROM: Final = COUNTERS + 4  # for each ring: buckets before it were moved
TALLY_WORDS: Final = 256
assert KEPT_FROM + DUE_RING_COUNT <= TALLY_WORDS


class Counted(NamedTuple):
    """What is counted of a timer."""

    due_ms: int
    born_ms: int
    body_bytes: int


@record
class Tally:
    """The counts of all rows. Written under the append lock."""

    words: Words  # int64[rows * TALLY_WORDS], see the constants above
    ahead: Int32s  # int32[rows * AHEAD_BUCKETS]: pending timers by ring and bucket


def new_tally(row_count: int) -> Tally:
    """Return counts of nothing; memory is taken only for rows, and rings, that are used."""
    return Tally(
        lazy_zeros(row_count * TALLY_WORDS, np.int64),
        lazy_zeros(row_count * AHEAD_BUCKETS, np.int32),
    )


@inlined
def histogram_bucket(value: int) -> int:
    """Return a histogram's bucket of a value, see `bucket_max`. O(1)."""
    if value <= 0:
        return 0
    below = value - 1
    if below < 2:
        return 1 + below
    exponent = bit_length(below) - 1
    return min(HISTOGRAM_BUCKETS - 1, 1 + 2 * exponent + (below >> (exponent - 1) & 1))


def bucket_max(bucket: int) -> int:
    """Return the largest value of a histogram's bucket: 0, 1, 2, 3, 4, 6, 8, 12, 16 and so on."""
    exponent, half = divmod(bucket - 1, 2)
    return bucket if bucket < 4 else (3 if half == 0 else 4) << (exponent - 1)


@inlined
def ring_of(due_ms: int, born_ms: int) -> int:
    """Return the ring that a timer is counted in, or TOO_FAR."""
    ring, steps = 0, (due_ms - born_ms) >> RING_SHIFT
    while steps >= RING_AHEAD and ring < TOO_FAR:
        steps >>= RING_STEP
        ring += 1
    return ring


@inlined
def _move_passed(tally: Tally, row: int, ring: int, first: int) -> None:
    """Move what is left of a ring's buckets before `first` to the overdue; O(buckets passed)."""
    at = row * TALLY_WORDS
    kept, shift = tally.words[at + KEPT_FROM + ring], RING_SHIFT + RING_STEP * ring
    buckets = row * AHEAD_BUCKETS + ring * RING_BUCKETS
    for number in range(kept, min(first, kept + RING_BUCKETS)):
        place = buckets + (number & (RING_BUCKETS - 1))
        left = tally.ahead[place]
        if left > 0:
            _add_overdue(tally, at, number << shift, left)
            tally.ahead[place] = 0
    tally.words[at + KEPT_FROM + ring] = first


@inlined
def _add_overdue(tally: Tally, at: int, due_ms: int, count: int) -> None:
    words = tally.words
    if words[at + OVERDUE_COUNT] == 0 or due_ms < words[at + OVERDUE_FROM_MS]:
        words[at + OVERDUE_FROM_MS] = due_ms
    words[at + OVERDUE_COUNT] += count


@inlined
def count_ahead(tally: Tally, row: int, timer: Counted, change: int, now_ms: int) -> None:
    """Count a timer among those that are pending, or take it off; `change`: 1 or −1. O(1)."""
    at, words, due_ms = row * TALLY_WORDS, tally.words, timer.due_ms
    ring = ring_of(due_ms, timer.born_ms)
    if ring == TOO_FAR:
        words[at + FAR_COUNT] = max(0, words[at + FAR_COUNT] + change)
        return
    shift = RING_SHIFT + RING_STEP * ring
    number, first = due_ms >> shift, (now_ms >> shift) - RING_PASSED
    if first > words[at + KEPT_FROM + ring]:
        _move_passed(tally, row, ring, first)
    if number >= words[at + KEPT_FROM + ring]:
        place = row * AHEAD_BUCKETS + ring * RING_BUCKETS + (number & (RING_BUCKETS - 1))
        tally.ahead[place] = max(0, tally.ahead[place] + change)
    elif change > 0:
        _add_overdue(tally, at, due_ms, change)
    else:
        words[at + OVERDUE_COUNT] = max(0, words[at + OVERDUE_COUNT] + change)


@inlined
def count_put(tally: Tally, row: int, delay_ms: int) -> None:
    """Count a timer that is put, `delay_ms` before it is due."""
    at, words, delay_ms = row * TALLY_WORDS, tally.words, max(0, delay_ms)
    words[at + PUT_COUNT] += 1
    words[at + DELAY_SUM_S] += delay_ms // 1_000
    words[at + DELAY_REST_MS] += delay_ms % 1_000
    words[at + DELAYS + histogram_bucket(delay_ms)] += 1


@inlined
def count_fired(tally: Tally, row: int, late_ms: int) -> None:
    """Count a timer that is fired so late."""
    at, words, late_ms = row * TALLY_WORDS, tally.words, max(0, late_ms)
    words[at + FIRED_COUNT] += 1
    words[at + LATENESS_SUM_MS] += late_ms
    words[at + LATENESS_MAX_MS] = max(words[at + LATENESS_MAX_MS], late_ms)
    words[at + LATENESSES + histogram_bucket(late_ms)] += 1


@inlined
def count_pending(tally: Tally, row: int, timer: Counted, now_ms: int) -> None:
    """Count a timer that recovery found pending, which changes no counter. O(1)."""
    tally.words[row * TALLY_WORDS + PENDING_BYTES] += timer.body_bytes
    count_ahead(tally, row, timer, 1, now_ms)


@inlined_always
def count_change(
    tally: Tally, row: int, change: int, is_delete: bool, timer: Counted, stored_ms: int
) -> None:
    """Count what a message does to the timers of a row: put, fired, or cancelled. O(1)."""
    if change > 0:
        count_put(tally, row, timer.due_ms - stored_ms)
    elif change < 0 and is_delete:
        tally.words[row * TALLY_WORDS + CANCELLED_COUNT] += 1
    elif change < 0:
        count_fired(tally, row, stored_ms - timer.due_ms)
    if change != 0:
        tally.words[row * TALLY_WORDS + PENDING_BYTES] += change * timer.body_bytes
        count_ahead(tally, row, timer, change, stored_ms)


# --- How many pending timers fall due by when, summed over the tallies of some topics.

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
