"""When a reader waits for more, by a clock of the test's own."""

from hypothesis import given
from hypothesis import strategies as st

from timerstore.calls.consuming.ready import FAST_PER_S, WAIT_S_MAX, Pace

ELAPSED = st.floats(1e-6, 10)


@given(elapsed_s=ELAPSED, share=st.floats(0, 0.99))
def test_slow_streams_are_never_waited_for(elapsed_s: float, share: float) -> None:
    pace, count = Pace(), int(FAST_PER_S * elapsed_s * share)
    pace.took(1, 1 << 30, 100.0)
    pace.took(count, 1 << 30, 100.0 + elapsed_s)
    assert pace.wait_s(1 << 30, 100.0 + elapsed_s) == 0


@given(count=st.integers(1, 1 << 16), elapsed_s=st.floats(0, 10))
def test_who_got_all_that_was_asked_for_goes_on(count: int, elapsed_s: float) -> None:
    pace = Pace()
    pace.took(1, 2, 100.0)
    pace.took(count, count, 100.0 + elapsed_s)
    assert pace.wait_s(count, 100.0 + elapsed_s) == 0


@given(elapsed_s=ELAPSED, times=st.floats(1.01, 50), later_s=st.floats(0, 0.003))
def test_waits_are_bounded(elapsed_s: float, times: float, later_s: float) -> None:
    pace = Pace()
    pace.took(1, 2, 100.0)
    pace.took(int(FAST_PER_S * elapsed_s * times) + 1, 1 << 30, 100.0 + elapsed_s)
    wait_s = pace.wait_s(1 << 30, 100.0 + elapsed_s + later_s)
    assert wait_s == 0 or abs(wait_s - (WAIT_S_MAX - later_s)) < 1e-8
    assert wait_s > 0 or later_s > WAIT_S_MAX - 0.0003


def test_few_are_waited_for_only_until_they_are_likely_there() -> None:
    pace = Pace()
    pace.took(1, 2, 100.0)
    pace.took(1_000, 16_384, 100.001)
    assert abs(pace.wait_s(16_384, 100.001) - WAIT_S_MAX) < 1e-9
    assert abs(pace.wait_s(500, 100.001) - 0.0005) < 1e-9
    assert pace.wait_s(500, 100.0014) == 0
