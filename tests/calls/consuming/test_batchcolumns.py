"""Columns of a batch: side by side, no two on the same bytes, as Arrow reads them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.calls.consuming.pull import (
    RUN_COLUMNS,
    RUN_DUE_MS,
    RUN_FIRED_MS,
    Columns,
    columns_bytes,
)

TEXTS = st.lists(st.tuples(st.binary(max_size=9), st.text("0123ABC", max_size=9)), max_size=9)


@given(rows=TEXTS, more=st.integers(0, 3))
def test_columns(rows: list[tuple[bytes, str]], more: int) -> None:
    count = len(rows) + more
    bodies = b"".join(body for body, _ in rows)
    ids = "".join(id for _, id in rows).encode()
    block = np.empty(columns_bytes(count, len(ids), len(bodies)), np.uint8)
    columns = Columns(block, count, len(ids))
    columns.numbers[:] = np.arange(RUN_COLUMNS * count).reshape(RUN_COLUMNS, count)
    columns.verdicts[:] = 255
    ends = np.ndarray((2, count + 1), np.int32, block, columns.ends_at)
    ends[:] = 0
    for i, (body, id) in enumerate(rows):
        ends[0, i + 1] = ends[0, i] + len(body)
        ends[1, i + 1] = ends[1, i] + len(id)
    block[columns.ids_at : columns.bodies_at] = list(ids)
    block[columns.bodies_at :][: len(bodies)] = list(bodies)
    numbers = columns.numbers.tolist()
    assert numbers == [list(range(i * count, (i + 1) * count)) for i in range(RUN_COLUMNS)]
    due, fired = (numbers[row][: len(rows)] for row in (RUN_DUE_MS, RUN_FIRED_MS))
    assert columns.pieces(len(rows)) == ([body for body, _ in rows], due, fired)
    assert columns.arrow_bodies(len(rows)).to_pylist() == [body for body, _ in rows]
    assert columns.arrow_ids(len(rows)).to_pylist() == [id for _, id in rows]
    assert (columns.verdicts == 255).all() and len(columns.verdicts) == count


def test_none() -> None:
    columns = Columns(np.empty(columns_bytes(0, 0, 0), np.uint8), 0, 0)
    columns.block[:] = 0
    assert len(columns.arrow_bodies(0)) == len(columns.arrow_ids(0)) == 0
    assert columns.pieces(0) == ([], [], [])
