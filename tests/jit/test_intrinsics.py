"""Intrinsics against Python's own integers: loads, stores, copies, atomics, searches."""

import mmap
import os
import random
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.buffers import Guarded, as_array
from tests.kernels import kernel
from tests.rigs.together import together
from timerstore.jit import intrinsics as own
from timerstore.jit.intrinsics import (
    as_word,
    copy_64,
    copy_bytes,
    copy_lines,
    exchange,
    fetch_add,
    get_i16,
    get_i32,
    get_i64,
    get_u8,
    get_u16,
    get_u32,
    get_word,
    load_acquire,
    lowest_bit,
    match_64,
    prefetch,
    put_i16,
    put_i32,
    put_i64,
    put_u8,
    put_word,
    store_release,
    swap_64,
    touch,
    view_bytes,
    view_words,
    wrapping_multiply,
    zero_bytes,
)
from timerstore.jit.kernel import INTERPRETED

CHECKED = INTERPRETED or bool(numba.config.BOUNDSCHECK)


@kernel
def _touch(buf: Any, at: int) -> None:
    touch(buf, at)


@kernel
def _load(buf: Any, at: int, out: Any) -> None:
    out[0] = get_u8(buf, at)
    out[1] = get_i16(buf, at)
    out[2] = get_u16(buf, at)
    out[3] = get_i32(buf, at)
    out[4] = get_u32(buf, at)
    out[5] = get_i64(buf, at)
    out[6] = get_word(buf, at)


@kernel
def _store(bufs: Any, at: int, value: int) -> None:
    put_u8(bufs[0], at, value)
    put_i16(bufs[1], at, value)
    put_i32(bufs[2], at, value)
    put_i64(bufs[3], at, value)
    put_word(bufs[4], at, value)


@kernel
def _get_8(buf: Any, at: int) -> int:
    return get_i64(buf, at)


@kernel
def _put_8(buf: Any, at: int) -> None:
    put_i64(buf, at, 0)


@kernel
def _copy(dst: Any, at: int, src: Any, start: int, count: int) -> None:
    copy_bytes(dst, at, src, start, count)


@kernel
def _zero(buf: Any, at: int, count: int) -> None:
    zero_bytes(buf, at, count)


@kernel
def _copy_line(dst: Any, at: int, src: Any, start: int) -> None:
    copy_64(dst, at, src, start)


@kernel
def _copy_lines(dst: Any, at: int, src: Any, start: int, count: int) -> None:
    copy_lines(dst, at, src, start, count)


@kernel
def _bits(buf: Any, at: int, byte: int, value: int, out: Any) -> None:
    out[0] = match_64(buf, at, byte)
    out[1] = lowest_bit(value)
    out[2] = swap_64(value)
    prefetch(buf, at)
    prefetch(buf, 1 << 40)


@kernel
def _views(address: int, count: int, out: Any) -> None:
    data = view_bytes(address, 8 * count)
    words = view_words(address, count)
    out[0] = len(data)
    out[1] = len(words)
    out[2] = 0
    for i in range(len(data)):
        out[2] += data[i]
    for i in range(len(words)):
        words[i] += i


@kernel
def _atomics(words: Any, out: Any) -> None:
    out[0] = load_acquire(words, 1)
    store_release(words, 1, 7)
    out[1] = fetch_add(words, 1, 5)
    out[2] = exchange(words, 1, -3)
    out[3] = load_acquire(words, 1)


@kernel
def _add_often(words: Any, count: int) -> None:
    for _ in range(count):
        fetch_add(words, 0, 1)


@given(data=st.binary(min_size=8, max_size=40), at=st.integers(0, 32))
def test_loads(data: bytes, at: int) -> None:
    at = min(at, len(data) - 8)
    out = np.zeros(7, np.int64)
    _load(as_array(data), at, out)
    big = [(1, False), (2, True), (2, False), (4, True), (4, False), (8, True)]
    expected = [int.from_bytes(data[at : at + n], "big", signed=signed) for n, signed in big]
    assert out.tolist() == [*expected, int.from_bytes(data[at : at + 8], "little", signed=True)]


@given(value=st.integers(-(2**63), 2**63 - 1), at=st.integers(0, 8))
def test_stores(value: int, at: int) -> None:
    bufs = np.full((5, 16), 0xEE, np.uint8)
    _store(bufs, at, value)
    forms = [(1, "big"), (2, "big"), (4, "big"), (8, "big"), (8, "little")]
    for buf, (width, order) in zip(bufs, forms, strict=True):
        low = value & ((1 << 8 * width) - 1)
        expected = bytearray(b"\xee" * 16)
        expected[at : at + width] = low.to_bytes(width, order)  # type: ignore[arg-type]
        assert buf.tobytes() == expected


if CHECKED:

    @pytest.mark.parametrize("at", [9, 16, 1 << 40])
    def test_what_lies_outside_is_refused(at: int) -> None:
        buf = np.zeros(16, np.uint8)
        with pytest.raises(Exception, match=r".*"):
            _get_8(buf, at)
        with pytest.raises(IndexError):
            _put_8(buf, at)
        with pytest.raises((IndexError, AssertionError)):
            _copy(buf, at, np.zeros(16, np.uint8), 0, 8)
        with pytest.raises((IndexError, AssertionError)):
            _copy(buf, 0, np.zeros(16, np.uint8), at, 8)


@given(data=st.binary(min_size=1, max_size=300), cut=st.data())
def test_copies(data: bytes, cut: st.DataObject) -> None:
    start = cut.draw(st.integers(0, len(data) - 1))
    count = cut.draw(st.integers(1, len(data) - start))
    at = cut.draw(st.integers(0, 20))
    target = np.full(at + count + 3, 0xEE, np.uint8)
    _copy(target, at, as_array(data), start, count)
    assert target.tobytes() == b"\xee" * at + data[start : start + count] + b"\xee" * 3


@given(
    data=st.binary(min_size=64, max_size=64).map(lambda data: bytes(byte % 3 for byte in data)),
    byte=st.integers(0, 3),
    value=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 62).map(lambda n: 1 << n),
)
def test_bits(data: bytes, byte: int, value: int) -> None:
    out = np.zeros(3, np.int64)
    _bits(as_array(data), 0, byte, value, out)
    matches = sum(1 << i for i in range(64) if data[i] == byte)
    low = next((i for i in range(64) if value >> i & 1), 64)
    swapped = int.from_bytes(value.to_bytes(8, "little", signed=True), "big", signed=True)
    assert [int(out[0]) & (1 << 64) - 1, *out[1:].tolist()] == [matches, low, swapped]


def test_a_search_ends_with_the_buffer() -> None:
    buf = Guarded(4096).hold(b"\x05" * 64)
    out = np.zeros(3, np.int64)
    _bits(buf, 0, 5, 1, out)
    assert out[0] == -1


def test_views_of_an_address() -> None:
    words = np.arange(5)
    out = np.zeros(3, np.int64)
    _views(words.ctypes.data, 5, out)
    assert out.tolist() == [40, 5, 10]
    assert words.tolist() == [0, 2, 4, 6, 8]
    _views(0, 0, out)
    assert out.tolist() == [0, 0, 0]


def test_atomics() -> None:
    words, out = np.array([0, 9], np.int64), np.zeros(4, np.int64)
    _atomics(words, out)
    assert out.tolist() == [9, 7, 12, -3]
    assert words.tolist() == [0, -3]


def test_a_touched_page_is_there_and_as_it_was() -> None:
    fd = os.memfd_create("touched")
    try:
        os.ftruncate(fd, 8 * mmap.PAGESIZE)
        buf = np.frombuffer(mmap.mmap(fd, 8 * mmap.PAGESIZE), np.uint8)
        buf[5] = 7
        for at in range(5, len(buf), mmap.PAGESIZE):
            _touch(buf, at)
        pages = 1 if INTERPRETED else 8  # a twin only looks at its arguments
        assert os.fstat(fd).st_blocks * 512 == pages * mmap.PAGESIZE
        assert buf.sum() == buf[5] == 7
    finally:
        os.close(fd)


if not INTERPRETED:

    def test_threads_lose_no_addition() -> None:
        words = np.zeros(1, np.int64)
        _add_often(words, 0)
        together(lambda count: _add_often(words, count), [200_000] * 4)
        assert words[0] == 800_000


def test_words_of_names() -> None:
    out = np.zeros(7, np.int64)
    _load(as_array(b"TIMER_OUT_MS"), 0, out)
    assert out[6] == as_word(b"TIMER_OUT_MS") == as_word(b"TIMER_OU")
    assert as_word(b"KEY") == int.from_bytes(b"KEY", "little")


def _twin(made: Any) -> Any:
    return getattr(made, "twin", made)


def test_the_twins_of_what_one_mode_does_not_run() -> None:
    words = np.array([5, 6], np.int64)
    assert _twin(own.load_acquire)(words, 0) == 5
    _twin(own.store_release)(words, 0, 4)
    assert _twin(own.fetch_add)(words, 0, 2) == 4
    assert _twin(own.exchange)(words, 0, 1) == 6
    assert words.tolist() == [1, 6]
    assert _twin(own.lowest_bit)(0) == 64
    assert _twin(own.swap_64)(1) == 1 << 56
    data = as_array(bytes(64) + b"\x07")
    assert _twin(own.match_64)(data, 1, 7) == -(1 << 63)
    _twin(own.copy_bytes)(data, 0, data, 64, 1)
    assert data[0] == 7
    _twin(own.prefetch)(data, 1 << 40)


@given(data=st.binary(min_size=64, max_size=100), at=st.integers(0, 36), start=st.integers(0, 36))
def test_copying_64_bytes(data: bytes, at: int, start: int) -> None:
    start = min(start, len(data) - 64)
    out = np.full(100, 0xEE, np.uint8)
    _copy_line(out, at, as_array(data), start)
    expected = b"\xee" * at + data[start : start + 64]
    assert out.tobytes() == expected.ljust(100, b"\xee")
    if CHECKED:
        with pytest.raises(AssertionError if INTERPRETED else IndexError):
            _copy_line(out, 37, as_array(data), start)


@given(
    before=st.integers(0, 70),
    count=st.integers(0, 140) | st.integers(500, 600),
    behind=st.integers(0, 70),
    room=st.integers(0, 70),
)
def test_copying_lines(before: int, count: int, behind: int, room: int) -> None:
    data = random.Random(count).randbytes(before + count + behind)
    source = Guarded(1024).hold(data)
    out = Guarded(1024).hold(b"\xee" * (before + count + room))
    _copy_lines(out, before, source, before, count)
    got = out.tobytes()
    assert got[: before + count] == b"\xee" * before + data[before : before + count]
    changed = 64 - count if count < 64 else 0
    assert got[before + count + changed :] == b"\xee" * max(0, room - changed)


@given(data=st.binary(min_size=1, max_size=300), at=st.integers(0, 299), count=st.integers(1, 300))
def test_zeroing(data: bytes, at: int, count: int) -> None:
    at %= len(data)
    count = min(count, len(data) - at)
    buf = as_array(data)
    _zero(buf, at, count)
    assert buf.tobytes() == data[:at] + bytes(count) + data[at + count :]
    if CHECKED:
        with pytest.raises((IndexError, AssertionError)):
            _zero(buf, at, len(data) - at + 1)


@kernel
def _multiply(a: int, b: int) -> int:
    return wrapping_multiply(a, b)


INT64S = st.integers(-(1 << 63), (1 << 63) - 1)


@given(INT64S, INT64S)
def test_a_product_wraps(a: int, b: int) -> None:
    product = (a * b) % (1 << 64)
    expected = product - (1 << 64) if product >= 1 << 63 else product
    assert _multiply(a, b) == _twin(own.wrapping_multiply)(a, b) == expected
