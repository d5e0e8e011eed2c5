"""Bare entry points: integers in, an integer out, with the GIL or without."""

import numpy as np
import pytest

from timerstore.jit.entrypoint import entry_point
from timerstore.jit.record import Words, record, record_at


@record
class Pair:
    """Two words and an array."""

    items: Words
    first: int = 3
    second: int = 4


_pair_at = record_at(Pair)


def _sum_of(address: int, factor: int) -> int:
    pair = _pair_at(address)
    pair.first += 1
    return factor * (pair.first + pair.second + pair.items[0])


@pytest.mark.parametrize("keeps_gil", [False, True])
def test_a_kernel_finds_its_record(keeps_gil: bool) -> None:
    pair = Pair(np.array([100]))
    call = entry_point(_sum_of, keeps_gil=keeps_gil)
    assert call(int(pair.block_address), 10) == 1_080  # type: ignore[attr-defined]
    assert pair.first == 4


def test_integers_alone() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert entry_point(add)(40, 2) == 42
