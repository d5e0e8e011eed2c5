"""How timers are spread: figures beside what they are defined as."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.validation.spread import Spread, count_lateness, gini, quantiles
from timerstore.validation.timeaxis import HOUR_MS, MINUTE_MS


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_gini_is_the_mean_difference(loads: list[int]) -> None:
    if not sum(loads):
        assert gini(Counter(loads)) == 0
        return
    pairs = [abs(a - b) for a in loads for b in loads]
    mean = sum(loads) / len(loads)
    expected = sum(pairs) / (2 * len(loads) ** 2 * mean)
    assert gini(Counter(loads)) == pytest.approx(expected)


@given(st.lists(st.integers(-3, 10**7), max_size=60))
def test_lateness_is_exact_or_nearly(late_ms: list[int]) -> None:
    counter: Counter[int] = Counter()
    count_lateness(counter, np.array(late_ms, np.int64))
    told = sorted(counter.elements())
    for value, exact in zip(told, sorted(max(0, each) for each in late_ms), strict=True):
        assert value == exact if exact < 1_024 else exact * 0.998 <= value <= exact


@given(st.lists(st.integers(0, 99), min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantiles_are_values(values: list[int], part: float) -> None:
    (found,) = quantiles(Counter(values), (part,))
    ordered = sorted(values)
    assert found == ordered[max(1, int(np.ceil(part * len(values)))) - 1]


def test_the_next_hour() -> None:
    begin = 1_800_000_000_000
    minutes = {begin - HOUR_MS: 5, begin: 60, begin + 10 * MINUTE_MS: 600, begin + HOUR_MS: 7_000}
    spread = Spread(
        from_ms=begin + 20_000,
        pending_count=7_665,
        rolled_count=0,
        roll_unit_count=0,
        topics={"a": 7_665},
        hours={"a": {begin: 660}, "b": {begin: 5, begin + 24 * HOUR_MS: 1}},
        minutes=minutes,
        slot_count=2,
        slot_max=30,
        slot_mean=10.0,
        slot_gini=0.2,
        heaviest=((begin, 30),),
        fired_count=0,
        lateness={},
        fire_rate_per_s=100.0,
    )
    assert spread.next_hour["overdue"] == 5
    assert spread.next_hour["timers"] == 665 + 7_000  # the last minute has begun within the hour
    assert spread.next_hour["peak_minute"] == 7_000
    assert spread.next_hour["peak_share"] == pytest.approx(7_000 / 60 / 100)
    assert spread.skew == 3
    day = begin // (24 * HOUR_MS) * 24 * HOUR_MS
    assert spread.days == {day: 665, day + 24 * HOUR_MS: 1}
    assert spread.to_dict()["lateness_ms"]["max"] == 0
