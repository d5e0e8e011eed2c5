"""CRC-32, by folding or by tables, against zlib's."""

import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.buffers import Guarded, as_array
from timerstore.timelog.crc import START, crc32, crc_register, register_by_table
from timerstore.timelog.kernel import kernel


@kernel
def _crc32(buf: Any, at: int, count: int) -> int:
    return crc32(buf, at, count)


@kernel
def _register(buf: Any, at: int, count: int, register: int) -> int:
    return crc_register(buf, at, count, register)


@kernel
def _by_table(buf: Any, at: int, count: int, register: int) -> int:
    return register_by_table(buf, at, count, register)


@given(data=st.binary(max_size=600), start=st.integers(0, 70), stop=st.integers(0, 70))
def test_crc_is_zlibs(data: bytes, start: int, stop: int) -> None:
    at = min(start, len(data))
    count = max(0, len(data) - at - stop)
    expected = zlib.crc32(data[at : at + count])
    buf = as_array(data)
    assert _crc32(buf, at, count) == expected
    assert _by_table(buf, at, count, START) ^ START == expected


@given(parts=st.lists(st.binary(max_size=150), max_size=5))
def test_a_register_goes_on(parts: list[bytes]) -> None:
    buf = as_array(b"".join(parts))
    folded = sliced = START
    at = 0
    for part in parts:
        folded = int(_register(buf, at, len(part), folded))
        sliced = int(_by_table(buf, at, len(part), sliced))
        at += len(part)
    assert folded ^ START == sliced ^ START == zlib.crc32(b"".join(parts))


def test_nothing_is_read_past_the_end() -> None:
    guarded = Guarded(4096)
    for count in range(200):
        data = bytes(range(256))[:count]
        buf = guarded.hold(data)
        assert _crc32(buf, 0, count) == zlib.crc32(data)
        assert _by_table(buf, 0, count, START) ^ START == zlib.crc32(data)


def test_all_lengths_around_the_lanes() -> None:
    data = bytes(i * 37 % 251 for i in range(700))
    buf = as_array(data)
    for count in [*range(15, 35), *range(60, 140), *range(250, 270), 511, 512, 513, 699]:
        for at in (0, 1):
            assert _crc32(buf, at, count) == zlib.crc32(data[at : at + count])


def test_the_check_value_of_the_standard() -> None:
    assert _crc32(as_array(b"123456789"), 0, 9) == 0xCBF43926
