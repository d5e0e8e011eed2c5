"""Where CPython keeps the bytes of its objects, beside what it says itself."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.objects import OBJECTS_ARE_READABLE, address_of, read_bytes_objects


@given(data=st.binary(min_size=1))
def test_an_address_leads_to_the_bytes(data: bytes) -> None:
    assert ctypes.string_at(address_of(data), len(data)) == data


@pytest.mark.skipif(not OBJECTS_ARE_READABLE, reason="Arrow converts instead")
@given(values=st.lists(st.binary()))
def test_addresses_and_lengths_of_many(values: list[bytes]) -> None:
    kept = tuple(values)
    read = read_bytes_objects(kept)
    assert read is not None
    address, length = (each.tolist() for each in read)
    found = [ctypes.string_at(a, n) for a, n in zip(address, length, strict=True)]
    assert found == values
    assert read_bytes_objects((*kept, bytearray(b"x"))) is None
