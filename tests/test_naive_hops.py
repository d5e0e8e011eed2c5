"""The hop schedule: how few hops a far timer takes. What a life writes follows from that."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive_hops import Life, Now, Window, next_slot, schedule

DAY = 86_400
SLOTS = 604_800
TWO_DAYS = Window(2 * DAY, SLOTS)
SEVEN_DAYS = Window(SLOTS - 60, SLOTS)
# Of 100 bytes under the topic "reminders": what a put and a fire append to the commit log.
MESSAGE_BYTES, FIRED_BYTES = 331, 385

windows = st.builds(
    lambda window, blank: Window(window, window + blank), st.integers(2, 40), st.integers(0, 60)
)


@given(windows, st.integers(0, 1000), st.integers(0, 1000), st.lists(st.integers(0, 60)))
def test_each_hop_leads_ahead_and_the_last_one_ends_at_the_due_slot(
    window: Window, put: int, ahead: int, late: list[int]
) -> None:
    due = put + ahead
    slots = schedule(due, put, window, iter(late + [0] * 1000))
    assert slots[-1] == due
    assert all(first < second for first, second in pairwise(slots))
    assert all((due - slot) % window.hop == 0 for slot in slots)


@given(windows, st.integers(0, 1000), st.integers(0, 1000))
def test_no_unit_waits_beyond_the_window(window: Window, put: int, ahead: int) -> None:
    slots = schedule(put + ahead, put, window)
    for base, slot in pairwise([put, *slots]):
        assert base <= slot < base + window.roll_window


@given(windows, st.integers(0, 1000), st.integers(1, 1000))
def test_nothing_takes_fewer_hops_within_the_window(window: Window, put: int, ahead: int) -> None:
    furthest = window.roll_window - 1  # ahead, that a unit may wait
    assert len(schedule(put + ahead, put, window)) == -(-ahead // furthest)


@given(windows, st.integers(0, 1000), st.integers(1, 1000), st.lists(st.integers(0, 60)))
def test_who_is_late_takes_no_more_hops(
    window: Window, put: int, ahead: int, late: list[int]
) -> None:
    due = put + ahead
    slots = schedule(due, put, window, iter(late + [0] * 1000))
    assert len(slots) <= len(schedule(due, put, window))


@given(
    windows,
    st.integers(0, 100),
    st.integers(0, 300),
    st.integers(0, 400),
    st.integers(0, 1000),
)
def test_a_hop_leads_ahead_within_the_ring_whatever_the_clock_does(
    window: Window, read: int, claimed: int, clock: int, ahead: int
) -> None:
    own = read + min(claimed, window.slot_count // 2)  # as far as slots are claimed
    due = own + 1 + ahead
    slot = next_slot(due, own, Now(clock, read), window)
    assert own < slot < read + 2 * window.slot_count
    assert slot <= due


@pytest.mark.parametrize(
    ("days", "window", "units", "times"),
    [
        (60, TWO_DAYS, 31, 5.88),
        (60, SEVEN_DAYS, 9, 3.04),
        (3_650, TWO_DAYS, 1_826, 237.5),
        (3_650, SEVEN_DAYS, 522, 69.2),
        (1, TWO_DAYS, 1, 2.0),
    ],
)
def test_what_a_life_writes(days: int, window: Window, units: int, times: float) -> None:
    slots = schedule(days * DAY + 1_000, 1_000, window)
    life = Life(MESSAGE_BYTES, FIRED_BYTES, len(slots))
    assert len(slots) == units
    assert life.times == pytest.approx(times, rel=0.01)
