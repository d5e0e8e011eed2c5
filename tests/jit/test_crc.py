"""CRC-32, by folding or by tables, against zlib's."""

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.buffers import Guarded, as_array
from tests.kernels import kernel
from timerstore.jit.crc import (
    START,
    crc32,
    crc_register,
    register_by_table,
    register_of_i64,
)
from timerstore.jit.crcfold import FOLDING
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.later import Instruction


@kernel
def _crc32(buf: Any, at: int, count: int) -> int:
    return crc32(buf, at, count)


@kernel
def _register(buf: Any, at: int, count: int, register: int) -> int:
    return crc_register(buf, at, count, register)


@kernel
def _by_table(buf: Any, at: int, count: int, register: int) -> int:
    return register_by_table(buf, at, count, register)


@kernel
def _of_i64(value: int, register: int) -> int:
    return register_of_i64(value, register)


def _new_register(folding: Any) -> Any:
    """Return a kernel that folds in one way, slicing what is too short for it."""
    fold = Instruction("crcfold.new_fold", folding)

    @kernel
    def register(buf: Any, at: int, count: int, before: int) -> int:
        if count >= 16:
            return fold(buf, at, count, before)
        return register_by_table(buf, at, count, before)

    return register


_WAYS = [_by_table, _register]
if not INTERPRETED and FOLDING is not None:
    _WAYS.append(_new_register(FOLDING))


@given(data=st.binary(max_size=600), start=st.integers(0, 70), stop=st.integers(0, 70))
def test_crc_is_zlibs(data: bytes, start: int, stop: int) -> None:
    at = min(start, len(data))
    count = max(0, len(data) - at - stop)
    expected = zlib.crc32(data[at : at + count])
    buf = as_array(data)
    assert _crc32(buf, at, count) == expected
    for way in _WAYS:
        assert way(buf, at, count, START) ^ START == expected


@given(parts=st.lists(st.binary(max_size=150), max_size=5))
def test_a_register_goes_on(parts: list[bytes]) -> None:
    buf = as_array(b"".join(parts))
    for way in _WAYS:
        register = START
        at = 0
        for part in parts:
            register = int(way(buf, at, len(part), register))
            at += len(part)
        assert register ^ START == zlib.crc32(b"".join(parts))


@given(value=st.integers(-(2**63), 2**63 - 1), register=st.just(START) | st.integers(0, START))
def test_a_number_goes_on_as_its_bytes_do(value: int, register: int) -> None:
    expected = zlib.crc32(value.to_bytes(8, "big", signed=True), register ^ START)
    assert _of_i64(value, register) ^ START == expected


@pytest.mark.parametrize("way", _WAYS, ids=lambda way: way.__name__)
def test_nothing_is_read_past_the_end(way: Any) -> None:
    guarded = Guarded(4096)
    for count in range(200):
        data = bytes(range(256))[:count]
        assert way(guarded.hold(data), 0, count, START) ^ START == zlib.crc32(data)


@pytest.mark.parametrize("way", _WAYS, ids=lambda way: way.__name__)
def test_all_lengths_around_the_lanes(way: Any) -> None:
    data = bytes(i * 37 % 251 for i in range(700))
    buf = as_array(data)
    for count in [*range(300), 320, 321, 383, 384, 385, 511, 512, 513, 699]:
        for at in (0, 1):
            for register in (START, 0, 0x8000_0001):
                expected = zlib.crc32(data[at : at + count], register ^ START)
                assert way(buf, at, count, register) ^ START == expected


def test_the_check_value_of_the_standard() -> None:
    assert _crc32(as_array(b"123456789"), 0, 9) == 0xCBF43926
