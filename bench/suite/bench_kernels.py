"""Checksums, digits, hash sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.rig import COUNT, play
from timerstore.timelog.bytes.message import java_hash
from timerstore.timelog.bytes.text import get_decimal_13, get_hex_12, put_decimal_13, put_hex_12
from timerstore.timelog.jit.crc import crc32
from timerstore.timelog.jit.kernel import kernel
from timerstore.wheel.sets import new_table, set_add, set_contains, set_remove

TIMES = 10
"""A stage of nanoseconds is done so often for each timer."""
CACHED = 4_000
"""So many fit in a core's own cache: what other programs do to the shared one is not measured."""


@kernel
def _crc_many(data: Any, length: int, count: int) -> int:
    total = 0
    for i in range(count):
        total ^= crc32(data, i & 63, length)  # else it would be computed once
    return total


@pytest.mark.parametrize("length", [100, 420])
def bench_crc(benchmark: Any, length: int) -> None:
    """CRC-32 of cached bytes."""
    data = np.arange(length + 64).astype(np.uint8)
    count = TIMES * COUNT
    play(benchmark, lambda: _crc_many(data, length, count), count=count)


@kernel
def _digits_many(buf: Any, count: int) -> int:
    total = 0
    for i in range(count):
        put_decimal_13(buf, 0, 1_700_000_000_000 + i)
        put_hex_12(buf, 16, i)
        total += get_decimal_13(buf, 0) + get_hex_12(buf, 16)
    return total


def bench_digits(benchmark: Any) -> None:
    """Write a due time, an offset as digits, read them again."""
    buf, count = np.zeros(64, np.uint8), TIMES * COUNT
    play(benchmark, lambda: _digits_many(buf, count), count=count)


@kernel
def _hash_many(buf: Any, length: int, count: int) -> int:
    total = 0
    for i in range(count):
        total ^= java_hash(buf, i & 7, length)
    return total


def bench_java_hash(benchmark: Any) -> None:
    """Hash a topic as Java does."""
    buf, count = np.frombuffer(b"a-topic-of-some-length", np.uint8).copy(), TIMES * COUNT
    play(benchmark, lambda: _hash_many(buf, len(buf) - 8, count), count=count)


@kernel
def _set_many(table: Any, count: int) -> int:
    there = 0
    for start in range(0, count, CACHED):
        for i in range(start, start + CACHED):
            there += set_add(table, -1, 7 * i + 1)
        for i in range(start, start + CACHED):
            there += set_contains(table, -1, 7 * i + 1)
        for i in range(start, start + CACHED):
            there += set_remove(table, -1, 7 * i + 1)
    return there


def bench_sets(benchmark: Any) -> None:
    """Add to the set of cancelled timers, look, remove."""
    table, count = new_table(CACHED), TIMES * COUNT

    def stage() -> None:
        assert _set_many(table, count) == 3 * count

    play(benchmark, stage, count=count)
