"""Columns of a batch: side by side, no two on the same bytes, as Arrow reads them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.calls.consuming.delivery import arrow_bodies, arrow_ids
from timerstore.calls.consuming.groupreader import LentBlocks
from timerstore.timelog.reading.pull import (
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
    block = LentBlocks().lend(columns_bytes(count, len(ids), len(bodies)))
    columns = Columns(block, count, len(ids))
    columns.numbers[:] = np.arange(RUN_COLUMNS * count).reshape(RUN_COLUMNS, count)
    columns.verdicts[:] = 255
    columns.ends[:] = 0
    for i, (body, id) in enumerate(rows):
        columns.ends[0, i + 1] = columns.ends[0, i] + len(body)
        columns.ends[1, i + 1] = columns.ends[1, i] + len(id)
    columns.ids[:] = list(ids)
    columns.bodies[: len(bodies)] = list(bodies)
    numbers = columns.numbers.tolist()
    assert numbers == [list(range(i * count, (i + 1) * count)) for i in range(RUN_COLUMNS)]
    due, fired = (numbers[row][: len(rows)] for row in (RUN_DUE_MS, RUN_FIRED_MS))
    assert columns.pieces(len(rows)) == ([body for body, _ in rows], due, fired)
    assert arrow_bodies(columns, len(rows)).to_pylist() == [body for body, _ in rows]
    assert arrow_ids(columns, len(rows)).to_pylist() == [id for _, id in rows]
    assert (columns.verdicts == 255).all() and len(columns.verdicts) == count


def test_none() -> None:
    columns = Columns(LentBlocks().lend(columns_bytes(0, 0, 0)), 0, 0)
    columns.ends[:] = 0
    assert len(arrow_bodies(columns, 0)) == len(arrow_ids(columns, 0)) == 0
    assert columns.pieces(0) == ([], [], [])
