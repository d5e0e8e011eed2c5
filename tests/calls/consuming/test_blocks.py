"""The block of the ready way: it is seen whether anything looks into it."""

from sys import getrefcount
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from timerstore.calls.consuming.groupreader import UNSHARED_REFERENCES

VIEWS = [
    lambda block: block,
    lambda block: block[3:5],
    lambda block: block[8:16].view(np.int64),
    lambda block: np.ndarray((2, 3), np.int64, block)[1],
    lambda block: pa.py_buffer(block[16:32]),
    lambda block: pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(block[:4])])[1:3],
    lambda block: memoryview(block)[4:6],
]


@pytest.mark.parametrize("look", VIEWS)
def test_what_somebody_looks_into_is_seen(look: Any) -> None:
    kept = [np.empty(1_000, np.uint8)]
    view = look(kept[0])
    shared = getrefcount(kept[0])
    del view
    alone = getrefcount(kept[0])
    assert shared != UNSHARED_REFERENCES
    assert not UNSHARED_REFERENCES or alone == UNSHARED_REFERENCES
