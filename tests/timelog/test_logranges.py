"""Ranges of a log, beside a look at each of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.reading.pastdamage import LogRanges

EDGES = st.lists(st.integers(-5, 60), unique=True, max_size=12).map(sorted)


@given(edges=EDGES, order=st.randoms(use_true_random=False))
def test_offsets_inside(edges: list[int], order: object) -> None:
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    ranges = LogRanges()
    for start, stop in sorted(pairs, key=lambda _: order.random()):  # type: ignore[attr-defined]
        ranges.add(start, stop)
    assert list(ranges) == pairs and len(ranges) == len(pairs)
    offsets = np.arange(-7, 63)
    expected = [any(start <= at < stop for start, stop in pairs) for at in offsets.tolist()]
    assert ranges.contains(offsets).tolist() == expected
    assert [at in ranges for at in offsets.tolist()] == expected
