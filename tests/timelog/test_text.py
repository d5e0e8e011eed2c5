"""Digits against Python's own formatting."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array
from tests.kernels import kernel
from timerstore.jit.intrinsics import get_word
from timerstore.timelog.bytes.text import (
    crc_digits_are,
    first_bad_key,
    get_decimal,
    get_decimal_13,
    get_hex_8,
    get_hex_12,
    hex_8_word,
    put_crc_digits,
    put_decimal,
    put_decimal_13,
    put_decimal_20,
    put_hex_8,
    put_hex_12,
)
from timerstore.values.check_arguments import Binaries


@kernel
def _hex(buf: Any, short: int, long: int) -> None:
    put_hex_8(buf, 1, short)
    put_hex_12(buf, 10, long)


@kernel
def _decimals(buf: Any, exact: int, value: int, offset: int) -> int:
    put_decimal_13(buf, 1, exact)
    put_decimal_20(buf, 15, offset)
    return put_decimal(buf, 36, value)


@kernel
def _crc_digits(buf: Any, code: int) -> bool:
    put_crc_digits(buf, 3, code)
    return crc_digits_are(buf, 3, code)


@kernel
def _read(buf: Any, count: int) -> int:
    return get_decimal(buf, 2, count)


@kernel
def _read_hex(buf: Any, out: Any) -> None:
    out[0] = get_hex_8(buf, 2)
    out[1] = get_hex_12(buf, 2)


@kernel
def _read_13(buf: Any) -> int:
    return get_decimal_13(buf, 3)


@kernel
def _is_hex(buf: Any, value: int) -> bool:
    return get_word(buf, 0) == hex_8_word(value)


@kernel
def _any_crc(buf: Any, code: int) -> bool:
    return crc_digits_are(buf, 0, code)


@given(short=st.integers(0, 2**32 - 1), long=st.integers(0, 2**48 - 1))
def test_hex(short: int, long: int) -> None:
    buf = np.full(24, 0x2E, np.uint8)
    _hex(buf, short, long)
    assert buf.tobytes() == f".{short:08X}.{long:012X}..".encode()


@given(
    exact=st.integers(0, 10**13 - 1),
    value=st.integers(0, 10**18 - 1) | st.integers(0, 18).map(lambda n: 10**n - 1),
    offset=st.integers(0, 10**16 - 1),
)
def test_decimals(exact: int, value: int, offset: int) -> None:
    buf = np.full(60, 0x2E, np.uint8)
    count = _decimals(buf, exact, value, offset)
    text = f".{exact:013d}.{offset:020d}.{value}"
    assert count == len(str(value))
    assert buf.tobytes() == text.ljust(60, ".").encode()


@given(code=st.integers(0, 2**31 - 1))
def test_crc_digits(code: int) -> None:
    buf = np.full(16, 0x2E, np.uint8)
    assert _crc_digits(buf, code)
    assert buf.tobytes() == b"..." + f"{code:010d}"[::-1].encode() + b"..."


@given(code=st.integers(0, 2**31 - 1), at=st.integers(0, 9), change=st.integers(1, 255))
def test_no_other_bytes_are_a_crc(code: int, at: int, change: int) -> None:
    digits = bytearray(f"{code:010d}"[::-1].encode())
    assert _any_crc(as_array(bytes(digits)), code)
    digits[at] ^= change
    assert not _any_crc(as_array(bytes(digits)), code)


@given(before=st.binary(max_size=50))
def test_crc_digits_are_those_of_the_property(before: bytes) -> None:
    digits = naive.crc_property(before)[9:19]
    assert _any_crc(as_array(digits), naive.crc31(before))


@given(
    text=st.text("0123456789", min_size=1, max_size=20)
    | st.text("0123456789:/@G`g\x00 -+_", max_size=14)
)
def test_reading_numbers(text: str) -> None:
    is_number = 0 < len(text) <= 18 and all(c in "0123456789" for c in text)
    buf = as_array(b"##" + text.encode() + b"##")
    assert _read(buf, len(text)) == (int(text) if is_number else -1)


@given(
    digits=st.text("0123456789abcdefABCDEF", min_size=12, max_size=12),
    at=st.integers(0, 11),
    other=st.binary(max_size=1)
    | st.sampled_from(b"/:@G`g\x00\x80\xb0\xc1 -").map(lambda c: bytes([c])),
)
def test_reading_hex_digits(digits: str, at: int, other: bytes) -> None:
    text = digits[:at].encode() + (other or digits[at].encode()) + digits[at + 1 :].encode()
    out = np.zeros(2, np.int64)
    _read_hex(as_array(b"##" + text), out)
    for found, part in zip(out.tolist(), (text[:8], text), strict=True):
        is_hex = all(byte in b"0123456789abcdefABCDEF" for byte in part)
        assert found == (int(part, 16) if is_hex else -1)


@given(
    text=st.text("0123456789", min_size=13, max_size=13), at=st.integers(0, 12), other=st.binary()
)
def test_thirteen_digits(text: str, at: int, other: bytes) -> None:
    assert _read_13(as_array(b"9/:" + text.encode())) == int(text)
    damaged = text[:at].encode() + other[:1] + text[at + 1 :].encode()
    is_number = len(damaged) == 13 and all(byte in b"0123456789" for byte in damaged)
    if len(damaged) == 13:
        assert _read_13(as_array(b"999" + damaged)) == (int(damaged) if is_number else -1)


@given(value=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1))
def test_a_word_of_hex_digits(value: int, other: int) -> None:
    digits = as_array(f"{value:08X}".encode())
    assert _is_hex(digits, value)
    assert _is_hex(digits, other) == (value == other)


@given(
    keys=st.lists(
        st.binary(max_size=6)
        | st.text("ab\1\2").map(str.encode)
        | st.text(max_size=3).map(lambda text: text.encode("utf-8", "surrogatepass"))
        | st.tuples(st.text(max_size=2).map(str.encode), st.integers(0, 2)).map(
            lambda pair: pair[0][: len(pair[0]) - pair[1]]
        )
        | st.lists(st.sampled_from(b"a\x80\xbf\xc1\xc2\xe0\xa0\xed\x9f\xf0\x90\xf4\x8f\xf5")).map(
            bytes
        ),
        max_size=6,
    )
)
def test_the_first_key_that_cannot_stand_in_a_message(keys: list[bytes]) -> None:
    bad = [i for i, key in enumerate(keys) if not is_a_key(key)]
    binaries = Binaries(keys, "keys")
    assert first_bad_key(binaries.pieces) == (bad[0] if bad else -1)


def is_a_key(key: bytes) -> bool:
    try:
        return bool(key) and not {"\1", "\2"} & {*key.decode()}
    except UnicodeDecodeError:
        return False
