"""Hash sets against Python's own, with removals, also where all hashes are equal."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from timerstore.jit.record import Words
from timerstore.wheel.cancelled import (
    LENGTH_MIN,
    SET_ENTRY_WORDS,
    grown,
    map_get,
    map_put_all,
    new_table,
    set_add,
    set_contains,
    set_remove,
    spread,
)

ADD, REMOVE, CONTAINS = 0, 1, 2
LOW_FACTOR = 0x9E3779B97F4A7C1


@kernel
def _act(table: Any, action: int, high: int, low: int) -> bool:
    if action == 0:
        return set_add(table, high, low)
    if action == 1:
        return set_remove(table, high, low)
    return set_contains(table, high, low)


@kernel
def _spread(high: int, low: int) -> int:
    return spread(high, low)


@kernel
def _place_of_level(high: int, low: int, message: int) -> int:
    if high == -1 and low == message | 1 << 47 and low > 0:
        return spread(high, low) & 1_023
    return -1


@kernel
def _get(table: Any, offset: int) -> int:
    return map_get(table, offset)


def signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def colliding(low: int, seed: int = 0x1234_5678_9ABC_DEF) -> tuple[int, int]:
    """A key whose hash is that of all others with the same seed."""
    return signed(seed ^ (low * LOW_FACTOR)), low


def entries(table: Words) -> list[tuple[int, int]]:
    pairs = [(int(high), int(low)) for high, low in table.reshape(-1, SET_ENTRY_WORDS)]
    return sorted(pair for pair in pairs if pair != (0, 0))


WORDS = st.integers(-(2**63), 2**63 - 1)
KEYS = (
    st.tuples(st.integers(-2, 2), st.integers(0, 9)).filter(any)
    | st.tuples(WORDS, WORDS).filter(any)
    | st.integers(0, 12).map(colliding)
    | st.integers(0, 12).map(lambda low: colliding(low, seed=-1))
)
ACTIONS = st.lists(st.tuples(st.sampled_from([ADD, ADD, REMOVE, CONTAINS]), KEYS), max_size=60)


def play(actions: list[tuple[int, tuple[int, int]]], length: int) -> None:
    table, model = np.zeros(length, np.int64), set[tuple[int, int]]()
    for action, key in actions:
        there = key in model
        if action == ADD and not there and len(model) >= length // SET_ENTRY_WORDS - 1:
            continue  # one place stays free, or a search would not end
        assert bool(_act(table, action, *key)) == (there != (action == ADD))
        if action == ADD:
            model.add(key)
        elif action == REMOVE:
            model.discard(key)
        assert entries(table) == sorted(model)
    for key in {key for _, key in actions}:
        assert bool(_act(table, CONTAINS, *key)) == (key in model)


@given(actions=ACTIONS)
def test_a_roomy_set(actions: list[tuple[int, tuple[int, int]]]) -> None:
    play(actions, 256)


@given(actions=ACTIONS)
def test_a_crowded_set(actions: list[tuple[int, tuple[int, int]]]) -> None:
    play(actions, 32)


def test_equal_hashes_removed_in_every_order() -> None:
    keys = [colliding(low) for low in range(7)]
    for step in range(1, 7):
        play([(ADD, key) for key in keys], 16)
        order = [keys[i * step % 7] for i in range(7)]
        play([(ADD, key) for key in keys] + [(REMOVE, key) for key in order], 16)


@given(pairs=st.lists(st.tuples(st.integers(0, 30) | st.integers(0, 2**62), st.integers(0, 2**62))))
def test_a_map_keeps_the_smallest(pairs: list[tuple[int, int]]) -> None:
    table = new_table(len(pairs))
    offsets = np.array([offset for offset, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.int64)
    map_put_all(table, offsets, values)
    model: dict[int, int] = {}
    for offset, value in pairs:
        model[offset] = min(value, model.get(offset, value))
    for offset in [*model, *range(32)]:
        assert _get(table, offset) == model.get(offset, -1)


def test_tables_grow_before_they_are_more_than_half_full() -> None:
    assert len(new_table(0)) == len(new_table(1)) == LENGTH_MIN
    assert len(new_table(512)) == LENGTH_MIN
    assert len(new_table(513)) == 2 * LENGTH_MIN
    table = new_table(1)
    assert grown(table, 512) is table
    keys = [colliding(low) for low in range(40)] + [(5, low) for low in range(400)]
    for key in keys:
        assert _act(table, ADD, *key)
    larger = grown(table, 3000)
    assert len(larger) == 8 * LENGTH_MIN
    assert entries(larger) == entries(table) == sorted(keys)
    for key in keys:
        assert _act(larger, CONTAINS, *key)
        assert not _act(larger, CONTAINS, key[0] ^ 1, key[1])


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_hash_is_the_same_in_each_caller(high: int, low: int) -> None:
    """Also where the caller knows more of what it hashes, and LLVM with it."""

    def mixed(high: int, low: int) -> int:
        mask = (1 << 64) - 1
        code = (high ^ low * 0x9E3779B97F4A7C1) & mask
        code = (code ^ code >> 33 & 0x7FFFFFFF) * 0x7F51AFD7ED558CC & mask
        return (code ^ code >> 33 & 0x7FFFFFFF) & mask

    assert int(_spread(high, low)) & (1 << 64) - 1 == mixed(high, low)
    message = low & (1 << 47) - 1
    expected = mixed(-1, message | 1 << 47) & 1_023
    assert _place_of_level(-1, message | 1 << 47, message) == expected
