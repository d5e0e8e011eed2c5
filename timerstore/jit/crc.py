"""CRC-32 (zlib's polynomial) over bytes in a buffer.

Four CRCs stand in the life of one timer, so this is the hottest function of all. A processor with
carry-less multiplication folds, and ARM has an instruction for it (`crcfold.py`). Elsewhere it
slices by eight (Kounavis and Berry, 2005), many times slower. A test compares each with zlib.

A *register* is the CRC before its final inversion, so that a CRC can be continued.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any, Final

import numpy as np

from timerstore.jit.intrinsics import get_u8, get_word
from timerstore.jit.kernel import inlined, kernel_later, twinned
from timerstore.jit.later import Instruction
from timerstore.jit.record import Bytes, ReadBytes, Words

POLYNOMIAL: Final = 0xEDB88320
START = 0xFFFFFFFF


def _tables() -> Words:
    """Return slicing-by-8 tables as int64[8 * 256]; the first 256 are the plain table."""
    table = np.zeros((8, 256), np.int64)
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = (register >> 1) ^ POLYNOMIAL if register & 1 else register >> 1
        table[0, byte] = register
    for step in range(1, 8):
        before = table[step - 1]
        table[step] = table[0][before & 0xFF] ^ (before >> 8)
    return table.reshape(-1)


_TABLE = _tables()


@inlined
def register_by_table(buf: Bytes, at: int, count: int, register: int) -> int:
    """Return the register after `count` bytes, slicing by eight; the portable way."""
    end = at + count
    while at + 8 <= end:
        word = get_word(buf, at)
        low = (word & 0xFFFFFFFF) ^ register
        high = (word >> 32) & 0xFFFFFFFF
        register = (
            _TABLE[1792 + (low & 255)]
            ^ _TABLE[1536 + ((low >> 8) & 255)]
            ^ _TABLE[1280 + ((low >> 16) & 255)]
            ^ _TABLE[1024 + (low >> 24)]
            ^ _TABLE[768 + (high & 255)]
            ^ _TABLE[512 + ((high >> 8) & 255)]
            ^ _TABLE[256 + ((high >> 16) & 255)]
            ^ _TABLE[high >> 24]
        )
        at += 8
    while at < end:
        register = _TABLE[(register ^ get_u8(buf, at)) & 255] ^ (register >> 8)
        at += 1
    return register


@inlined
def register_of_i64(value: int, register: int) -> int:
    """Return the register after the eight bytes that `put_i64` writes of a value."""
    after = 0
    for i in range(8):
        byte = (value >> (56 - 8 * i)) ^ (register >> (8 * i))
        after ^= _TABLE[1792 - 256 * i + (byte & 255)]
    return after


_fold = Instruction("crcfold.fold")


def _register_twin(buf: Bytes, at: int, count: int, register: int) -> int:
    data = buf[at : at + count].tobytes()
    assert len(data) == count
    return zlib.crc32(data, int(register) ^ START) ^ START


@twinned(_register_twin)
def crc_register(buf: Bytes, at: int, count: int, register: int) -> int:
    """Return the register after `count` bytes at `at`."""
    if count >= 16:
        return _fold(buf, at, count, register)
    return register_by_table(buf, at, count, register)


@inlined
def crc32(buf: Bytes, at: int, count: int) -> int:
    """Return zlib's CRC-32 of `count` bytes at `at`."""
    return crc_register(buf, at, count, START) ^ START


# --- The CRC-32 of bytes, also if they were looked at in parts.

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
