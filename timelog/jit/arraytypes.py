"""The arrays that kernels take, as annotations name them."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np

from timerstore.timelog.jit.later import Announced

READ_ONLY: Final = "an array that may not be written"
TWO_AXES: Final = "an array of rows"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

T = TypeVar("T")

TUPLES: Final = Announced()
"""The NamedTuples whose types Numba takes from their annotations, see `signatures.py`."""


def known_tuple(cls: type[T]) -> type[T]:
    """Let Numba take a NamedTuple's type from its annotations, if the arrays in it are such.

    Numba would find out the type of each array at each call, in a microsecond or more for each. Any
    other arrays than the annotations say have the type that it finds.
    """
    TUPLES.add(cls)
    return cls


def read_only(array: Bytes) -> Bytes:
    """Return a view that may not be written: another type to Numba, the one that kernels take."""
    view = array.view()
    view.flags.writeable = False
    return view
