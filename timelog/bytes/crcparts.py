"""The CRC-32 of bytes, also if they were looked at in parts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from timerstore.jit.crc import POLYNOMIAL, START, crc_register
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import ReadBytes

_ONE: Final = 1 << 31
"""The polynomial 1: the highest bit stands for the lowest power."""


@kernel_later
def _crc32(buf: ReadBytes, seed: int) -> int:
    return crc_register(buf, 0, len(buf), seed ^ START) ^ START


def crc_of(data: Any, seed: int = 0) -> int:
    """Return the CRC-32 of what has the buffer protocol, which goes on from `seed`. O(bytes).

    It is for large pieces: of these zlib's takes seven times as long, and less for a call.
    """
    return int(_crc32(np.frombuffer(memoryview(data).toreadonly(), np.uint8), seed))


def joined(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of two runs of bytes, out of that of each; no byte is read. O(1).

    >>> import zlib
    >>> joined(zlib.crc32(b"tim"), zlib.crc32(b"er"), 2) == zlib.crc32(b"timer")
    True
    """
    return _times(_moved(second_bytes), first) ^ second


def _times(a: int, b: int) -> int:
    """Return a product modulo the CRC's polynomial."""
    product, bit = 0, _ONE
    while a:
        if a & bit:
            product, a = product ^ b, a ^ bit
        bit >>= 1
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(64)
def _moved(count: int) -> int:
    """Return what moves a CRC on over `count` bytes: x to the power of their bits."""
    power, square = _ONE, _ONE >> 8
    while count:
        if count & 1:
            power = _times(power, square)
        square, count = _times(square, square), count >> 1
    return power
