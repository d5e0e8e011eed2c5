"""Runs of indexes behave as the sets of indexes that they stand for."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timerstore.ground.ranges import Ranges, behind, merged

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda r: (r[0], r[0] + r[1]))
)


def indexes(ranges: Ranges) -> set[int]:
    return {i for start, stop in ranges for i in range(start, stop)}


@given(ranges=RANGES, index=st.integers(0, 40))
def test_as_sets(ranges: Ranges, index: int) -> None:
    found = merged(ranges)
    assert indexes(found) == indexes(ranges)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    assert indexes(behind(found, index)) == {i for i in indexes(ranges) if i > index}
