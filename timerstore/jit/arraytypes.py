"""The arrays that kernels take, as annotations name them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

READ_ONLY: Final = "an array that may not be written"
TWO_AXES: Final = "an array of rows"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def read_only(array: Bytes) -> Bytes:
    """Return a view that may not be written: another type to Numba, the one that kernels take."""
    view = array.view()
    view.flags.writeable = False
    return view
