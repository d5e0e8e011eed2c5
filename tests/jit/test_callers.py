"""Kernels of integers: a record's address in, an integer out, with the GIL or without."""

from collections.abc import Callable

import numpy as np
import pytest

from timerstore.jit.kernel import caller_of, caller_on, kernel_ahead_with_gil, kernel_later
from timerstore.jit.record import Words, record, record_at


@record
class Pair:
    """Two words and an array."""

    items: Words
    first: int = 3
    second: int = 4


_pair_at = record_at(Pair)


@kernel_later
def _sum_of(address: int, factor: int) -> int:
    pair = _pair_at(address)
    pair.first += 1
    return factor * (pair.first + pair.second + pair.items[0])


@kernel_ahead_with_gil
def _difference(address: int, factor: int) -> int:
    pair = _pair_at(address)
    return factor * (pair.first - pair.items[0])


@pytest.mark.parametrize(("made", "expected"), [(_sum_of, 1_080), (_difference, -970)])
def test_a_kernel_finds_its_record(made: Callable[..., int], expected: int) -> None:
    pair = Pair(np.array([100]))
    assert caller_on(made, pair)(10) == expected
    assert pair.first == 3 + (expected > 0)
    assert caller_of(made)(int(pair.block_address), 0) == 0  # type: ignore[attr-defined]
