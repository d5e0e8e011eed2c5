"""Tallies: response times in buckets, rates over a minute."""

from hypothesis import given
from hypothesis import strategies as st

from timerstore.calls.consuming.grouptally import (
    RATE_S,
    RESPONSE_BOUNDS_MS,
    GroupTally,
    response_quantile_ms,
)

TIMES = st.lists(st.integers(0, 2_000_000_000).map(lambda us: us / 1000), min_size=1, max_size=60)


@given(TIMES, st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(times: list[float], share: float) -> None:
    tally = GroupTally()
    for elapsed_ms in times:
        tally.respond(0, elapsed_ms, 1)
    found = tally.response()
    true_ms = sorted(times)[max(0, -(-len(times) * share // 1).__int__() - 1)]
    bounds = (0, *RESPONSE_BOUNDS_MS, float("inf"))
    bucket = next(i for i in range(1, len(bounds)) if true_ms <= bounds[i])
    estimate = response_quantile_ms(found.bucket_counts, share, found.max_ms)
    assert bounds[bucket - 1] <= estimate <= min(bounds[bucket], found.max_ms)
    assert found.count == sum(found.bucket_counts) == len(times)
    assert found.max_ms == max(times) and abs(found.sum_ms - sum(times)) < 1e-3


def test_nothing_took_no_time() -> None:
    found = GroupTally().response()
    assert (found.count, found.p50_ms, found.p99_ms, found.max_ms) == (0, 0, 0, 0)


def test_a_call_counts_for_each_of_its_messages() -> None:
    tally = GroupTally()
    tally.respond(5_000, 10, 3, 1)
    assert tally.response().count == 4 and tally.response().sum_ms == 40


def test_rates_are_of_the_last_minute() -> None:
    tally = GroupTally()
    for second in range(120):
        tally.respond(1000 * second, 1, 2, 1)
        tally.respond(1000 * second + 999, 1, 1)
    assert tally.per_s(119_999) == (3, 1)
    assert tally.per_s(119_999 + 30_000) == (1.5, 0.5)
    assert tally.per_s(119_999 + 1_000 * RATE_S) == (0, 0)
