"""Placement against the slow twin, then what must hold of every place."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.kernels import kernel
from timerstore.timelog.bytes.format import ENTRY_BYTES, UNIT_BYTES
from timerstore.wheel.timerwheel import Settings, may_have_rolled, place, place_all, ring_top

# Of 100 bytes under the topic "reminders": what a put and a fire append to the commit log.
MESSAGE_BYTES, FIRED_BYTES = 331, 385


@kernel
def _place(settings: Settings, base: int, passed: int, out_ms: int, out: Any) -> None:
    out[2] = ring_top(settings, passed)
    out[0], out[1] = place(settings, base, passed, out_ms)


@st.composite
def wheels(draw: st.DrawFn) -> naive.Wheel:
    """Any sizes that a configuration allows."""
    slot_count = draw(st.sampled_from([64, 128, 640, 604_800]))
    window = draw(st.integers(2, min(slot_count - 1, 604_740)) | st.sampled_from([2, 3, 20]))
    read = draw(st.integers(0, 10**9))
    precision_ms = draw(st.sampled_from([100, 200, 500, 1000]))
    claimed = read + draw(st.integers(0, 8))
    return naive.Wheel(precision_ms, slot_count, window, read, claimed)


@st.composite
def cases(draw: st.DrawFn) -> tuple[naive.Wheel, int, int]:
    """A wheel, a due time around anything that matters, and a clock that may be anywhere."""
    wheel = draw(wheels())
    clock = wheel.read + draw(st.integers(-50, 50) | st.integers(-(10**6), 10**6))
    base = max(clock, wheel.read)
    edges = [wheel.read, base + wheel.roll_window, wheel.top, wheel.top + wheel.hop]
    slot = draw(st.sampled_from(edges)) + draw(
        st.integers(-3, 3) | st.integers(-3000, 3000) | st.integers(0, 10**10)
    )
    slot = max(slot, 0)
    within = draw(st.integers(0, wheel.precision_ms - 1))
    return wheel, slot * wheel.precision_ms + within, max(0, clock) * wheel.precision_ms + within


def settings_of(wheel: naive.Wheel) -> Settings:
    return Settings(wheel.precision_ms, wheel.slot_count, wheel.roll_window, wheel.hop)


def base_of(wheel: naive.Wheel, now_ms: int) -> int:
    return max(now_ms // wheel.precision_ms, wheel.read, wheel.claimed - 1)


def placed(wheel: naive.Wheel, out_ms: int, now_ms: int) -> tuple[int, int]:
    out = np.zeros(3, np.int64)
    base = base_of(wheel, now_ms)
    _place(settings_of(wheel), base, wheel.read, out_ms, out)
    assert out[2] == wheel.top
    return int(out[0]), int(out[1])


@given(case=cases())
def test_a_place(case: tuple[naive.Wheel, int, int]) -> None:
    wheel, out_ms, now_ms = case
    slot, hops = placed(wheel, out_ms, now_ms)
    expected = naive.place(out_ms, now_ms, wheel)
    assert slot == expected.slot
    assert (hops > 0) == expected.is_roll
    if hops:
        assert out_ms - hops * wheel.hop * wheel.precision_ms == expected.time_ms


@given(case=cases())
def test_what_holds_of_every_place(case: tuple[naive.Wheel, int, int]) -> None:
    wheel, out_ms, now_ms = case
    slot, hops = placed(wheel, out_ms, now_ms)
    own = out_ms // wheel.precision_ms
    base = base_of(wheel, now_ms)
    assert wheel.read <= slot < wheel.read + 2 * wheel.slot_count  # none is needed twice
    if hops == 0:
        assert slot == max(own, wheel.read)
    else:
        # On the timer's own grid, in one of the slots where an id looks for it.
        assert slot == own - hops * wheel.hop
        if own - slot < 100 * wheel.hop:
            assert slot in naive.grid_slots(own, wheel, wheel.read)
        # The smallest k: one hop less would lie too far ahead.
        assert slot + wheel.hop >= min(base + wheel.roll_window, wheel.top)
    if base + wheel.roll_window <= wheel.top:
        assert slot < base + wheel.roll_window
        if hops:
            # A hop leads ahead, to what is not claimed.
            assert 1 <= slot - base < wheel.roll_window
            assert slot >= wheel.claimed


@given(wheel=wheels(), days=st.integers(0, 10_000))
def test_a_timer_arrives_hop_by_hop(wheel: naive.Wheel, days: int) -> None:
    """Each roll, placed again when its slot begins, comes nearer."""
    wheel = wheel._replace(claimed=0)
    own = wheel.read + min(days * 86_400, 400 * wheel.hop)
    out_ms = own * wheel.precision_ms
    rolls = 0
    while True:
        slot, hops = placed(wheel, out_ms, wheel.read * wheel.precision_ms)
        if hops == 0:
            assert slot == own
            break
        assert slot > wheel.read
        assert own - slot >= wheel.hop
        wheel = wheel._replace(read=slot)
        rolls += 1
        assert rolls <= 400 * 3


@pytest.mark.parametrize(
    ("days", "window", "units", "times"),
    [
        (60, 172_800, 31, 5.88),
        (60, 604_740, 9, 3.04),
        (3_650, 172_800, 1_826, 237.5),
        (3_650, 604_740, 522, 69.2),
        (1, 172_800, 1, 2.0),
    ],
)
def test_what_a_life_writes(days: int, window: int, units: int, times: float) -> None:
    """In bytes, as a multiple of what its put writes: a hop is a unit alone."""
    wheel = naive.Wheel(1_000, 604_800, window, read=1_000)
    due_ms, found = 1_000 * (1_000 + days * 86_400), 1
    while (place := placed(wheel, due_ms, 1_000 * wheel.read))[1]:
        wheel, found = wheel._replace(read=place[0]), found + 1
    assert found == units
    put = MESSAGE_BYTES + ENTRY_BYTES + UNIT_BYTES
    all_bytes = put + (units - 1) * UNIT_BYTES + FIRED_BYTES + ENTRY_BYTES
    assert all_bytes / put == pytest.approx(times, rel=0.01)


@given(case=cases())
def test_what_rolled_lay_far_ahead(case: tuple[naive.Wheel, int, int]) -> None:
    """Where the read cursor stands at the clock, as it does but for a while after a stop."""
    wheel, out_ms, now_ms = case
    far = bool(may_have_rolled(settings_of(wheel), out_ms, now_ms))
    assert far == naive.may_have_rolled(out_ms, now_ms, wheel)
    put_ms = wheel.read * wheel.precision_ms
    _, hops = placed(wheel, out_ms, put_ms)
    assert not hops or may_have_rolled(settings_of(wheel), out_ms, put_ms)


@given(wheel=wheels(), after_ms=st.lists(st.integers(0, 10**9), max_size=5))
def test_many_are_placed_as_each_is(wheel: naive.Wheel, after_ms: list[int]) -> None:
    now_ms, base = wheel.read * wheel.precision_ms, max(wheel.read, wheel.claimed - 1)
    due_ms, slots = now_ms + np.array(after_ms, np.int64), np.zeros(len(after_ms), np.int64)
    place_all(settings_of(wheel), base, wheel.read, due_ms, slots)
    each = [placed(wheel, due, now_ms)[0] for due in due_ms.tolist()]
    assert slots.tolist() == each
