"""Counts of a topic's timers against lists of them."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from tests.naive_tally import MAXIMA, NaiveTally, bucket_of, histogram
from timerstore.timelog.writing.tally import (
    CANCELLED_COUNT,
    DELAY_REST_MS,
    DELAY_SUM_S,
    DELAYS,
    FIRED_COUNT,
    HISTOGRAM_BUCKETS,
    LATENESS_MAX_MS,
    LATENESS_SUM_MS,
    LATENESSES,
    LATER,
    NEVER_MS,
    NEXT_MS,
    OLDEST_MS,
    OVERDUE,
    PENDING_BYTES,
    PUT_COUNT,
    TALLY_WORDS,
    WITHIN,
    Counted,
    bucket_max,
    count_change,
    count_pending,
    histogram_bucket,
    new_tally,
    ring_of,
    sum_ahead,
)

START_MS = 1_800_000_000_000
YEAR_MS = 365 * 86_400_000
ROW = 2
DELAYS_MS = st.one_of(
    st.integers(-200_000, 2_000),
    st.integers(0, 600_000),
    st.integers(0, 40 * YEAR_MS),
    st.integers(0, 47).map(lambda bits: (1 << bits) - 1),
)


@kernel
def _change(
    tally: Any, row: int, change: int, is_delete: bool, due: int, born: int, size: int, now: int
) -> None:
    count_change(tally, row, change, is_delete, Counted(due, born, size), now)


@kernel
def _pending(tally: Any, row: int, due: int, born: int, size: int, now: int) -> None:
    count_pending(tally, row, Counted(due, born, size), now)


@kernel
def _histogram_bucket(value: int) -> int:
    return histogram_bucket(value)


@kernel
def _ring_of(due_ms: int, born_ms: int) -> int:
    return ring_of(due_ms, born_ms)


@given(value=st.integers(-5, 1 << 50) | st.integers(0, 99))
def test_buckets_of_a_histogram(value: int) -> None:
    bucket = _histogram_bucket(value)
    assert 0 <= bucket < HISTOGRAM_BUCKETS
    assert value <= bucket_max(bucket) or bucket == HISTOGRAM_BUCKETS - 1
    assert bucket == 0 or value > bucket_max(bucket - 1)
    assert [bucket_max(each) for each in range(HISTOGRAM_BUCKETS)] == MAXIMA


@given(born=st.integers(0, START_MS), delay=DELAYS_MS)
def test_a_bucket_is_no_longer_than_a_56th_of_the_delay(born: int, delay: int) -> None:
    span, ring = bucket_of(born + delay, born), _ring_of(born + delay, born)
    assert (span is None) == (ring == 8)
    if span is not None:
        length = span[1] - span[0]
        assert length == 1_024 << 3 * ring and (ring == 0 or 56 * length <= delay)


def summed(tally: Any, now_ms: int, fired_ms: int, within_ms: list[int]) -> Any:
    sums = np.zeros((1, WITHIN + len(within_ms)), np.int64)
    sum_ahead(tally, np.array([ROW]), now_ms, fired_ms, np.array(within_ms, np.int64), sums)
    return sums[0].tolist()


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "fire", "cancel", "found"]),
            DELAYS_MS,
            st.integers(0, 9),
            st.integers(0, 5_000) | st.integers(-99_999, 99_999) | st.integers(0, 2 * YEAR_MS),
        ),
        max_size=40,
    ),
    within_ms=st.lists(st.integers(1, 100 * YEAR_MS) | st.integers(1, 9_999), max_size=4),
)
def test_counts(steps: Any, within_ms: list[int]) -> None:
    """Whatever passes between put and fire, each is counted off where it was counted."""
    tally, twin = new_tally(4), NaiveTally()
    now_ms = highest_ms = START_MS
    for what, delay, which, passes in steps:
        now_ms += passes
        highest_ms = max(highest_ms, now_ms)  # as the stored time, it never falls
        if what in ("put", "found"):
            timer = (highest_ms + delay, highest_ms - which, which)
            if what == "put":
                _change(tally, ROW, 1, False, *timer, highest_ms)
                twin.put(timer, highest_ms)
            else:
                _pending(tally, ROW, *timer, highest_ms)
                twin.pending.append(timer)
        elif twin.pending:
            timer = twin.pending[which % len(twin.pending)]
            _change(tally, ROW, -1, what == "cancel", *timer, highest_ms)
            if what == "cancel":
                twin.cancel(timer)
            else:
                twin.fire(timer, highest_ms)
        check(tally, twin, highest_ms, within_ms)
    assert not tally.words[: ROW * TALLY_WORDS].any()
    assert not tally.words[(ROW + 1) * TALLY_WORDS :].any()


def check(tally: Any, twin: NaiveTally, now_ms: int, within_ms: list[int]) -> None:
    words = tally.words[ROW * TALLY_WORDS :][:TALLY_WORDS].tolist()
    assert words[PUT_COUNT] == len(twin.delays_ms)
    assert words[FIRED_COUNT] == len(twin.lateness_ms)
    assert words[CANCELLED_COUNT] == twin.cancelled_count
    assert words[PENDING_BYTES] == sum(size for _, _, size in twin.pending)
    assert 1_000 * words[DELAY_SUM_S] + words[DELAY_REST_MS] == sum(twin.delays_ms)
    assert words[LATENESS_SUM_MS] == sum(twin.lateness_ms)
    assert words[LATENESS_MAX_MS] == max(twin.lateness_ms, default=0)
    for first, values in ((DELAYS, twin.delays_ms), (LATENESSES, twin.lateness_ms)):
        counts = words[first : first + HISTOGRAM_BUCKETS]
        assert {MAXIMA[i]: n for i, n in enumerate(counts) if n} == histogram(values)
    found = summed(tally, now_ms, now_ms, within_ms)
    spans = [bucket_of(due, born) or (1 << 61, 1 << 61) for due, born, _ in twin.pending]
    assert found[OVERDUE] == sum(stop <= now_ms for _, stop in spans)
    assert found[OVERDUE] + found[LATER] == len(spans)
    for each, count in zip(within_ms, found[WITHIN:], strict=True):
        surely, perhaps = twin.within(now_ms, each)
        assert surely <= count <= perhaps
    ahead = [max(start, now_ms) for start, stop in spans if stop > now_ms and start < 1 << 61]
    assert found[NEXT_MS] == min(ahead, default=NEVER_MS)
    dues = [due for due, _, _ in twin.pending]
    passed = [due for due, (_, stop) in zip(dues, spans, strict=True) if stop <= now_ms]
    assert (found[OLDEST_MS] == NEVER_MS) == (not passed)
    # Of what passed long ago, no less than the oldest; which of them that was is not known.
    assert found[OLDEST_MS] <= min(passed, default=NEVER_MS)


def test_what_a_share_is() -> None:
    """A day ahead a bucket is 524 s long: of ten timers in it, five are due by its midst."""
    tally, day_ms = new_tally(4), 86_400_000
    length_ms = 1_024 << 9
    start_ms = (START_MS + day_ms) // length_ms * length_ms
    for i in range(10):
        _change(tally, ROW, 1, False, start_ms + i, START_MS, 1, START_MS)
    half_ms = start_ms + length_ms // 2
    assert summed(tally, START_MS, START_MS, [half_ms - START_MS])[WITHIN:] == [5]
    found = summed(tally, half_ms, half_ms, [length_ms])
    assert (found[OVERDUE], found[LATER], found[WITHIN], found[NEXT_MS]) == (0, 10, 10, half_ms)
    found = summed(tally, half_ms, start_ms, [length_ms])  # nothing of it was fired
    assert (found[OVERDUE], found[LATER], found[OLDEST_MS]) == (5, 5, start_ms)
