"""Where CPython keeps the bytes of its objects, beside what it says itself."""

import ctypes
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.jit import objects
from timerstore.timelog.jit.kernel import INTERPRETED
from timerstore.timelog.jit.objects import (
    OBJECTS_ARE_READABLE,
    address_of,
    layout_holds,
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
