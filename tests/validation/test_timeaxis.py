"""Time in buckets: each time lies in one of them, of which there are never too many to be seen."""

import doctest
import types
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.validation import timeaxis, words
from timerstore.validation.timeaxis import BUCKETS, DAY_MS, LAST_MS, TICKS_MAX, bucket_for, ticks

TIMES = st.integers(0, LAST_MS)


@pytest.mark.parametrize("module", [timeaxis, words])
def test_examples(module: types.ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


@given(st.sampled_from(BUCKETS), TIMES)
def test_a_bucket_holds_its_time(step: timeaxis.Step, ms: int) -> None:
    begin = step.floor(ms)
    assert begin <= ms < step.after(begin)
    assert step.floor(begin) == begin
    assert step.after(step.after(begin, -3), 3) == begin


@given(TIMES, TIMES)
def test_there_are_never_too_many(a: int, b: int) -> None:
    first, last = sorted((a, b))
    step = bucket_for(first, last)
    assert 1 <= len([*step.begins(first, last)]) <= timeaxis.BUCKETS_MAX + 2
    places, labels = ticks(first, last)
    assert len(places) == len(labels) <= TICKS_MAX + 1
    assert all(first <= ms <= last for ms in places)


@given(TIMES)
def test_weeks_begin_on_monday_and_months_on_the_first(ms: int) -> None:
    week = timeaxis.Step("week", 7 * DAY_MS).floor(max(ms, 7 * DAY_MS))
    assert datetime.fromtimestamp(week / 1000, UTC).weekday() == 0
    month = timeaxis.Step("month", 30 * DAY_MS, 1).floor(ms)
    assert datetime.fromtimestamp(month / 1000, UTC).strftime("%d %H:%M:%S") == "01 00:00:00"
