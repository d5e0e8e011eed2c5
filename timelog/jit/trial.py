"""A trial of linking: each way in which kernels, helpers are linked, called, cached."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from timerstore.timelog.jit.crc import START, crc32, crc_register
from timerstore.timelog.jit.kernel import inlined, inlined_always, kernel

_BYTES = 64


@inlined
def _sum(x: int, y: int) -> int:
    return x + y


@inlined
def _never(x: int) -> int:
    return _sum(x, 1000)


@inlined_always
def _first(values: Any, x: int) -> int:
    if x * x < 0:
        return _never(x)  # LLVM drops this call before it links
    return _sum(_sum(values[0], x), 0)


def _with_constant(x: int) -> int:
    return _sum(x, 1)


_kernel = kernel(_with_constant)


def _of_array(values: Any, x: int) -> int:
    return _first(values, x)


def _of_kernel(x: int) -> int:
    return _kernel(x) + 2 * x


def _from_start(values: Any, count: int) -> int:
    return crc32(values, 0, count)


def _goes_on(values: Any, count: int, register: int) -> int:
    return crc_register(values, 0, count, register)


def main() -> None:
    """Raise if a kernel cannot be linked in our way, or does something else then."""
    values: Any = np.arange(_BYTES, dtype=np.uint8)
    half = _BYTES // 2
    _check("a helper", _kernel(7), 8)
    _check("a helper of helpers", kernel(_of_array)(values, 5), 5)
    _check("a kernel within another", kernel(_of_kernel)(5), 16)
    whole = kernel(_from_start)(values, _BYTES)
    _check("a long helper", whole, zlib.crc32(values) & 0x7FFF_FFFF)
    go_on = kernel(_goes_on)
    register = go_on(values, half, START)
    in_two = go_on(values[half:].copy(), half, register) ^ START
    _check("a helper that another kernel brings too", in_two, whole)
    again = kernel(_with_constant)
    _check("a kernel from the cache", again(7), 8)
    _check("hits of the cache", sum(again.made.stats.cache_hits.values()), 1)  # type: ignore[attr-defined]


def _check(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{what}: {found} instead of {expected}")
