"""Lent memory: never lent twice at once, lent again once nothing looks into it."""

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.together import together
from timerstore.calls.consuming.groupreader import UNSHARED_REFERENCES, LentBlocks


def place(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_what_nobody_looks_into_is_lent_again() -> None:
    blocks = LentBlocks()
    first = place(blocks.lend(1_000))
    assert not UNSHARED_REFERENCES or place(blocks.lend(65_536)) == first
    assert place(blocks.lend(65_537)) != first


VIEWS = [
    lambda block: block,
    lambda block: block[3:5],
    lambda block: block[8:16].view(np.int64),
    lambda block: np.ndarray((2, 3), np.int64, block)[1],
    lambda block: pa.py_buffer(block[16:32]),
    lambda block: pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(block[:4])])[1:3],
    lambda block: memoryview(block)[4:6],
]


@pytest.mark.parametrize("look", VIEWS)
def test_what_somebody_looks_into_is_not(look: Any) -> None:
    blocks = LentBlocks()
    block = blocks.lend(1_000)
    first = place(block)
    view = look(block)
    del block
    others = [blocks.lend(1_000) for _ in range(9)]
    assert first not in map(place, others)
    assert len(set(map(place, others))) == 9
    del view
    if UNSHARED_REFERENCES:
        assert first in map(place, [blocks.lend(1_000) for _ in range(9)])


@given(lengths=st.lists(st.integers(1, 1 << 18), max_size=30), data=st.data())
def test_no_two_overlap(lengths: list[int], data: st.DataObject) -> None:
    blocks = LentBlocks()
    held: list[Any] = []
    for number, length in enumerate(lengths):
        if held and data.draw(st.booleans()):
            held.pop(data.draw(st.integers(0, len(held) - 1)))
        block = blocks.lend(length)
        assert len(block) == length and place(block) % 16 == 0
        block[:] = number % 256
        held.append((number % 256, block))
        assert all((each == value).all() for value, each in held)


def test_threads_get_memory_of_their_own() -> None:
    blocks, wrong = LentBlocks(), []

    def work(name: int) -> None:
        for _ in range(2_000):
            block = blocks.lend(1_000)
            block[:8] = name
            block[8:16] = block[:8]
            if not (block[:16] == name).all():
                wrong.append(name)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(work, range(8))
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_large_ones_are_not_kept() -> None:
    blocks = LentBlocks()
    assert len(blocks.lend((1 << 24) + 1)) == (1 << 24) + 1
    assert not any(blocks._known)
