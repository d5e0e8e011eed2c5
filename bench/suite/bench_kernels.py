"""Kernels: checksums, digits, hash sets; slots found and linked, the near wheel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.rig import COUNT, START_MS, play
from timerstore.jit.crc import crc32
from timerstore.jit.kernel import kernel
from timerstore.timelog.bytes.message import java_hash
from timerstore.timelog.bytes.text import get_decimal_13, get_hex_12, put_decimal_13, put_hex_12
from timerstore.wheel.near import NearTimer, bucket_at, near_insert, near_pop, new_near_wheel
from timerstore.wheel.place import Settings, place_all
from timerstore.wheel.sets import new_table, set_add, set_contains, set_remove
from timerstore.wheel.timerwheel import SlotArray, link_unit, new_slot_array

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


SLOTS = 1 << 17
CACHED_SLOTS = 1 << 12
"""So many slots fit in a core's own cache."""
SLOT_BYTES = 32
NOW = START_MS // 1_000


def _new_slots() -> SlotArray:
    return new_slot_array(np.zeros(2 * SLOTS * SLOT_BYTES, np.uint8), ())


def bench_place(benchmark: Any) -> None:
    """Find the slot of a timer, of a tenth of them by hops."""
    settings = Settings(
        precision_ms=1_000, slot_count=604_800, window_slots=172_800, hop_slots=172_799
    )
    ahead_ms = np.random.default_rng(1).integers(0, 20 * 86_400_000, TIMES * COUNT)
    due_ms, slots = START_MS + ahead_ms, np.zeros(TIMES * COUNT, np.int64)
    play(
        benchmark,
        lambda: place_all(settings, NOW, NOW, due_ms, slots),
        count=len(due_ms),
    )


@kernel
def _link_many(wheel: Any, slots: Any) -> None:
    for i in range(len(slots)):
        link_unit(wheel, slots[i], 52 * i, 1)


def bench_link(benchmark: Any) -> None:
    """Link units to slots in no order."""
    wheel = _new_slots()
    slots = NOW + np.random.default_rng(1).integers(0, CACHED_SLOTS, TIMES * COUNT)
    play(benchmark, lambda: _link_many(wheel, slots), count=len(slots))


@kernel
def _near_many(near: Any, start_ms: int, count: int) -> int:
    taken = 0
    for i in range(count):
        ms = start_ms + i * 7 % 997
        timer = NearTimer(ms, 329 * i, 329, ms // 1_000, 1, 0)
        near_insert(near, bucket_at(near, ms, 0), timer, False)
    for ms in range(start_ms, start_ms + 1_000):
        bucket = bucket_at(near, ms, 0)
        while near_pop(near, bucket, ms):
            taken += 1
    return taken


def bench_near(benchmark: Any) -> None:
    """Put timers into the near wheel, take them in the order of due time."""
    near = new_near_wheel(1_000, 1 << 16, 64)

    def stage() -> None:
        assert _near_many(near, START_MS, COUNT) == COUNT

    play(benchmark, stage)
