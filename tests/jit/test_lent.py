"""Arrays that kernels find by number: what was lent last, while somebody keeps it."""

import gc
from typing import Any

import numpy as np
import pytest

from tests.kernels import kernel
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.mapping import is_lent, lend, lent_bytes, lent_words, new_lent


@kernel
def _sums(lent: Any, place: int, count: int, out: Any) -> None:
    out[:] = 0
    for byte in lent_bytes(lent, place, 8 * count):
        out[0] += byte
    for word in lent_words(lent, place, count):
        out[1] += word


def sums(lent: Any, place: int, count: int) -> list[int]:
    out = np.zeros(2, np.int64)
    _sums(lent, place, count, out)
    return out.tolist()


def test_a_kernel_finds_what_was_lent_last() -> None:
    lent, words, data = new_lent(3), np.arange(600, 605), np.full(40, 1, np.uint8)
    lend(lent, 1, words)
    lend(lent, 2, data)
    assert sums(lent, 1, 5) == [sum(words.tobytes()), 600 + 601 + 602 + 603 + 604]
    assert sums(lent, 2, 2) == [16, 2 * 0x0101010101010101]
    assert is_lent(lent, 1, words) and not is_lent(lent, 1, data)
    lend(lent, 1, data)
    assert is_lent(lent, 1, data) and sums(lent, 1, 5)[0] == 40
    assert new_lent(1).ctypes.data % 64 == lent.ctypes.data % 64 == 0


if INTERPRETED:

    def test_interpreted_kernels_see_that_nobody_keeps_it() -> None:
        lent = new_lent(1)
        lend(lent, 0, np.zeros(4, np.int64))
        gc.collect()
        with pytest.raises(KeyError):
            sums(lent, 0, 4)
        words = np.zeros(4, np.int64)
        lend(lent, 0, words)
        with pytest.raises(AssertionError):
            sums(lent, 0, 5)
