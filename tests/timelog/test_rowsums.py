"""Rows that are added up are what the lists of the twin are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive_rowsums as naive
from timerstore.timelog.reading.rowsums import summed

NUMBERS = st.integers(-3, 3) | st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 31, -(1 << 31)])


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(-5, 5), st.integers(0, 5))), st.integers(1, 2)
)
def test_summed_as_the_twin(rows: list[tuple[int, ...]], key_count: int) -> None:
    rows = [(*row[:key_count], *row[2:]) for row in rows]
    table = np.array(rows, np.int64).reshape(-1, key_count + 2)
    found = [tuple(row) for row in summed(table, key_count).tolist()]
    assert found == naive.summed(rows, key_count)


def test_columns_of_another_order_are_read_as_they_are() -> None:
    rows = np.arange(12).reshape(3, 4)[:, ::-2]
    assert summed(rows, 1).tolist() == [[3, 1], [7, 5], [11, 9]]
