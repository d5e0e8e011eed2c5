"""The columns of a batch for Arrow, which looks at them where they lie."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.timelog.reading.pull import Columns

ID_BYTES_USUAL: Final = 64
"""Room for an id; ours have 32 digits, a producer's 32 or 56."""
BATCH_BYTES_MAX: Final = 1 << 30
"""Of messages in one batch: Arrow counts a column's bytes in 31 bits."""
_INT64: Final = pa.int64()
_BINARY: Final = pa.binary()
_STRING: Final = pa.string()


def arrow_bodies(columns: Columns, count: int) -> Any:
    """Return the first `count` bodies; no byte is copied."""
    return _arrow(_BINARY, count, columns.ends[0], columns.bodies)


def arrow_ids(columns: Columns, count: int) -> Any:
    """Return the first `count` ids; no byte is copied."""
    return _arrow(_STRING, count, columns.ends[1], columns.ids)


def arrow_int64(values: Any) -> Any:
    """Return numbers; `pa.array` would import pandas. No byte is copied of int64[n]."""
    return pa.Array.from_buffers(
        _INT64, len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))]
    )


def _arrow(kind: Any, count: int, ends: Any, data: Any) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
