"""Where CPython keeps the bytes of its objects, beside what it says itself."""

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.jit import objects
from timerstore.timelog.jit.kernel import INTERPRETED, kernel
from timerstore.timelog.jit.objects import (
    OBJECTS_ARE_READABLE,
    address_of,
    ascii_at,
    bytes_at,
    layout_holds,
    new_ascii_at,
    object_at,
    read_objects,
)


@given(data=st.binary(min_size=1))
def test_an_address_leads_to_the_bytes(data: bytes) -> None:
    assert ctypes.string_at(address_of(data), len(data)) == data


@pytest.mark.skipif(not OBJECTS_ARE_READABLE, reason="Arrow converts instead")
@given(values=st.lists(st.binary()))
def test_addresses_and_lengths_of_many(values: list[bytes]) -> None:
    kept = tuple(values)
    objects._read_objects.load()  # type: ignore[attr-defined]
    read = read_objects(kept)
    assert read is not None
    address, length = (each.tolist() for each in read)
    found = [ctypes.string_at(a, n) for a, n in zip(address, length, strict=True)]
    assert found == values
    assert read_objects((*kept, bytearray(b"x"))) is None
    assert read_objects((*kept, "x")) is None


@pytest.mark.skipif(not OBJECTS_ARE_READABLE, reason="Arrow converts instead")
@given(values=st.lists(st.text(st.characters(max_codepoint=127)) | st.text()))
def test_texts_are_read_if_all_are_ascii(values: list[str]) -> None:
    kept = tuple(values)
    objects._read_objects.load()  # type: ignore[attr-defined]
    read = read_objects(kept, str)
    assert (read is not None) == all(map(str.isascii, values))
    if read is not None:
        address, length = (each.tolist() for each in read)
        found = [ctypes.string_at(a, n).decode() for a, n in zip(address, length, strict=True)]
        assert found == values
    assert read_objects((*kept, b"x"), str) is None
    assert read_objects((*kept, type("Text", (str,), {})("x")), str) is None


def test_the_layout_is_found_whatever_memory_is_free() -> None:
    """What is looked at is kept: a tuple that has gone may say anything."""
    kept = [(number,) for number in range(5_000)]  # no tuple waits to be used again
    assert all(layout_holds() is OBJECTS_ARE_READABLE for _ in kept[:5])
    if sys.implementation.name == "cpython" and not INTERPRETED:
        assert OBJECTS_ARE_READABLE


@kernel
def _copy_text(text: Any, kind: Any, count: Any, into: Any) -> Any:
    found = ascii_at(text, kind, count)
    for i in range(len(found)):
        into[i] = found[i]
    return len(found)


@kernel
def _copy_data(data: Any, kind: Any, into: Any) -> Any:
    found = bytes_at(data, kind)
    for i in range(len(found)):
        into[i] = found[i]
    return len(found)


@kernel
def _write_text(text: Any, count: Any) -> Any:
    digits = new_ascii_at(text, count)
    for i in range(count):
        digits[i] = 65 + i
    return count


OBJECTS: Any = st.one_of(
    st.text(st.characters(max_codepoint=127), max_size=9),
    st.text(max_size=9),
    st.binary(max_size=9),
    *(st.none(), st.integers(), st.floats(), st.binary().map(bytearray)),
    st.text(max_size=9).map(type("Text", (str,), {})),
)


@given(given=OBJECTS, count=st.integers(0, 9))
def test_a_kernel_is_given_any_object(given: Any, count: int) -> None:
    """It finds characters in nothing but such a text, and bytes in nothing but bytes."""
    into = np.zeros(16, np.uint8)
    is_such = type(given) is str and given.isascii() and len(given) == count
    found = _copy_text(object_at(given), object_at(str), count, into)
    assert into[:found].tobytes() == (given.encode() if is_such else b"")
    found = _copy_data(object_at(given), object_at(bytes), into)
    assert into[:found].tobytes() == (given if type(given) is bytes else b"")


@pytest.mark.skipif(not OBJECTS_ARE_READABLE, reason="no text is written there")
@given(count=st.integers(2, 26))
def test_a_new_text_is_written(count: int) -> None:
    half = "0" * (count // 2)
    text = half + "0" * (count - len(half))
    _write_text(object_at(text), count)
    assert text == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count] and half == "0" * len(half)
    assert {text: 1} == {"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count]: 1}
