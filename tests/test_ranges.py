"""Runs of indexes behave as the sets of indexes that they stand for."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timerstore.core.offsets import Ranges, merged

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda r: (r[0], r[0] + r[1]))
)


def indexes(ranges: Ranges) -> set[int]:
    return {i for start, stop in ranges for i in range(start, stop)}


@given(ranges=RANGES)
def test_as_sets(ranges: Ranges) -> None:
    found = merged(ranges)
    assert indexes(found) == indexes(ranges)
    assert all(one[1] < other[0] for one, other in pairwise(found))
