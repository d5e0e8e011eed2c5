"""Linking: helpers become part of their kernels."""

from typing import Any

import numba
import numpy as np
import pytest

from tests.kernels import kernel
from timerstore.jit.crc import START, crc32, crc_register
from timerstore.jit.kernel import INTERPRETED, inlined


@inlined
def _add(x: int, y: int) -> int:
    return x + y


@inlined
def _never(x: int) -> int:
    return _add(x, 1000)


@inlined
def _twice(x: int, y: int) -> int:
    if y * y < 0 and y == 0:
        return _never(x)  # LLVM drops this call before it links
    return _add(_add(x, x), 0)


@kernel
def _of_one(x: int) -> int:
    return _add(x, 1)


@kernel
def _calls_a_kernel(x: int) -> int:
    return _of_one(x) + 2 * x


@kernel
def _of_any(x: int, y: int) -> int:
    return _add(_twice(x, y), y)


@kernel
def _from_start(buf: Any, count: int) -> int:
    return crc32(buf, 0, count)


@kernel
def _goes_on(buf: Any, count: int, register: int) -> int:
    return crc_register(buf, 0, count, register)


def test_a_helper_is_the_same_in_each_kernel() -> None:
    assert _of_one(7) == 8  # there its second argument is a constant
    assert _of_any(7, 5) == 19


def test_a_function_that_a_helper_brings_is_not_taken_from_another_kernel() -> None:
    data = np.arange(64, dtype=np.uint8)
    whole = _from_start(data, 64)  # there the register is a constant
    register = _goes_on(data, 32, START)
    assert _goes_on(data[32:].copy(), 32, register) ^ START == whole


if not INTERPRETED:

    def test_python_is_refused_a_helper() -> None:
        with pytest.raises(NotImplementedError, match="_add is called by kernels alone"):
            _add(1, 2)

    def test_a_kernel_is_a_helper_to_another() -> None:
        assert _calls_a_kernel(5) == 16
        assert _of_one(5) == 6

    def test_who_is_no_kernel_is_refused_a_helper() -> None:
        @numba.njit  # type: ignore[untyped-decorator]
        def plain(x: int) -> int:
            return int(_add(x, 1))

        with pytest.raises(RuntimeError, match="a helper is called by kernels"):
            plain(1)
